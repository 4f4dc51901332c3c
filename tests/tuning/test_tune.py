"""Tuning on models without weights: the candidates, the counts, and the notes of the table."""

import logging

import numpy as np
import pytest

import fastdec as fd
from fastdec.tuning.entrants import Entrant
from fastdec.tuning.race import Race
from tests.decoding.fakes import HashLM
from tests.decoding.methods_table import hash_kit

MODEL, PARAMS = HashLM(), {}
PROMPTS = [[2 + i % 11, 3 + i // 11, 5] for i in range(12)]
LOOKUP = fd.PromptLookup(2, 4)
HEADS = hash_kit().heads('separate')
RELAXED = [
  fd.Blockwise(HEADS, 3, fd.TopN(2)),
  fd.Blockwise(HEADS, 3, fd.Distance(1)),
  fd.Blockwise(HEADS, 3, fd.MinBlock(fd.Exact(), 2)),
  fd.Medusa(HEADS, [[0]], fd.Typical()),
  fd.Speculative(hash_kit().draft, 2, rule=fd.Rejection(0.5)),
]
DRAWN = fd.PromptLookup(sampling=fd.Sampling(1.0))


@pytest.fixture
def tune(ticks):
  """`fd.tune` on such a clock."""

  def tune(strategies, prompts=PROMPTS, **settings):
    return fd.tune(MODEL, PARAMS, strategies, prompts, max_len=8, **settings)

  return tune


def test_exact_lets_no_relaxed_rule_take_part(tune, monkeypatch):
  """A relaxed candidate is not even run, however fast it would be."""
  ran = []
  monkeypatch.setattr(
    Race,
    'choose_winner',
    lambda race: ran.extend(race.seconds) or (list(race.seconds)[-1], 'of this test'),
  )
  tuned = tune([*RELAXED, DRAWN, LOOKUP])
  assert ran == ['Greedy', 'PromptLookup(ngram=2, k=4)'] and tuned.promise == 'exact'
  assert len(tuned.table) == 8
  for one in tuned.table[1:-1]:
    assert one.note.startswith('not exact: its rule is ') and one.rounds == 0
  assert tuned.name == ran[-1] and tuned.strategy is LOOKUP


def test_sampling_takes_only_strategies_that_draw_from_the_same_law(tune):
  same = fd.PromptLookup(2, 4, sampling=fd.Sampling(0.7, top_k=5))
  hotter = fd.PromptLookup(2, 4, sampling=fd.Sampling(0.8, top_k=5))
  plain = fd.Sample(0.7, top_k=5)
  tuned = tune([same, hotter, LOOKUP, DRAWN, *RELAXED, plain, fd.Greedy()])
  assert tuned.promise == 'law' and tuned.plain == 'Sample(temperature=0.7, top_k=5)'
  ran = [one.name for one in tuned.table if one.rounds]
  assert ran == [tuned.plain, 'PromptLookup(ngram=2, k=4, temperature=0.7, top_k=5)']
  notes = [one.note for one in tuned.table[2:5]]
  assert notes[0] == notes[2] == 'samples at other settings than the plain strategy'
  assert notes[1] == tuned.table[-1].note == 'not for sampling: its rule is exact'
  assert all(one.same is None for one in tuned.table)


@pytest.mark.slow
def test_relaxed_takes_all_and_what_is_counted_is_what_decode_writes(tune):
  strategies = [fd.Greedy(), LOOKUP, RELAXED[0]]
  tuned = tune(strategies[1:], relaxed=True)
  assert tuned.promise == 'relaxed' and all(one.rounds for one in tuned.table)
  plain = [fd.decode(MODEL, PARAMS, [prompt], fd.Greedy(), max_len=8) for prompt in PROMPTS]
  for one, strategy in zip(tuned.table, strategies, strict=True):
    rows = [fd.decode(MODEL, PARAMS, [prompt], strategy, max_len=8) for prompt in PROMPTS]
    calls = sum(int(out.calls[0]) for out in rows)
    later = sum(int(out.lengths[0]) - 1 for out in rows)
    assert one.tokens_per_call == pytest.approx(later / calls)
    same = [(a.tokens == b.tokens).all() for a, b in zip(rows, plain, strict=True)]
    assert one.same == np.mean(same)
  assert tuned.table[0].same == tuned.table[1].same == 1 and tuned.table[2].same < 1
  texts = {tuple(out.tokens[0].tolist()) for out in plain}
  assert set(tuned.texts) == texts and len(tuned.texts) == len(PROMPTS)


def test_where_all_take_as_long_greedy_is_kept_and_the_reason_is_named(tune):
  tuned = tune([LOOKUP, LOOKUP])
  assert tuned.name == 'Greedy' and isinstance(tuned.strategy, fd.Greedy)
  assert tuned.why == 'Greedy is kept: nothing else was faster beyond noise'
  assert '> Greedy' in str(tuned) and '  PromptLookup(ngram=2, k=4) 2' in str(tuned)
  assert tuned.tokens_per_second == tuned.table[0].tokens_per_second


def test_with_few_prompts_greedy_is_kept_and_the_reason_is_named(tune):
  tuned = tune([LOOKUP], PROMPTS[:3] * 9)  # the same ones again tell nothing
  assert tuned.name == 'Greedy' and tuned.prompts == 3
  assert 'there are 3 batches of prompts, too few to tell candidates apart' in tuned.why


def test_rows_are_decoded_together(tune):
  tuned = tune([LOOKUP], rows=2)
  assert tuned.rows == 2 and tuned.prompts == 12 and tuned.table[1].same == 1


def test_half_of_the_time_compiles_and_who_is_compiled_late_joins_the_race(ticks):
  """Compiling takes 10 seconds of 39: two candidates at first, a third when these have raced, and
  never a fourth."""
  clock, log = ticks(0.01), logging.getLogger('fastdec.tuning')

  class Slow(logging.Handler):
    def emit(self, record):
      clock.now += 10 * record.getMessage().startswith('compiling')

  slow, level = Slow(), log.level
  log.addHandler(slow)
  log.setLevel(logging.INFO)
  try:
    strategies = [fd.PromptLookup(2, k) for k in (2, 3, 4)]
    tuned = fd.tune(MODEL, PARAMS, strategies, PROMPTS, max_len=8, budget=39)
  finally:
    log.removeHandler(slow)
    log.setLevel(level)
  greedy, first, second, third = (one.rounds for one in tuned.table)
  assert greedy == first > second >= len(PROMPTS) and third == 0
  assert tuned.table[-1].note == 'not run: the budget was not enough to compile it'
  assert tuned.compile_seconds == pytest.approx(30, abs=1)


def test_no_more_is_compiled_than_there_is_time_to_tell_apart(ticks, monkeypatch):
  """A candidate compiles for 10 seconds and takes 4 for a batch: two of four fit into 75 seconds
  with five rounds, and with less a sentence says what all need."""
  decode = Entrant.__call__

  def slowly(entrant, number):
    clock.now += 4 if entrant.texts else 14
    return decode(entrant, number)

  monkeypatch.setattr(Entrant, '__call__', slowly)
  strategies = [fd.PromptLookup(2, k) for k in (2, 3, 4)]
  for budget, rounds, why in (
    (75, 5, 'else was faster'),
    (50, 2, 'candidates need about 3 minutes'),
  ):
    clock = ticks(0.01)
    tuned = fd.tune(MODEL, PARAMS, strategies, PROMPTS, max_len=8, budget=budget)
    assert [one.rounds for one in tuned.table] == [rounds, rounds, 0, 0]
    assert why in tuned.why and tuned.seconds < budget


def test_a_budget_too_small_for_one_round_is_a_sentence(ticks):
  ticks(1.0)
  message = r'compiling 1 of 2 candidates took \d+ s, so give about a minute, or fewer candidates'
  with pytest.raises(fd.UserError, match=message):
    fd.tune(MODEL, PARAMS, [LOOKUP], PROMPTS, max_len=8, budget=2)


@pytest.mark.parametrize('settings, message', [
  ({'budget': 0}, 'budget=0 is not possible'),
  ({'budget': float('nan')}, 'budget=nan is not possible'),
  ({'rows': 0}, 'rows=0 is not possible'),
  ({'rows': (1, 2)}, 'is not possible: give 1 or more'),
  ({'prompts': []}, 'tune needs inputs'),
  ({'prompts': [[2], []]}, 'prompt 1 is empty'),
  ({'prompts': [[99]]}, 'inputs have ids from 99 to 99'),
  ({'strategies': [fd.Beam()]}, 'Beam ranks whole outputs'),
  ({'strategies': [fd.Greedy]}, 'is not a strategy'),
  ({'strategies': [fd.LinearForecast()]}, r'^LinearForecast: this model makes no forecasts'),
])  # fmt: skip
def test_mistakes_are_one_sentence(tune, settings, message):
  with pytest.raises(fd.UserError, match=message):
    tune(settings.pop('strategies', []), **settings)
