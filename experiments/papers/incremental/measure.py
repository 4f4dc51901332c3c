"""Measures what `experiments.incremental` asks: one group of cells at a time, everything in it in
turn."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fastdec as fd
from experiments.lab.conditions import Conditions
from experiments.papers.incremental.cells import SavingCell
from experiments.papers.incremental.operations import launches, primitives
from experiments.papers.incremental.settings import IncrementalExperiment
from experiments.papers.incremental.ways import rewritten, step_by_step
from fastdec.decoding.decode import start, step
from fastdec.decoding.inputs import checked
from fastdec.decoding.protocol import Decoded
from fastdec.evaluation.agreement import check_partings, partings
from fastdec.evaluation.calls import random_params
from fastdec.evaluation.wallclock import Timing, measure
from fastdec.struct import Bound

Plans = Sequence[SavingCell]


class CacheMeasuring:
  """`groups[part](plans)` measures the cells of one name."""

  def __init__(self, experiment: IncrementalExperiment, conditions: Conditions) -> None:
    self.experiment = experiment
    self.groups = {
      'growth': self.growth,
      'layout': self.layout,
      'launches': self.launches,
      'encoder': self.encoder,
    }
    self.conditions = conditions | {'seed': experiment.seed} | experiment.asked

  def growth(self, plans: Plans) -> list[SavingCell]:
    """Time per token against length: three ways, all lengths.

    Raises:
      UserError: the ways write different texts, and rounding does not explain it.
    """
    config, first = self.experiment.growth, plans[0]
    target, source = self._target(first), self._source(first, config.source)
    module, params = target
    functions, texts = {}, {}
    for plan in plans:
      texts[plan.length] = text = fd.decode(
        module, params, source, fd.Greedy(), max_len=plan.length
      ).checked()
      steps = min(config.steps, plan.length)
      functions |= {
        ('uncached', plan.length): lambda text=text, steps=steps: rewritten(
          target, source, text.tokens, steps
        ),
        ('host', plan.length): lambda plan=plan: step_by_step(
          target, fd.Greedy(), source, plan.length
        ),
        ('device', plan.length): lambda plan=plan: fd.decode(
          module, params, source, fd.Greedy(), max_len=plan.length
        ),
      }
    agreements = {}
    for plan in plans:
      text = texts[plan.length]
      uncached = dataclasses.replace(text, tokens=functions['uncached', plan.length]())
      agreements[plan.length] = agreement(
        target, source, text, [uncached, functions['host', plan.length]()]
      )
    per_token = {
      (way, length): scaled(timing, min(config.steps, length) if way == 'uncached' else length)
      for (way, length), timing in measure(functions, config.rounds).items()
    }
    shortest = min(plan.length for plan in plans)
    cells = []
    for plan in plans:
      steps, agreed = min(config.steps, plan.length), agreements[plan.length]
      times = {way: time for (way, length), time in per_token.items() if length == plan.length}
      to_shortest = {
        way: 1 / time.speedup_over(per_token[way, shortest]) for way, time in times.items()
      }
      cells.append(
        self._filled(
          plan, **speeds(times, 'device'), to_shortest=to_shortest, steps=steps, **agreed
        )
      )
    return cells

  def layout(self, plans: Plans) -> list[SavingCell]:
    """A row of FasterTransformer's tables: whole outputs of beam search, from the host and on the
    device."""
    (plan,), config = plans, self.experiment.layout
    target, source, search = (
      self._target(plan),
      self._source(plan, plan.length),
      fd.Beam(config.beams),
    )
    functions = {
      'host': lambda: step_by_step(target, search, source, plan.length),
      'device': lambda: fd.decode(
        target.module, target.params, source, search, max_len=plan.length
      ),
    }
    parted = (
      (functions['host']().checked().tokens != functions['device']().checked().tokens).any(1).sum()
    )
    return [
      self._filled(plan, **speeds(measure(functions, config.rounds), 'device'), parted=int(parted))
    ]

  def launches(self, plans: Plans) -> list[SavingCell]:
    """What a greedy step launches, and what of it is a layer's: the difference that one layer more
    makes."""
    (plan,) = plans
    (step, eager), (deep_step, deep_eager) = (
      counted(
        self.experiment.model(plan.part, plan.model, plan.dtype, is_deeper), plan.batch, plan.length
      )
      for is_deeper in (False, True)
    )
    counts = {
      'step': step,
      'layer': deep_step - step,
      'eager_step': eager,
      'eager_layer': deep_eager - eager,
    }
    return [self._filled(plan, counts=counts)]

  def encoder(self, plans: Plans) -> list[SavingCell]:
    """The encoder alone, compiled and one operation at a time."""
    (plan,), config = plans, self.experiment.encoder
    (model, params), source = self._target(plan), jnp.asarray(self._source(plan, config.source))
    jitted = jax.jit(model.encode)

    def eager() -> Any:
      with jax.disable_jit():
        return model.encode(params, source)

    timings = measure({'eager': eager, 'jitted': lambda: jitted(params, source)}, config.rounds)
    return [self._filled(plan, **speeds(timings, 'jitted'))]

  def _target(self, plan: SavingCell) -> Bound:
    model = self.experiment.model(plan.part, plan.model, plan.dtype)
    return Bound(model, random_params(model, self.experiment.seed, plan.dtype))

  def _source(self, plan: SavingCell, tokens: int) -> np.ndarray:
    words = self.experiment.model(plan.part, plan.model).vocab_size
    return np.random.default_rng(self.experiment.seed).integers(
      2, words, (plan.batch, tokens), np.int32
    )

  def _filled(self, plan: SavingCell, **figures: Any) -> SavingCell:
    return dataclasses.replace(plan, **figures, conditions=self.conditions)


def agreement(
  target: Bound, source: np.ndarray, text: Decoded, others: Sequence[Decoded]
) -> dict[str, Any]:
  """How many rows of the others are not the text's, and the largest difference of logits where they
  part.

  Raises:
    UserError: rows part where there is no near tie.
  """
  found = [partings(tuple(target), source, other, text) for other in others]
  for gaps in found:
    check_partings(gaps, len(source), target.module.config.dtype)
  gaps = np.concatenate(found)
  return {'parted': max(map(len, found)), 'largest_gap': float(gaps.max()) if gaps.size else None}


def counted(model: Any, batch: int, length: int) -> tuple[int, int]:
  """What one greedy step launches: compiled, and one primitive at a time. Nothing is run."""
  params = jax.eval_shape(model.init, jax.random.key(0))
  target = Bound(
    model, jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, model.config.dtype), params)
  )
  _, prompt, _ = checked(model, np.full((batch, length), 2, np.int32), None, None, length, None)
  state, _ = jax.eval_shape(lambda target: start(target, fd.Greedy(), prompt, None, length), target)
  traced = step.trace(target, fd.Greedy(), state)
  hlo = traced.lower().compile().as_text()
  assert hlo is not None  # which the backends of the table have
  return launches(hlo), primitives(traced.jaxpr.jaxpr)


def speeds(timings: Mapping[str, Timing], fastest: str) -> dict[str, dict[str, Any]]:
  """Milliseconds by way, and the ratios to one of the ways."""
  return {
    'milliseconds': {way: time.milliseconds for way, time in timings.items()},
    'to_fastest': {
      way: timings[fastest].speedup_over(time) for way, time in timings.items() if way != fastest
    },
    'spread': {
      way: list(timings[fastest].speedups_over(time))
      for way, time in timings.items()
      if way != fastest
    },
  }


def scaled(timing: Timing, parts: int) -> Timing:
  """The time of one part, where the whole is `parts` equal ones."""
  return Timing(tuple(seconds / parts for seconds in timing.seconds), timing.compile_seconds)
