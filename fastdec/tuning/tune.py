"""The search for the strategy that is fastest on this machine, for a model and prompts.

    the plain strategy writes texts          compiled and timed: `Greedy`, or `Sample`
    all others are predicted on them         `tuning.prediction`, without the target's layers
    the most promising decode in turn        compiled and timed (`tuning.race`), while there is time

The fastest that was timed wins if it is ahead of the plain one beyond noise, so the answer is never
slower. If the budget ended before any was timed, the best prediction is the answer, if it is ahead
by more than predictions err. Candidates that cannot be predicted are timed last.

Progress is logged as 'fastdec.tuning'.
"""

import logging
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from fastdec.decoding.description import label
from fastdec.decoding.inputs import make_prompt, read_rows
from fastdec.decoding.methods.greedy import Greedy, Sample
from fastdec.decoding.protocol import promise_of
from fastdec.decoding.request import Settings, prepare
from fastdec.decoding.settings import Whole, count, is_number
from fastdec.decoding.sizes import PROMPTS, choose_widths
from fastdec.decoding.strategy import LoopStrategy, nodes_of, read_strategy
from fastdec.errors import UserError
from fastdec.evaluation import machine, wallclock
from fastdec.models.api import Model, Params, check_model
from fastdec.struct import Bound
from fastdec.tuning.prediction import Predictor, can_predict
from fastdec.tuning.race import LEAST, Candidate, Ratio, compare, count_steps, is_decided, run_round
from fastdec.tuning.tuned import Figures, Tuned

BUDGET = 120.0  # seconds
FOR_TEXTS = 0.05  # of the budget, after compiling
FOR_TIMES = 0.5  # of what is left then, if something else can be timed in it
OF_A_CALL = 0.5  # of the time to compile a strategy: that of its call
MOST_TIMED = 3  # candidates, of those that can be predicted
BATCHES = 32  # at most; with more of them, each would be visited too rarely for a median
VISITS = 3  # of each batch; more would change little
WIDEST = 0.9  # share of prompts that must fit into the common width; longer ones are left out
TURN = 0.2  # seconds that a candidate decodes in a row, if more than one batch
ERROR = 1.15  # ratio of a prediction to what is measured, at most
log = logging.getLogger('fastdec.tuning')


def tune(
  model: Model,
  params: Params,
  strategies: Sequence[Any],
  inputs: Any,
  max_len: Whole | None = None,
  rows: Whole = 1,
  relaxed: bool = False,
  budget: int | float = BUDGET,
) -> Tuned:
  """Finds the fastest of some strategies: predicts all, and decodes prompts with the best in turn.

  Args:
    model, params, max_len: as in `decode`.
    strategies: the candidates, such as `['prompt_lookup', *fd.Eagle(draft).sizes()]`. If a `Sample`
      is among them, tokens are drawn as it draws them; otherwise they are `Greedy`'s.
    inputs: prompts like those to decode later: the ids of each without padding, or pictures.
      `fd.Generator.read(prompt)[0]` gives the ids of texts and chats. Give at least five batches of
      different prompts; the few that are much longer than the others are left out.
    rows: prompts decoded at once.
    relaxed: also times candidates that may write other text than the model would.
    budget: seconds for everything, compiling included, but not waiting for other programs' times.

  Raises:
    UserError: no inputs, or a candidate that cannot decode them.
  """
  rows = count('rows', rows, 1, '1 or more')
  check_model(model, params)
  if not is_number(budget) or not 0 < budget < float('inf'):
    raise UserError(f'budget={budget!r} is not possible: give seconds, more than 0')
  strategies = [*map(read_strategy, strategies)]
  drawing = next((one for one in strategies if isinstance(one, Sample)), None)
  settings = Settings(max_len=max_len)
  if relaxed or drawing is not None:
    settings = replace(settings, key=jax.random.key(0))

  strategies, target = [drawing or Greedy(), *strategies], Bound(model, params)
  plain, *others = candidates = _list_candidates(
    target, inputs, strategies, rows, settings, relaxed
  )
  tried = [candidate for candidate in others if not candidate.note]
  with wallclock.alone():
    begin = wallclock.now()
    log.info(f'compiling {plain.name}')
    plain.decode()
    until = wallclock.now() + FOR_TEXTS * budget
    for number in range(len(plain.batches)):
      if not number or wallclock.now() < until:
        run_round([plain], number)
    predictor = Predictor(plain)
    _predict(predictor, tried, begin + budget)
    _time(plain, tried, predictor.seconds, begin + budget)
    seconds = wallclock.now() - begin

  milliseconds = {}
  for nodes, call in sorted(predictor.calls.items()):
    milliseconds[f'{nodes} token' + 's' * (nodes > 1)] = 1e3 * predictor.unit * call
  table = [_make_figures(candidate, plain) for candidate in candidates]
  chosen, why = _choose(table)
  texts = np.concatenate([out.tokens for _, out in sorted(plain.texts.items())])
  return Tuned(
    name=chosen,
    why=why,
    plain=plain.name,
    promise='relaxed' if relaxed else promise_of(plain.strategy.effective_rule),
    rows=rows,
    max_len=plain.request.max_len,
    prompts=len(np.unique(plain.batches[[*plain.texts]])),  # some may fill up a batch
    seconds=seconds,
    compile_seconds=sum(candidate.compile_seconds for candidate in candidates),
    machine=machine.here(),
    table=tuple(table),
    call_ms=milliseconds,
    strategy=next(one.strategy for one in candidates if one.name == chosen),
    texts=tuple(map(tuple, texts.tolist())),
  )


def _list_candidates(
  target: Bound, inputs: Any, strategies: list[Any], rows: int, settings: Settings, relaxed: bool
) -> list[Candidate]:
  """Lists the plain strategy, which is the first, and the others. Each has a name of its own.

  Those that break the plain one's promise have a note. What cannot decode is refused.
  """
  # Texts have one width; pictures have one shape already.
  model, params = target
  if model.start_id is None or model.fixed_length is None:
    inputs = read_rows(model, make_prompt(model, inputs, None, None))
    lengths = np.array([*map(len, inputs)])
    last_that_fits = int(np.ceil(WIDEST * len(lengths))) - 1
    width = np.sort(choose_widths(PROMPTS, lengths))[last_that_fits]
    inputs = [row for row in inputs if len(row) <= width]
  order = np.random.default_rng(0).permutation(len(inputs))
  batches = np.resize(order, (max(len(order) // rows, 1), rows))[:BATCHES]

  plain, candidates = strategies[0], dict[str, Candidate]()
  for strategy in strategies:
    if not isinstance(strategy, LoopStrategy):
      name = type(strategy).__name__
      raise UserError(f'{name} ranks whole outputs, which tune cannot time: leave it out')
    if candidates and (strategy is plain or type(strategy) is type(plain) is Greedy):
      continue
    name, number = label(strategy), 2
    while name in candidates:
      name, number = f'{label(strategy)} {number}', number + 1
    try:
      request = prepare(model, params, inputs, strategy, settings)
    except UserError as error:
      raise UserError(f'{name}: {error}') from None
    candidates[name] = candidate = Candidate(name, request, batches)

    # Leave out what breaks the promise.
    wanted, kept = promise_of(plain.effective_rule), promise_of(strategy.effective_rule)
    if not relaxed and kept != wanted:
      candidate.note = f'its promise is {kept}, not {wanted}'
    elif not relaxed and kept == 'law' and strategy.sampling != plain.sampling:
      candidate.note = 'samples at other settings than the plain strategy'
  return [*candidates.values()]


def _predict(predictor: Predictor, candidates: list[Candidate], ends: float) -> None:
  """Predicts candidates in their order while there is time, and at least the first.

  Then calls like those of the most promising ones are timed. Until the first is, all cost as much
  as a call on one token, so that no candidate is passed over. The best ends up first.
  """
  compiling, until = predictor.plain.compile_seconds, ends - FOR_TIMES * (ends - wallclock.now())
  if until + compiling + 2 * LEAST * predictor.seconds > ends:
    until = ends
  for candidate in candidates:
    if not can_predict(candidate.strategy):
      candidate.note = 'not predicted: its calls do not follow from a text, or have several widths'
    elif any(len(one.steps) for one in candidates) and wallclock.now() + compiling > until:
      candidate.note = 'not predicted: the budget was not enough'
    else:
      predictor.replay(candidate)
      log.info(f'{candidate.name}: {candidate.tokens_per_call:.2f} tokens a call')

  while True:
    predictor.predict(candidates)
    candidates.sort(key=lambda one: -one.predicted)
    best = [one.strategy for one in candidates[:MOST_TIMED] if one.predicted]
    unknown = next((one for one in best if nodes_of(one) not in predictor.calls), None)
    is_late = wallclock.now() + OF_A_CALL * compiling > until
    if unknown is None or (is_late and len(predictor.calls) > 1):
      return
    predictor.time_call(unknown)
    nodes, ms = nodes_of(unknown), 1e3 * predictor.unit
    log.info(f'a call on {nodes} tokens takes {ms * predictor.calls[nodes]:.3g} ms')


def _time(plain: Candidate, candidates: Sequence[Candidate], seconds: float, ends: float) -> None:
  """Compiles the most promising candidates, and lets them decode in turn until one is ahead.

  Predictions err, so those that are nearly as good as the best are timed too. Candidates that could
  not be predicted follow."""
  wanted = []
  for candidate in candidates[:MOST_TIMED]:
    if ERROR * candidate.predicted > max(1.0, candidates[0].predicted):
      wanted.append(candidate)
  wanted += [one for one in candidates if not can_predict(one.strategy)]

  # The fewest rounds take their time too.
  racing, together = [plain], max(min(int(TURN / seconds), wallclock.TOGETHER), 1)
  for candidate in wanted:
    compiling = max(one.compile_seconds for one in racing)
    if wallclock.now() + compiling + LEAST * (1 + len(racing)) * together * seconds > ends:
      candidate.note = 'not timed: the budget was not enough to compile it'
      continue
    log.info(f'compiling {candidate.name}')
    candidate.decode()
    racing.append(candidate)

  if len(racing) == 1:
    return
  plain.speeds.clear()  # only times that were taken in turn are compared
  for number in range(max(VISITS * len(plain.batches) // together, LEAST)):
    if number >= LEAST and (wallclock.now() > ends or is_decided(racing)):
      return
    run_round(racing, number, together)


def _make_figures(candidate: Candidate, plain: Candidate) -> Figures:
  """Returns what was measured of a candidate, or else what is predicted."""
  figures = Figures(candidate.name, note=candidate.note, predicted=candidate.predicted or None)
  ratio = Ratio(candidate.predicted, 0.0, 0.0)
  if candidate.speeds:
    ratio = compare(candidate, plain)
  elif not candidate.predicted:
    return figures
  speed = ratio.value * statistics.median(plain.speeds)
  figures = replace(figures, ms_per_token=1e3 / speed, tokens_per_second=speed)
  if not candidate.speeds:
    return replace(figures, how='predicted', tokens_per_call=candidate.tokens_per_call)

  # Say where the prediction was wrong, and what was measured.
  error = candidate.predicted / ratio.value
  if error and not 1 / ERROR < error < ERROR:
    side = 'high' if error > 1 else 'low'
    figures = replace(figures, note=f'predicted {100 * abs(error - 1):.0f} % too {side}')
  outs, same = candidate.texts, None
  if isinstance(plain.strategy, Greedy):
    same = np.mean([(outs[one].tokens == plain.texts[one].tokens).all(1) for one in outs])
  tokens_per_call, steps = count_steps(outs.values())
  tokens = sum(int(out.lengths.sum()) for out in outs.values())
  return replace(
    figures, how='timed', tokens_per_call=tokens_per_call, speedup=ratio.value, low=ratio.low,
    high=ratio.high, ms_per_call=1e3 * tokens / speed / max(int(steps.sum()), 1), same=same,
    rounds=len(candidate.speeds), compile_seconds=candidate.compile_seconds,
  )  # fmt: skip


def _choose(table: Sequence[Figures]) -> tuple[str, str]:
  """Returns the name of the fastest, and why it is chosen."""
  plain, *others = table
  ahead = [one for one in others if (one.low or 0.0) > 1]
  if ahead:
    best = max(ahead, key=lambda one: one.speedup or 0.0)
    ratio = f'{best.speedup:.2f} times as fast as {plain.name}'
    return best.name, f'{best.name} is {ratio} ({best.low:.2f} to {best.high:.2f})'

  # Predictions err, and nothing is better known than what was timed.
  best = max(others, key=lambda one: one.predicted or 0.0, default=plain)
  if any(one.speedup is not None for one in others):
    why = 'nothing else was faster beyond noise'
  elif best.predicted is None:
    why = 'nothing else was predicted or timed'
  elif best.predicted <= ERROR:
    why = f'the best prediction is {best.predicted:.2f} times its speed'
  else:
    why = f'predicted to be {best.predicted:.2f} times as fast as {plain.name}'
    return best.name, f'{best.name} is {why}; the budget ended before it was timed'
  return plain.name, f'{plain.name} is kept: {why}'
