"""Adam with the schedules of tensor2tensor's `transformer_base` (Vaswani et al. 2017; T2T v2 and v3)."""

import dataclasses
import re

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from fastdec import extras
from fastdec.errors import UserError
from fastdec.training.weight_norm import weight_normalised

with extras.explained():
  import optax

NORMALISED = re.compile(r'^(?!heads/|head_\d)(.*/)?(kernel|output)$')  # paths of what weight normalisation is for


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
  """The defaults are `transformer_base` v3; v2 is `schedule='noam', constant=0.2, b2=0.98`. No clipping, no decay."""

  d_model: int  # of the trunk: the rate falls with its square root
  schedule: str = 'rsqrt'  # or 'noam'
  constant: float = 2.0  # T2T's learning_rate_constant (rsqrt) or learning_rate (noam)
  warmup: int = 8000  # steps
  b1: float = 0.9
  b2: float = 0.997
  epsilon: float = 1e-9
  heads_rate: float = 1.0  # heads that train together with the model learn at this many times its rate
  weight_norm: bool = False  # of the model's kernels, those of heads excepted

  def __post_init__(self) -> None:
    if self.schedule not in SCHEDULES:
      raise UserError(f'schedule={self.schedule!r} is unknown: choose one of {", ".join(SCHEDULES)}')
    if not 0 <= self.b2 < 1:
      raise UserError(f'b2={self.b2} is not possible: give a number from 0 to below 1')
    if self.heads_rate <= 0:
      raise UserError(f'heads_rate={self.heads_rate} is not possible: give a number above 0')
    if self.warmup < 1:
      raise UserError(f'warmup={self.warmup} is not possible: give at least 1 step')

  @property
  def learning_rate(self) -> optax.Schedule:
    """The rate of update number `step`, counted from 0."""
    return SCHEDULES[self.schedule](self)

  def build(self) -> optax.GradientTransformation:
    adam = optax.adam(self.learning_rate, b1=self.b1, b2=self.b2, eps=self.epsilon)
    if self.weight_norm:
      adam = weight_normalised(adam, lambda name: bool(NORMALISED.search(name)))
    if self.heads_rate == 1:
      return adam

    def of_heads(params):
      return {name: name == 'heads' for name in params}

    return optax.chain(adam, optax.masked(optax.scale(self.heads_rate), of_heads))  # Adam forgets a gradient's scale


def _rsqrt(config: OptimizerConfig) -> optax.Schedule:
  """constant * linear_warmup * rsqrt_decay * rsqrt_hidden_size; update 0 has rate 0, as T2T's global step 0."""
  scale = config.constant * config.d_model**-0.5

  def rate(step: ArrayLike) -> Array:
    n = jnp.asarray(step)
    return scale * jnp.minimum(1.0, n / config.warmup) * jnp.maximum(n, config.warmup).astype(float) ** -0.5

  return rate


def _noam(config: OptimizerConfig) -> optax.Schedule:
  """T2T's legacy schedule, with its factors 5000 and 0.002."""
  scale = 5000.0 * 0.002 * config.constant * config.d_model**-0.5

  def rate(step: ArrayLike) -> Array:
    n = jnp.asarray(step).astype(float) + 1
    return scale * jnp.minimum(n * config.warmup**-1.5, n**-0.5)

  return rate


SCHEDULES = {'rsqrt': _rsqrt, 'noam': _noam}
