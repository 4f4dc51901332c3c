"""Measures one trained image model: block sizes, likeness to the originals, wall clock and head
accuracy, as cells."""

import functools
import pathlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

import fastdec as fd
from experiments.lab.against_plain import spaced
from experiments.lab.conditions import Conditions
from experiments.lab.model_text import without_heads
from experiments.lab.packing import packed
from experiments.papers.stern2018.cells import FITTED, UNTRAINED, BlockwiseCell
from experiments.papers.stern2018.images import (
  DEV_IMAGES,
  TAU,
  ImageExperiment,
  Pictures,
  forecast_of,
  pictures_of,
  strategy_of,
)
from experiments.papers.stern2018.own_images import open_own
from experiments.papers.stern2018.text_measure import clock
from fastdec import folders
from fastdec.data.images.corpus import shrink, written_batches
from fastdec.decoding.protocol import Decoded
from fastdec.errors import UserError
from fastdec.evaluation.agreement import check_partings, partings
from fastdec.evaluation.blocks import count_blocks
from fastdec.evaluation.image_quality import bicubic, psnr, ssim
from fastdec.evaluation.wallclock import measure
from fastdec.files import whole_file
from fastdec.training.losses import dev_loss, head_accuracy

TIMED = ('exact', f'distance-{TAU}', f'window-{TAU}')  # of a sweep, the columns of the table


class ImageMeasuring:
  """Measures models on the first images of a split; `folder` gets what they make of them.

  Args:
    experiment: whose `table` says what.
    pictures: its images.
    split: 'dev' or 'test'.
    folder: of the outputs, <split>-k<k>-<regime>-<rule>.npz: arrays input, output, original (uint8)
      and block_sizes.
    conditions: what the figures depend on beside these, see `experiments.lab.conditions`.
  """

  def __init__(
    self,
    experiment: ImageExperiment,
    pictures: Pictures,
    split: str,
    folder: pathlib.Path,
    conditions: Conditions,
  ) -> None:
    table = experiment.table
    self.experiment, self.material, self.split, self.folder = experiment, pictures, split, folder
    self.originals = pictures.images.array(split, table.images or None)
    self.inputs = shrink(self.originals)
    self.bicubic_psnr = psnr(bicubic(self.inputs, self.originals.shape[1]), self.originals)
    self._last_greedy: tuple[str, Any] = ('', None)
    own = {'dtype': experiment.model.dtype, 'batch': table.rows, 'seed': experiment.seed}
    timing = {'timing_batch': 1, 'timing_images': table.timed, 'timing_rounds': table.repeats}
    self.conditions = conditions | own | timing

  def check(self, done: Iterable[BlockwiseCell], path: pathlib.Path) -> None:
    """Raises UserError where a finished cell of this split, read from `path`, was measured on other
    images."""
    for cell in done:
      if cell.error is None and cell.split == self.split and cell.outputs != len(self.originals):
        there = f'{cell.outputs} images of the {self.split} set'
        asked = f'this config means {len(self.originals)}'
        raise UserError(
          f'{path} was measured on {there}, and {asked}: choose another workdir, or that config'
        )

  def cells(
    self, workdir: pathlib.Path, k: int, regime: str, rules: Sequence[str]
  ) -> Iterator[BlockwiseCell]:
    """One cell a rule, of a run's model with its first k heads; k = 1 decodes greedily ('exact').

    All rules but those with a window run in the same compiled programs, timed in turn with the same
    model's greedy.
    """
    content, (model, params) = folders.content(workdir), packed(*folders.load(workdir))
    heads = None if k == 1 or regime in UNTRAINED else packed(*folders.load_heads(workdir))
    strategies: dict[str, Any] = {}
    if heads is not None:
      strategies = {rule: strategy_of(heads, k, rule) for rule in rules}
    elif regime in UNTRAINED:
      weights = self._fitted if regime == FITTED else None
      strategies = {rule: forecast_of(k, rule, weights) for rule in rules}
    timings = self._timings(model, params, strategies)
    greedy = self._greedy(model, params, content)
    more: dict[str, str] = {}
    of_model: dict[str, Any] = {'bits_per_dimension': self._bits(model, params)}
    if heads is not None:
      of_model |= self._accuracy(model, params, heads, k, greedy)
      more |= self.experiment.heads.conditions
      if self.experiment.own:
        more |= {'heads_text': 'own'}
    for rule in rules:
      out = greedy if k == 1 else self._decode(model, params, strategies[rule])
      if rule == 'exact':
        self._check_same(model, params, out, greedy)
      self._save(f'{self.split}-k{k}-{regime}-{rule}', out)
      timing = timings['greedy'] if k == 1 else timings.get(rule)
      timed = {} if timing is None else clock(timing, timings['greedy'])
      yield BlockwiseCell(
        k, regime, rule, **self._quality(out, greedy), **of_model, **timed,
        split=self.split, models=content,
        conditions=self.conditions | more,
      )  # fmt: skip

  def summary(self, cell: BlockwiseCell) -> str:
    """A cell in one line."""
    return (
      f'k={cell.k} {cell.regime} {cell.rule}: mean block {cell.mean_block_size:.2f}, PSNR'
      f' {cell.psnr:.2f} dB'
    )

  @functools.cached_property
  def _fitted(self) -> np.ndarray:
    """Weights of a forecast that are fitted to what the base wrote of small training images."""
    own = open_own(pathlib.Path(self.experiment.own))
    return fd.fit_forecast(self.material.model, own.source, own.written)

  def _timings(self, model: Any, params: Any, strategies: dict[str, Any]) -> dict[str, Any]:
    table = self.experiment.table
    timed = {
      'greedy': fd.Greedy(),
      **{rule: strategies[rule] for rule in TIMED if rule in strategies},
    }
    functions = {
      name: functools.partial(_decode_one, model, params, strategy)
      for name, strategy in timed.items()
    }
    chosen = spaced(len(self.inputs), min(table.timed, len(self.inputs)))
    return measure(functions, table.repeats, [(self.inputs[i][None],) for i in chosen])

  def _greedy(self, model: Any, params: Any, content: str) -> Decoded:
    """Greedy decoding, of the last model without doing it again: one with frozen heads is measured
    for several k."""
    if self._last_greedy[0] != content:
      self._last_greedy = content, self._decode(model, params, fd.Greedy())
    return self._last_greedy[1]

  def _decode(self, model: Any, params: Any, strategy: Any) -> Decoded:
    """All images, `rows` at once."""
    n = len(self.inputs)
    rows = min(self.experiment.table.rows, n)
    padded = np.concatenate([self.inputs, self.inputs[: -n % rows]])
    batches = np.split(padded, len(padded) // rows)
    parts = [jax.device_get(fd.decode(model, params, x, strategy).checked()) for x in batches]
    return jax.tree.map(lambda *x: np.concatenate(x)[:n], *parts)

  def _quality(self, out: Decoded, greedy: Decoded) -> dict[str, Any]:
    blocks, made, plain = (
      count_blocks(out.lengths, out.block_sizes),
      *map(pictures_of, (out.tokens, greedy.tokens)),
    )
    return {
      'mean_block_size': blocks.mean_block_size,
      'calls_per_output': blocks.calls_per_output,
      'outputs': blocks.outputs,
      'psnr': psnr(made, self.originals),
      'bicubic_psnr': self.bicubic_psnr,
      'ssim': ssim(made, self.originals),
      'psnr_to_greedy': psnr(made, plain),
      'same_as_greedy': float((made == plain).all(axis=(1, 2, 3)).mean()),
    }

  def _check_same(self, model: Any, params: Any, out: Decoded, greedy: Decoded) -> None:
    """Raises UserError where an image parts from greedy decoding's at what is no near tie."""
    gaps = [np.zeros(0)]
    # one by one: scoring takes memory
    for i in np.flatnonzero((out.tokens != greedy.tokens).any(axis=1)):
      ours, plain = (jax.tree.map(lambda x, i=i: x[i : i + 1], one) for one in (out, greedy))
      gaps.append(partings((model, params), self.inputs[i : i + 1], ours, plain))
    check_partings(np.concatenate(gaps), len(self.inputs), self.experiment.model.dtype)

  def _bits(self, model: Any, params: Any) -> float:
    """Bits an intensity, of the originals."""
    rows = min(self.experiment.table.rows, 8, len(self.originals))
    cut = len(self.originals) // rows * rows
    targets = self.originals[:cut].reshape(-1, rows, model.fixed_length).astype(np.int32)
    batches = (
      {'source': source, 'target': target, 'target_segment': np.ones_like(target)}
      for source, target in zip(np.split(self.inputs[:cut], len(targets)), targets, strict=True)
    )
    return dev_loss(model, params, batches)['nll'] / np.log(2)

  def _accuracy(
    self, model: Any, params: Any, heads: Any, k: int, greedy: Decoded
  ) -> dict[str, tuple[float, ...]]:
    """How often the first k heads are right: about photographs of the dev set, and what the model
    itself writes."""
    module, head_params = heads
    model, params = without_heads(model, params)
    if module.k > k:
      module, head_params = module.drafting(head_params, k - 1)
    looked_at = min(DEV_IMAGES, len(self.inputs))
    rows = min(self.experiment.data.rows, looked_at)
    written: Any = written_batches(
      self.inputs[:looked_at], pictures_of(greedy.tokens[:looked_at]), rows, seed=0
    )
    own = [written[i] for i in range(looked_at // rows)]
    return {
      'head_accuracy': head_accuracy(
        model, module, params, head_params, self.material.dev_batches()
      ),
      'own_accuracy': head_accuracy(model, module, params, head_params, own),
    }

  def _save(self, name: str, out: Decoded) -> None:
    with whole_file(self.folder / f'{name}.npz') as file:
      np.savez_compressed(
        file,
        input=self.inputs,
        output=pictures_of(out.tokens),
        original=self.originals,
        block_sizes=out.block_sizes,
      )


def _decode_one(model: Any, params: Any, strategy: Any, image: np.ndarray) -> Decoded:
  return fd.decode(model, params, image, strategy)
