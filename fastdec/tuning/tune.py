"""The search for the strategy that is fastest on this machine, for a model and prompts.

    the plain strategy writes texts          compiled and timed: `Greedy`, or `Sample`
    all others are predicted on them         `tuning.prediction`, without the target's layers
    the most promising decode in turn        compiled and timed (`tuning.race`), while there is time

The fastest that was timed wins if it is ahead of the plain one beyond noise, so the answer is never
slower. If the budget ended before any was timed, the best prediction is the answer, if it is ahead
by more than predictions err. Candidates whose calls do not follow from a text are timed last.

Progress is logged as 'fastdec.tuning'.
"""

import logging
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax

from fastdec.decoding.description import label
from fastdec.decoding.methods.greedy import Greedy, Sample
from fastdec.decoding.protocol import Promise, promise_of
from fastdec.decoding.request import Settings, prepare
from fastdec.decoding.settings import Whole, count, is_number
from fastdec.decoding.strategy import LoopStrategy, read_strategy
from fastdec.errors import UserError
from fastdec.evaluation import machine, wallclock
from fastdec.evaluation.replay import can_replay
from fastdec.models.api import Model, Params, check_model
from fastdec.struct import Bound
from fastdec.tuning.prediction import Predictor
from fastdec.tuning.prompts import Batch, make_batches
from fastdec.tuning.race import LEAST, ONE, Candidate, Ratio, compare, is_decided, run_round
from fastdec.tuning.tuned import Figures, Tuned

BUDGET = 120.0  # seconds
FOR_TEXTS = 0.05  # of the budget, after compiling
FOR_PREDICTIONS = 0.5  # of the budget, after which no more are begun
MOST_TIMED = 3  # candidates, of those that can be predicted
VISITS = 3  # of each batch; more would change little
TURN = 0.2  # seconds that a candidate decodes in a row, if more than one batch
ERROR = 1.15  # ratio of a prediction to what is measured, at most
IN_WORDS: dict[Promise, str] = {'exact': 'exact', 'law': 'for sampling', 'relaxed': 'relaxed'}
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
  key = None
  if relaxed or drawing is not None:
    key = jax.random.key(0)
  batches = make_batches(model, inputs, rows, key)

  plain, *others = candidates = _list_candidates(
    Bound(model, params), drawing or Greedy(), strategies, batches, max_len, relaxed
  )
  tried = [candidate for candidate in others if not candidate.note]
  with wallclock.alone():
    begin = wallclock.now()
    _write_texts(plain, FOR_TEXTS * budget)
    predictor = Predictor(plain)
    _predict(predictor, tried, begin + FOR_PREDICTIONS * budget)
    _time(plain, tried, predictor.seconds, begin + budget)
    seconds = wallclock.now() - begin
  chosen, why = _choose(plain, tried)
  texts = []
  for _, out in sorted(plain.texts.items()):
    texts.extend(tuple(row.tolist()) for row in out.tokens)
  return Tuned(
    name=chosen.name,
    why=why,
    plain=plain.name,
    promise='relaxed' if relaxed else promise_of(plain.strategy.effective_rule),
    rows=rows,
    max_len=len(texts[0]),
    prompts=rows * len(plain.texts),
    seconds=seconds,
    compile_seconds=sum(candidate.compile_seconds for candidate in candidates),
    machine=machine.here(),
    table=tuple(_make_figures(candidate, plain) for candidate in candidates),
    call_ms=predictor.milliseconds,
    strategy=chosen.strategy,
    texts=tuple(texts),
  )


def _list_candidates(
  target: Bound,
  plain: Any,
  strategies: Sequence[Any],
  batches: Sequence[Batch],
  max_len: int | None,
  relaxed: bool,
) -> list[Candidate]:
  """Lists the plain strategy and the others, with notes of those that break its promise.

  They are named by labels; repeated labels get a number. What cannot decode is refused.
  """
  candidates = {label(plain): Candidate(label(plain), target, plain, batches, max_len)}
  for strategy in strategies:
    if not isinstance(strategy, LoopStrategy):
      name = type(strategy).__name__
      raise UserError(f'{name} ranks whole outputs, which tune cannot time: leave it out')
    if strategy is plain or (isinstance(strategy, Greedy) and isinstance(plain, Greedy)):
      continue
    name, number = label(strategy), 2
    while name in candidates:
      name, number = f'{label(strategy)} {number}', number + 1
    candidates[name] = candidate = Candidate(name, target, strategy, batches, max_len)

    # Leave out what breaks the promise, and refuse what cannot decode.
    wanted, kept = promise_of(plain.effective_rule), promise_of(strategy.effective_rule)
    if not relaxed and kept != wanted:
      candidate.note = f'not {IN_WORDS[wanted]}: its rule is {IN_WORDS[kept]}'
    elif not relaxed and kept == 'law' and strategy.sampling != plain.sampling:
      candidate.note = 'samples at other settings than the plain strategy'
    else:
      (model, params), batch = target, batches[0]
      settings = Settings(max_len=max_len, key=batch.keys)
      try:
        prepare(model, params, batch.inputs, strategy, settings, batch.lengths)
      except UserError as error:
        raise UserError(f'{name}: {error}') from None
  return [*candidates.values()]


def _write_texts(plain: Candidate, seconds: float) -> None:
  """Lets the plain strategy decode batches for some seconds, and at least one."""
  log.info(f'compiling {plain.name}')
  plain.compile()
  until, number = wallclock.now() + seconds, 0
  while not number or (number < len(plain.batches) and wallclock.now() < until):
    run_round([plain], number)
    number += 1


def _predict(predictor: Predictor, candidates: list[Candidate], until: float) -> None:
  """Predicts candidates in their order while there is time, and at least the first.

  Then calls like those of the most promising ones are timed. Until then a call costs no more than
  those that are known, so that no candidate is passed over. The best ends up first.
  """
  for candidate in candidates:
    if not can_replay(candidate.strategy):
      candidate.note = 'not predicted: its calls do not follow from a text'
    elif predictor.predicted and wallclock.now() > until:
      candidate.note = 'not predicted: the budget was not enough'
    else:
      predictor.replay(candidate)
      log.info(f'{candidate.name}: {candidate.tokens_per_call:.2f} tokens a call')

  while True:
    candidates.sort(key=lambda one: -one.predicted)
    unknown = [one.shape for one in candidates[:MOST_TIMED] if one.shape not in predictor.calls]
    if not unknown or (len(predictor.calls) > 1 and wallclock.now() > until):
      return
    predictor.time_call(unknown[0])
    ratio = predictor.calls[unknown[0]] / max(predictor.calls[ONE], 1e-9)
    log.info(f'a call on {unknown[0]} takes {ratio:.2f} times as long as one on {ONE}')


def _time(
  plain: Candidate, candidates: Sequence[Candidate], call_seconds: float, ends: float
) -> None:
  """Compiles the most promising candidates, and lets them decode in turn until one is ahead.

  Predictions err, so those that are nearly as good as the best are timed too. Candidates that could
  not be replayed follow."""
  wanted = []
  for candidate in candidates[:MOST_TIMED]:
    if ERROR * candidate.predicted > max(1.0, candidates[0].predicted):
      wanted.append(candidate)
  wanted += [one for one in candidates if not can_replay(one.strategy)]

  # The fewest rounds take their time too. A program takes about twice as long to compile as a call.
  racing, seconds = [plain], float(plain.texts[0].lengths.sum()) / min(plain.speeds)
  together = max(min(int(TURN / seconds), wallclock.TOGETHER), 1)
  for candidate in wanted:
    compiling = max(2 * call_seconds, *(one.compile_seconds for one in racing))
    needed = compiling + LEAST * (1 + len(racing)) * together * seconds
    if wallclock.now() + needed > ends:
      candidate.note = 'not timed: the budget was not enough to compile it'
      continue
    log.info(f'compiling {candidate.name}')
    candidate.compile()
    racing.append(candidate)

  if len(racing) == 1:
    return
  plain.speeds.clear()  # only times that were taken in turn are compared
  for number in range(max(VISITS * len(plain.batches) // together, LEAST)):
    if number >= LEAST and (wallclock.now() > ends or is_decided(racing)):
      return
    run_round(racing, number, together)


def _choose(plain: Candidate, candidates: Sequence[Candidate]) -> tuple[Candidate, str]:
  """Returns the fastest candidate, and why it is chosen."""
  best, highest = plain, Ratio(1.0, 1.0, 1.0)
  timed = [candidate for candidate in candidates if candidate.speeds]
  for candidate in timed:
    ratio = compare(candidate, plain)
    if ratio.low > 1 and ratio.value > highest.value:
      best, highest = candidate, ratio
  if best is not plain:
    value, low, high = highest
    why = f'{value:.2f} times as fast as {plain.name} ({low:.2f} to {high:.2f})'
    return best, f'{best.name} is {why}'

  # The best prediction is first, but nothing is better known than what was timed.
  if candidates and not timed and candidates[0].predicted > ERROR:
    best = candidates[0]
    why = f'predicted to be {best.predicted:.2f} times as fast as {plain.name}'
    return best, f'{best.name} is {why}; the budget ended before it was timed'
  if not candidates:
    why = 'there is nothing else that keeps the promise'
  elif timed:
    why = 'nothing else was faster beyond noise'
  elif candidates[0].predicted:
    why = f'the best prediction is {candidates[0].predicted:.2f} times its speed'
  else:
    why = 'the budget ended before anything else was tried'
  return plain, f'{plain.name} is kept: {why}'


def _make_figures(candidate: Candidate, plain: Candidate) -> Figures:
  """Returns what was measured of a candidate, or else what is predicted."""
  figures = Figures(candidate.name, note=candidate.note)
  measured = Ratio(candidate.predicted, 0.0, 0.0)
  if candidate.speeds:
    measured = compare(candidate, plain)
  if not measured.value:
    return figures
  speed = measured.value * statistics.median(plain.speeds)
  figures = replace(
    figures, how='predicted', tokens_per_call=candidate.tokens_per_call, ms_per_token=1e3 / speed,
    tokens_per_second=speed, predicted=candidate.predicted or None,
  )  # fmt: skip
  if not candidate.speeds:
    return figures

  # The prompt's call, which is not counted, writes a row's first token. A batch runs until its
  # slowest row is done.
  tokens, calls, steps, rows, same = 0, 0, 0, 0, 0
  for number, out in candidate.texts.items():
    tokens += int(out.lengths.sum())
    calls += int(out.calls.sum())
    steps += int(out.calls.max())
    rows += len(out.calls)
    same += int((out.tokens == plain.texts[number].tokens).all(1).sum())
  error = candidate.predicted / measured.value
  if error and not 1 / ERROR < error < ERROR:
    side = 'high' if error > 1 else 'low'
    figures = replace(figures, note=f'predicted {100 * abs(error - 1):.0f} % too {side}')
  return replace(
    figures, how='timed', tokens_per_call=(tokens - rows) / max(calls, 1),
    ms_per_call=1e3 * tokens / speed / max(steps, 1), speedup=measured.value, low=measured.low,
    high=measured.high, same=same / rows if isinstance(plain.strategy, Greedy) else None,
    rounds=len(candidate.speeds), compile_seconds=candidate.compile_seconds,
  )  # fmt: skip
