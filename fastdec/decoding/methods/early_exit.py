"""Early exit: the target's own first layers draft, and all layers verify.

The draft model is the target with fewer layers: the same embeddings, first layers, last norm and
projection to words, and the same arrays. So it needs no memory for weights and no training, but
drafts well only for models trained to be read early, such as LayerSkip's (Elhoushi et al. 2024,
arXiv 2404.16710). Here the first layers run again when all layers verify: both have caches of
their own.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from jaxtyping import Array, Int

from fastdec import struct
from fastdec.decoding.methods.drafts_with_probs import DraftsWithProbs
from fastdec.decoding.methods.speculative import ModelDrafter, Reading
from fastdec.decoding.protocol import Draft, Drafter, Prefill, Prompt, Rule, Step
from fastdec.decoding.sampling import Sampling
from fastdec.decoding.settings import MOST_NODES, Whole, size
from fastdec.decoding.strategy import DRAFTED, Sizes
from fastdec.errors import UserError
from fastdec.models.api import Model
from fastdec.struct import Bound


@struct.pytree
class EarlyExit(DraftsWithProbs):
  """Decoding with the target's first layers as the draft model of `Speculative`.

  Args:
    layers: how many; fewer than the target's decoder has.
    gamma: tokens drafted for each call of the target, at least 1.
    sampling: how tokens are drawn, of target and draft alike; None: the most likely token.
    rule: as of `Speculative`.
  """

  layers: Whole = struct.static()
  gamma: Whole = struct.static(default=4)
  sampling: Sampling | None = None
  rule: Rule | None = None

  def __post_init__(self) -> None:
    gamma = size('gamma', self.gamma, 1, '1 or more tokens to draft', MOST_NODES - 1)
    layers = size('layers', self.layers, 1, '1 or more layers, fewer than the model has')
    struct.assign(self, gamma=gamma, layers=layers)
    self.settle()

  def sizes(self, drafted: Sizes = None, nodes: Sizes = None) -> Sequence[Any]:
    return [dataclasses.replace(self, gamma=n) for n in drafted or DRAFTED]

  @property
  def drafter(self) -> Drafter:
    return ExitDrafter(self.sampling, self.gamma, self.layers)

  def check(self, model: Model, prompt: Prompt, max_len: int) -> None:
    layers: Any = getattr(model, 'layers', None)
    if getattr(model, 'first_layers', None) is None:
      kind = type(model).__name__
      raise UserError(f'EarlyExit cannot read {kind} early: give a language model or a translator')
    if self.layers >= layers:
      raise UserError(
        f'layers={self.layers} is not possible: the model has {layers}, so give fewer'
      )


@struct.pytree
class ExitDrafter:
  """A `ModelDrafter` of the target's first layers."""

  sampling: Sampling | None
  gamma: int = struct.static()
  layers: int = struct.static()

  @property
  def nodes(self) -> int:
    return self.gamma + 1

  def _drafter(self, target: Bound) -> ModelDrafter:
    model = getattr(target.module, 'model', target.module)  # a replay's is around the target
    first = Bound(model.first_layers(self.layers), target.params)
    return ModelDrafter(first, self.sampling, self.gamma)

  def init(self, target: Bound, prefill: Prefill) -> Reading:
    return self._drafter(target).init(target, prefill)

  def propose(
    self, target: Bound, state: Reading, root: Int[Array, ' b'], keys: Array | None
  ) -> tuple[Draft, Reading]:
    return self._drafter(target).propose(target, state, root, keys)

  def observe(self, target: Bound, state: Reading, step: Step) -> Reading:
    return self._drafter(target).observe(target, state, step)
