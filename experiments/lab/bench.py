"""The bench of papers about text: a finished model, and prompts on which strategies are compared
with plain decoding: tokens a call, agreement, and wall clock in turn.

  bench = Bench(model, c.data, c.measure)
  bench.count(fd.Jacobi(8))           # over all texts
  bench.clock(fd.Jacobi(8), batch=1)  # over some of them
"""

import dataclasses
import functools
import pathlib
from collections.abc import Sequence
from typing import Any, Literal

import jax
import numpy as np
from jaxtyping import Int

import fastdec as fd
from experiments.lab.compare import Comparison, count_all, join_texts, make_batches
from experiments.lab.rows import Row
from experiments.lab.text import TextConfig, inputs_of
from experiments.lab.train import Count, Zero, spaced
from fastdec import folders
from fastdec.cli.own_text import OwnText
from fastdec.evaluation.acceptance import repeated_share
from fastdec.kernels.packing import pack_if_faster
from fastdec.struct import Bound

ROWS = 8  # texts at once, where nothing is timed
FEW = 3  # texts of the shorter program that is timed: its first calls find cold caches


@dataclasses.dataclass(frozen=True)
class Texts:
  """The texts that are measured, and how often. A paper's own settings are added in a subclass."""

  split: Literal['dev', 'test'] = 'test'
  sentences: Zero = 100  # of the split, evenly spaced: for tokens a call and agreement; 0: all
  timed: Count = 32  # of them, evenly spaced: for wall clock
  prompt: Count = 4  # tokens of a line, if the model has no encoder
  max_len: Count = 64  # tokens of a text
  repeats: Zero = 3  # of timing; 0: tokens are counted, and nothing is timed


@dataclasses.dataclass(frozen=True)
class Bench:
  """A finished model and its prompts. Its fields are settings and a folder, which is all that a job
  needs; the model and the texts are loaded when they are first used.

  Attributes:
    folder: of the model, a finished run.
    data: the text that it was trained on; or texts that it wrote, whose held-out prompts count.
    texts: what is measured.
  """

  folder: pathlib.Path
  data: TextConfig | OwnText
  texts: Texts

  def __reduce__(self) -> Any:
    """A job loads the model itself."""
    return type(self), (self.folder, self.data, self.texts)

  @functools.cached_property
  def text(self) -> Any:
    """The opened text: a `Text`, or the `OwnText`.

    Raises:
      UserError: the model was trained on other text.
    """
    text: Any = self.data.open()
    if isinstance(self.data, TextConfig):
      text.check_base(self.folder)
    return text

  @functools.cached_property
  def target(self) -> Bound:
    """The model, its parameters packed where that makes a call faster."""
    return Bound(*pack_if_faster(*fd.load(self.folder)))

  @property
  def dtype(self) -> str:
    """The type that the model computes in."""
    return self.target.module.config.dtype

  @functools.cached_property
  def prompts(self) -> Int[np.ndarray, 'n s']:
    """All prompts that are measured."""
    return self.prompts_of(self.texts.split)

  @functools.cached_property
  def timed(self) -> Int[np.ndarray, 'n s']:
    """Those that are timed."""
    return self.prompts[spaced(len(self.prompts), self.texts.timed)]

  def prompts_of(self, split: str) -> Int[np.ndarray, 'n s']:
    """Prompts of a split, evenly spaced."""
    if isinstance(self.text, OwnText):
      prompts = self.text.held_out_prompts(self.target.module.pad_id)
    else:
      prompts = inputs_of(self.text, self.target.module, split, self.texts.prompt)
    return prompts[spaced(len(prompts), self.texts.sentences)]

  def key(self, *names: str, models: Sequence[pathlib.Path] = ()) -> Row:
    """Returns the fields that every key needs: the models, the text, and the settings that decide
    the figures.

    Args:
      names: settings of the paper's own that decide them too.
      models: folders of other models, or drafts, that decide them. Their contents are hashed, so
        that a row is measured again after one of them was trained again.
    """
    key: Row = {}
    for name in (*(field.name for field in dataclasses.fields(Texts)), *names):
      key[name] = getattr(self.texts, name)
    contents = [folders.content(self.folder), *map(folders.draft_content, models)]
    return {**key, 'models': ' '.join(contents), 'content': self.text.content}

  def plain(self, temperature: float, seed: int) -> tuple[fd.Greedy | fd.Sample, Any]:
    """Decoding token by token, and the key that it draws by."""
    if not temperature:
      return fd.Greedy(), None
    return fd.Sample(temperature), jax.random.key(seed)

  def comparison(
    self, strategy: Any, prompts: np.ndarray, batch: int, plain: Any = None, key: Any = None
  ) -> Comparison:
    """Compares a strategy with plain decoding, by default greedy, over batches of prompts."""
    batches = make_batches(prompts, batch, self.target.module.pad_id, key)
    return Comparison(self.target, strategy, plain or fd.Greedy(), batches, self.texts.max_len)

  def count(self, strategy: Any) -> Row:
    """Tokens a call of a greedy strategy over all texts, and agreement with greedy decoding: the
    same at every batch size.

    Raises:
      UserError: nothing is drafted, or a text differs first at a place that is not a near tie.
    """
    whole = self.comparison(strategy, self.prompts, min(ROWS, len(self.prompts)))
    repeated = repeated_share(join_texts(whole.theirs))  # of greedy texts
    figures = {'nodes': strategy.drafter.nodes, 'dtype': self.dtype, 'repeated_4grams': repeated}
    return figures | count_all(whole, self.dtype)

  def clock(self, strategy: Any, batch: int) -> Row:
    """Times of a greedy strategy in turn with greedy decoding, over the texts that are timed; {}
    where none are (`repeats` 0)."""
    if not self.texts.repeats:
      return {}
    comparison = self.comparison(strategy, self.timed, batch)
    timings = comparison.clock(self.texts.repeats, calls={}, few=max(FEW // batch, 1))
    return comparison.speed(timings)
