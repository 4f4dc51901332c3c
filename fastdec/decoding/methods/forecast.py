"""Drafting of an image's intensities by its model's linear forecast, without training.

Each guess is the model's forecast after the guesses before it (`models.forecast`), rounded to a
whole number. It costs a few dozen multiplications. Guesses are wrong where the model departs from
its forecast. Weights fitted to the model's own outputs (`fit_forecast`) give smoother images, and
longer blocks with `Distance`; blocks with `Exact` may be shorter (docs/results).
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Shaped

from fastdec import struct
from fastdec.decoding.drafted_by import check_rule
from fastdec.decoding.protocol import Draft, Drafter, Prefill, Prompt, Rule, Step
from fastdec.decoding.rules.matching import Exact
from fastdec.decoding.settings import Whole, size
from fastdec.decoding.strategy import LoopStrategy
from fastdec.decoding.text import Text
from fastdec.decoding.topology import Topology
from fastdec.errors import UserError
from fastdec.models.api import Model
from fastdec.struct import Bound


@struct.pytree
class Image:
  """All intensities so far, the root included, and the small picture."""

  text: Text
  memory: Any


@struct.pytree
class ForecastDrafter:
  """Drafter of a chain of k - 1 guesses; its state is the image so far."""

  nodes: int = struct.static()
  weights: Float[Array | np.ndarray, 'phases width'] | None = None

  def init(self, target: Bound, prefill: Prefill) -> Image:
    # The image begins after the prompt's start token. Guesses need room after its end.
    prompt = prefill.prompt
    slots = prefill.max_len + 2 * self.nodes + 1
    text = Text(jnp.pad(prompt.tokens[:, 1:], ((0, 0), (0, slots))), prompt.length - 1)
    text = text.append(prefill.root[:, None], jnp.ones_like(prompt.length))
    return Image(text, prefill.memory)

  def propose(
    self, target: Bound, state: Image, root: Int[Array, ' b'], keys: Array | None
  ) -> tuple[Draft, Image]:
    model, params = target
    length = state.text.length
    rows = jnp.arange(len(root))

    def guess(i: Array, tokens: Array) -> Array:
      place = length + i
      within = place.clip(0, model.fixed_length - 1)[:, None]
      forecast = model.forecast(params, state.memory, tokens, within, self.weights)[:, 0]
      return tokens.at[rows, place].set(jnp.round(forecast).astype(tokens.dtype))

    tokens = jax.lax.fori_loop(0, self.nodes - 1, guess, state.text.tokens)
    index = length[:, None] - 1 + jnp.arange(self.nodes, dtype=jnp.int32)[None]
    return Draft(jnp.take_along_axis(tokens, index, axis=1), Topology.chain(self.nodes)), state

  def observe(self, target: Bound, state: Image, step: Step) -> Image:
    return Image(state.text.append(step.block(self.nodes), step.count), state.memory)


@struct.pytree
class LinearForecast(LoopStrategy):
  """Decoding with blocks guessed by an image model's linear forecast.

  The model is an `ImageTransformer` with forecast=True. Lossless with the default rule.

  Args:
    k: block size, the root's token included, at least 2.
    rule: `Exact()` is lossless; `Distance`, `TopN`, `MinBlock` are not.
    weights: of the guessing forecast, as `fit_forecast` gives them; None: the model's.
  """

  k: Whole = struct.static(default=10)
  rule: Rule = Exact()
  weights: Float[Array | np.ndarray, 'phases width'] | None = None

  def __post_init__(self) -> None:
    check_rule(self.rule)
    struct.assign(self, k=size('k', self.k, 2, 'a block size from 2, or decode by Greedy()'))

  @property
  def drafter(self) -> Drafter:
    return ForecastDrafter(self.k, self.weights)

  def check(self, model: Model, prompt: Prompt, max_len: int) -> None:
    check_forecasts(model)


def fit_forecast(
  model: Any, inputs: Shaped[np.ndarray, '...'], outputs: Shaped[np.ndarray, '...']
) -> Float[np.ndarray, 'phases width']:
  """Returns weights for `LinearForecast` by least squares on a model's outputs; 100 images suffice.

  Args:
    model: an image model with forecast=True.
    inputs: small pictures, uint8[n, 8, 8, 3].
    outputs: the model's greedy outputs for them, uint8[n, 32, 32, 3], or of the model's size.

  Raises:
    UserError: a model without forecasts, or images of other sizes than the model's.
  """
  check_forecasts(model)
  model.check(inputs)
  side = model.config.size
  if outputs.dtype != np.uint8 or outputs.shape != (len(inputs), side, side, 3):
    have = f'{outputs.dtype}{list(outputs.shape)}'
    raise UserError(
      f'outputs must be uint8[{len(inputs)}, {side}, {side}, 3], one for each input, not {have}'
    )
  return model.fit_forecast(inputs, outputs)


def check_forecasts(model: Any) -> None:
  """Raises UserError for a model without a forecast."""
  if not getattr(model, 'forecasts', False):
    raise UserError(
      'this model makes no forecasts: give an image model with forecast=True, or another strategy'
    )
