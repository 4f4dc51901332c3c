"""Adam with the schedules of tensor2tensor's `transformer_base`, or with a decay to zero.

The schedules are those of Vaswani et al. 2017. Kernels may learn by Muon (Jordan et al. 2024),
whose steps are as long in one direction as in another.
"""

import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike

from fastdec import extras
from fastdec.errors import UserError
from fastdec.models.api import Params
from fastdec.training.weight_norm import normalise_weights

with extras.explained():
  import optax
  from optax.contrib import MuonDimensionNumbers, muon

MUON_RMS = 0.2  # of Muon's steps, about that of Adam's (Liu et al. 2025)
# paths of the kernels that weight normalisation trains: not those of heads
NORMALISED = re.compile(r'^(?!heads/|head_\d)(.*/)?(kernel|output)$')


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
  """Settings of the optimizer.

  The defaults are `transformer_base` v3; v2 is `schedule='noam', constant=0.2, b2=0.98`.

  Attributes:
    d_model: width of the trunk; the rate of 'rsqrt' and 'noam' falls with its square root.
    schedule: 'rsqrt' or 'noam', which never end; 'linear' or 'cosine', which fall to 0 after
      `steps`.
    constant: T2T's learning_rate_constant (rsqrt) or learning_rate (noam); the peak rate (linear,
      cosine).
    warmup: number of steps in which the rate rises.
    steps: length of the whole run; only 'linear' and 'cosine' read it.
    b1, b2, epsilon: Adam's.
    muon: factor on the rate with which Muon trains the kernels of layers; Adam with Nesterov's
      momentum trains the rest. 0: Adam trains everything.
    clip: longest gradient (norm over all parameters), to which longer ones are shortened; 0: any.
    heads_rate: factor on the rate for heads that train together with the model.
    weight_norm: trains the model's kernels, except those of heads, as directions and lengths.
  """

  d_model: int
  schedule: str = 'rsqrt'
  constant: float = 2.0
  warmup: int = 8000
  steps: int = 0
  b1: float = 0.9
  b2: float = 0.997
  epsilon: float = 1e-9
  muon: float = 0.0
  clip: float = 0.0
  heads_rate: float = 1.0
  weight_norm: bool = False

  def __post_init__(self) -> None:
    if self.schedule not in SCHEDULES:
      raise UserError(
        f'schedule={self.schedule!r} is unknown: choose one of {", ".join(SCHEDULES)}'
      )
    if not 0 <= self.b2 < 1:
      raise UserError(f'b2={self.b2} is not possible: give a number from 0 to below 1')
    if self.heads_rate <= 0:
      raise UserError(f'heads_rate={self.heads_rate} is not possible: give a number above 0')
    if self.muon < 0 or (self.muon and self.weight_norm):
      raise UserError(
        f'muon={self.muon} with weight_norm={self.weight_norm} is not possible: give 0 for Adam, or'
        ' a factor above 0 without weight_norm'
      )
    if self.warmup < 1:
      raise UserError(f'warmup={self.warmup} is not possible: give at least 1 step')
    if self.clip < 0:
      raise UserError(
        f'clip={self.clip} is not possible: give 0 for no clipping, or a norm above 0'
      )
    if self.schedule in ENDING and self.steps <= self.warmup:
      raise UserError(
        f'schedule={self.schedule} falls to 0 between warmup={self.warmup} and steps={self.steps}:'
        ' give more steps'
      )

  @property
  def learning_rate(self) -> optax.Schedule:
    """Returns the rate of update number `step`, counted from 0."""
    return SCHEDULES[self.schedule](self)

  def build(self) -> optax.GradientTransformation:
    adam = optax.adam(self.learning_rate, b1=self.b1, b2=self.b2, eps=self.epsilon)
    if self.muon:
      adam = muon(
        lambda step: self.muon * self.learning_rate(step),
        eps=self.epsilon, adam_b1=self.b1, adam_b2=self.b2, adam_learning_rate=self.learning_rate,
        consistent_rms=MUON_RMS, muon_weight_dimension_numbers=_of_kernels,
      )  # fmt: skip
    if self.weight_norm:
      adam = normalise_weights(adam, lambda name: bool(NORMALISED.search(name)))
    parts = [adam]
    if self.clip:
      parts.insert(0, optax.clip_by_global_norm(self.clip))
    if self.heads_rate != 1:  # after Adam, whose updates do not depend on a gradient's scale

      def of_heads(params):
        return {name: name == 'heads' for name in params}

      parts.append(optax.masked(optax.scale(self.heads_rate), of_heads))
    return optax.chain(*parts) if len(parts) > 1 else adam


def _of_kernels(params: Params) -> Any:
  """Returns the axes of kernels [*outputs, inputs], and None for all else."""

  def axes(path: Any, x: Array) -> MuonDimensionNumbers | None:
    if path[-1].key != 'kernel' or x.ndim < 2:
      return None
    return MuonDimensionNumbers(reduction_axis=(x.ndim - 1,), output_axis=tuple(range(x.ndim - 1)))

  return jax.tree_util.tree_map_with_path(axes, params)


def _rsqrt(config: OptimizerConfig) -> optax.Schedule:
  """Computes constant * linear_warmup * rsqrt_decay * rsqrt_hidden_size.

  Update 0 has rate 0, as T2T's global step 0.
  """
  scale = config.constant * config.d_model**-0.5

  def rate(step: ArrayLike) -> Array:
    n = jnp.asarray(step)
    return (
      scale
      * jnp.minimum(1.0, n / config.warmup)
      * jnp.maximum(n, config.warmup).astype(float) ** -0.5
    )

  return rate


def _noam(config: OptimizerConfig) -> optax.Schedule:
  """Computes T2T's legacy schedule, with its factors 5000 and 0.002."""
  scale = 5000.0 * 0.002 * config.constant * config.d_model**-0.5

  def rate(step: ArrayLike) -> Array:
    n = jnp.asarray(step).astype(float) + 1
    return scale * jnp.minimum(n * config.warmup**-1.5, n**-0.5)

  return rate


def _linear(config: OptimizerConfig) -> optax.Schedule:
  """Rises from rate 0 to the peak in `warmup` updates; falls to 0 after `steps`."""
  up = optax.linear_schedule(0.0, config.constant, config.warmup)
  down = optax.linear_schedule(config.constant, 0.0, config.steps - config.warmup)
  return optax.join_schedules([up, down], [config.warmup])


def _cosine(config: OptimizerConfig) -> optax.Schedule:
  """Rises as `_linear`, and falls along half a cosine (Loshchilov and Hutter 2017, section 3)."""
  return optax.warmup_cosine_decay_schedule(0.0, config.constant, config.warmup, config.steps)


SCHEDULES = {'rsqrt': _rsqrt, 'noam': _noam, 'linear': _linear, 'cosine': _cosine}
ENDING = ('linear', 'cosine')  # their rate depends on the number of steps
