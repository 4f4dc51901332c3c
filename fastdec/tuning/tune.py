"""The search for the strategy that is fastest on this machine, for a model and prompts.

    the plain strategy writes texts          compiled and timed: `Greedy`, or `Sample`
    all others are predicted on them         `tuning.prediction`, without the target's layers
    the most promising decode in turn        compiled and timed (`tuning.race`), while there is time

A candidate that is timed wins if it is ahead of the plain one beyond noise, so the answer is never
slower. If none could be timed, the best prediction is the answer, if it is ahead by more than
predictions err. Candidates whose calls do not follow from a text are timed last.

Progress is logged as 'fastdec.tuning'.
"""

import logging
import math
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
from fastdec.tuning.race import LEAST, ONE, Candidate, compare, is_decided, run_round
from fastdec.tuning.tuned import Figures, Tuned

BUDGET = 120.0  # seconds
FOR_TEXTS, FOR_REPLAYS = 0.15, 0.5  # of the budget, after which no more are begun
MOST_TIMED = 3  # candidates, of those that can be predicted
ERROR = 1.15  # ratio of a prediction to what is measured, at most
IN_WORDS: dict[Promise, str] = {'exact': 'exact', 'law': 'for sampling', 'relaxed': 'relaxed'}
log = logging.getLogger('fastdec.tuning')


class OutOfTime(UserError):
  """The budget ended before anything was predicted."""


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
    budget: seconds for everything, compiling included.

  Raises:
    UserError: no inputs, a candidate that cannot decode them, or (`OutOfTime`) a budget that ends
      before anything is predicted.
  """
  start = wallclock.now()
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

  # Leave out what breaks the promise, and refuse what cannot decode.
  plain, *others = candidates = _list_candidates(
    Bound(model, params), drawing or Greedy(), strategies, batches, max_len
  )
  tried = []
  for candidate in others:
    if not relaxed:
      candidate.note = _find_broken_promise(candidate.strategy, plain.strategy)
    if not candidate.note:
      tried.append(candidate)
      settings = Settings(max_len=max_len, key=batches[0].keys)
      try:
        prepare(model, params, batches[0].inputs, candidate.strategy, settings, batches[0].lengths)
      except UserError as error:
        raise UserError(f'{candidate.name}: {error}') from None

  # The plain strategy writes texts, the others are predicted on them, and the best are timed.
  log.info(f'compiling {plain.name}')
  plain.compile()
  asked_at = wallclock.now()
  with wallclock.alone():
    start += wallclock.now() - asked_at  # the budget does not count waiting for other programs
    until, written = wallclock.now() + FOR_TEXTS * budget, 0
    while not written or (written < len(batches) and wallclock.now() < until):
      run_round([plain], written)
      written += 1
  predictor = Predictor(plain)
  _predict(predictor, tried, start + FOR_REPLAYS * budget, start + budget)
  _time(plain, tried, start + budget)
  if tried and not any(one.prediction.speedup or one.seconds for one in tried):
    wanted = (2 + MOST_TIMED) * plain.compile_seconds
    raise OutOfTime(
      f'the budget ended before a candidate was tried: compiling {plain.name} took'
      f' {plain.compile_seconds:.0f} s, so give about {math.ceil(wanted)} s'
    )
  chosen, why = _choose(plain, tried)
  texts = []
  for _, out in sorted(plain.texts.items()):
    texts.extend(out.tokens)
  return Tuned(
    name=chosen.name,
    why=why,
    plain=plain.name,
    promise='relaxed' if relaxed else promise_of(plain.strategy.effective_rule),
    rows=rows,
    max_len=len(texts[0]),
    prompts=rows * len(plain.seconds),
    seconds=wallclock.now() - start,
    compile_seconds=sum(candidate.compile_seconds for candidate in candidates),
    machine=machine.here(),
    table=tuple(_make_figures(candidate, plain) for candidate in candidates),
    call_ms=predictor.milliseconds,
    strategy=chosen.strategy,
    texts=tuple(tuple(row.tolist()) for row in texts),
  )


def _list_candidates(
  target: Bound,
  plain: Any,
  strategies: Sequence[Any],
  batches: Sequence[Batch],
  max_len: int | None,
) -> list[Candidate]:
  """Lists the plain strategy and the others, named by labels; repeated labels get a number."""
  named = {label(plain): plain}
  for strategy in strategies:
    if not isinstance(strategy, LoopStrategy):
      name = type(strategy).__name__
      raise UserError(f'{name} ranks whole outputs, which tune cannot time: leave it out')
    if strategy is plain or (isinstance(strategy, Greedy) and isinstance(plain, Greedy)):
      continue
    name, number = label(strategy), 2
    while name in named:
      name, number = f'{label(strategy)} {number}', number + 1
    named[name] = strategy
  return [Candidate(name, target, one, batches, max_len) for name, one in named.items()]


def _find_broken_promise(strategy: LoopStrategy, plain: Any) -> str:
  """Returns how a candidate breaks the plain strategy's promise; '' if it keeps it."""
  wanted, kept = promise_of(plain.effective_rule), promise_of(strategy.effective_rule)
  if kept != wanted:
    return f'not {IN_WORDS[wanted]}: its rule is {IN_WORDS[kept]}'
  if kept == 'law' and strategy.sampling != plain.sampling:
    return 'samples at other settings than the plain strategy'
  return ''


def _predict(
  predictor: Predictor, candidates: Sequence[Candidate], until: float, ends: float
) -> None:
  """Predicts candidates in their order while there is time, and at least the first.

  Then calls like those of the most promising ones are timed. Until then a call costs no more than
  those that are known, so that no candidate is passed over.
  """
  predicted = []
  for candidate in candidates:
    if not can_replay(candidate.strategy):
      candidate.note = 'not predicted: its calls do not follow from a text'
    elif predicted and wallclock.now() > until:
      candidate.note = 'not predicted: the budget was not enough'
    else:
      candidate.prediction = predictor.replay(candidate.strategy)
      predicted.append(candidate)
      log.info(f'{candidate.name}: {candidate.prediction.tokens_per_call:.2f} tokens a call')
  while True:
    for candidate in predicted:
      candidate.prediction = predictor.weigh(candidate.prediction)
    shapes = [one.prediction.shape for one in _rank(predicted)[:MOST_TIMED]]
    unknown = [shape for shape in shapes if shape not in predictor.calls]
    # Where time is short, a candidate's own time tells more than a call's.
    has_time = wallclock.now() + 2 * predictor.plain.compile_seconds < ends
    if not unknown or not has_time or (len(predictor.calls) > 1 and wallclock.now() > until):
      return
    predictor.time_call(unknown[0])
    ratio = predictor.calls[unknown[0]] / max(predictor.calls[ONE], 1e-9)
    log.info(f'a call on {unknown[0]} takes {ratio:.2f} times as long as a call on one token')


def _rank(candidates: Sequence[Candidate]) -> list[Candidate]:
  """Returns the predicted candidates, the best first."""
  predicted = [one for one in candidates if one.prediction.speedup]
  return sorted(predicted, key=lambda one: -one.prediction.speedup)


def _time(plain: Candidate, candidates: Sequence[Candidate], ends: float) -> None:
  """Compiles the most promising candidates, and lets them decode in turn until one is ahead.

  Predictions err, so those that are nearly as good as the best are timed too. Candidates that could
  not be replayed follow."""
  wanted, ranked = [], _rank(candidates)
  for candidate in ranked[:MOST_TIMED]:
    if ERROR * candidate.prediction.speedup > max(1.0, ranked[0].prediction.speedup):
      wanted.append(candidate)
  wanted += [one for one in candidates if not can_replay(one.strategy)]

  racing, rounds = [plain], 0
  for candidate in wanted:
    if wallclock.now() + max(one.compile_seconds for one in racing) > ends:
      candidate.note = 'not timed: the budget was not enough to compile it'
      continue
    log.info(f'compiling {candidate.name}')
    candidate.compile()
    if len(racing) == 1:
      plain.seconds.clear()  # only times that were taken in turn are compared
    racing.append(candidate)
    with wallclock.alone():
      run_round(racing, rounds)
    rounds += 1
  least = rounds + LEAST  # after all that compiling, a few rounds more make times comparable
  with wallclock.alone():
    while not is_decided(racing) and (rounds < least or wallclock.now() < ends):
      run_round(racing, rounds)
      rounds += 1


def _choose(plain: Candidate, candidates: Sequence[Candidate]) -> tuple[Candidate, str]:
  """Returns the fastest candidate, and why it is chosen."""
  if not candidates:
    reason = 'there is nothing else that keeps the promise'
    return plain, f'{plain.name} is kept: {reason}'
  timed = [(one, compare(one, plain)) for one in candidates if one.seconds]
  best, ratio = max(
    timed, key=lambda pair: pair[1].value * (pair[1].low > 1), default=(plain, None)
  )
  if ratio is not None and ratio.low > 1:
    return best, (
      f'{best.name} is {ratio.value:.2f} times as fast as {plain.name} ({ratio.low:.2f} to'
      f' {ratio.high:.2f})'
    )

  # Nothing that was timed is faster. Predictions are trusted as far as those of what was timed.
  trust = 1.0
  for one, ratio in timed:
    if one.prediction.speedup:
      trust = min(trust, ratio.value / one.prediction.speedup)
  waiting = [one for one in _rank(candidates) if not one.seconds]
  if waiting and trust * waiting[0].prediction.speedup > ERROR:
    best = waiting[0]
    return best, (
      f'{best.name} is predicted to be {best.prediction.speedup:.2f} times as fast as {plain.name};'
      ' the budget ended before it was timed'
    )
  if timed:
    return plain, f'{plain.name} is kept: nothing else was faster beyond noise'
  return plain, (
    f'{plain.name} is kept: the best prediction is {waiting[0].prediction.speedup:.2f} times its'
    ' speed'
  )


def _make_figures(candidate: Candidate, plain: Candidate) -> Figures:
  """Returns what was measured of a candidate, or else what is predicted."""
  figures, prediction = Figures(candidate.name, note=candidate.note), candidate.prediction
  if prediction.speedup:
    speed = plain.tokens_per_second * prediction.speedup
    figures = replace(
      figures, how='predicted', tokens_per_call=prediction.tokens_per_call,
      ms_per_token=1e3 / speed, tokens_per_second=speed, predicted=prediction.speedup,
    )  # fmt: skip
  if not candidate.seconds:
    return figures

  # The prompt's call, which is not counted, writes a row's first token. A batch runs until its
  # slowest row is done.
  texts = [candidate.texts[number] for number in candidate.seconds]
  calls = sum(int(out.calls.sum()) for out in texts)
  measured = compare(candidate, plain)
  speed = plain.tokens_per_second * measured.value
  figures = replace(
    figures, how='timed', ms_per_token=1e3 / speed, tokens_per_second=speed,
    speedup=measured.value, low=measured.low, high=measured.high,
    same=candidate.agreement(plain), rounds=sum(map(len, candidate.seconds.values())),
    compile_seconds=candidate.compile_seconds,
  )  # fmt: skip
  if calls:
    tokens = sum(int((out.lengths - 1).sum()) for out in texts)
    steps = sum(int(out.calls.max()) for out in texts)
    seconds = candidate.seconds_of(list(candidate.seconds)).sum()
    figures = replace(figures, tokens_per_call=tokens / calls, ms_per_call=1e3 * seconds / steps)
  error = prediction.speedup / measured.value
  if error and not 1 / ERROR < error < ERROR:
    side = 'high' if error > 1 else 'low'
    figures = replace(figures, note=f'predicted {100 * abs(error - 1):.0f} % too {side}')
  return figures
