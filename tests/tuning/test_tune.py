"""Tuning on models without weights: candidates, their predictions, the choice, and the notes."""

import dataclasses

import numpy as np
import pytest

import fastdec as fd
from fastdec.decoding.request import Settings, prepare
from fastdec.decoding.strategy import nodes_of
from fastdec.tuning import tune as tuning
from fastdec.tuning.race import Candidate
from fastdec.tuning.tuned import Figures
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


def test_exact_lets_no_relaxed_rule_take_part(tune):
  """A relaxed candidate is neither predicted nor run, however fast it would be."""
  tuned = tune([*RELAXED, DRAWN, LOOKUP])
  assert tuned.promise == 'exact' and len(tuned.table) == 8
  for one in tuned.table[1:-1]:
    assert one.note.startswith('its promise is ') and one.how == ''
  assert tuned.table[-1].name == 'PromptLookup(ngram=2, k=4)' and tuned.table[-1].how


def test_sampling_takes_only_strategies_that_draw_from_the_same_law(tune):
  same = fd.PromptLookup(2, 4, sampling=fd.Sampling(0.7, top_k=5))
  hotter = fd.PromptLookup(2, 4, sampling=fd.Sampling(0.8, top_k=5))
  plain = fd.Sample(0.7, top_k=5)
  tuned = tune([same, hotter, LOOKUP, DRAWN, *RELAXED, plain, fd.Greedy()])
  assert tuned.promise == 'law' and tuned.plain == 'Sample(temperature=0.7, top_k=5)'
  ran = [one.name for one in tuned.table if one.how]
  assert ran == [tuned.plain, 'PromptLookup(ngram=2, k=4, temperature=0.7, top_k=5)']
  notes = [one.note for one in tuned.table[2:5]]
  assert notes[0] == notes[2] == 'samples at other settings than the plain strategy'
  assert notes[1] == tuned.table[-1].note == 'its promise is exact, not law'
  assert all(one.same is None for one in tuned.table)


@pytest.mark.slow
def test_relaxed_takes_all_and_what_is_counted_is_what_decode_writes(tune):
  strategies = [fd.Greedy(), LOOKUP, RELAXED[0]]
  tuned = tune(strategies[1:], relaxed=True)
  assert tuned.promise == 'relaxed' and all(one.how for one in tuned.table)
  plain = [fd.decode(MODEL, PARAMS, [prompt], fd.Greedy(), max_len=8) for prompt in PROMPTS]
  for one, strategy in zip(tuned.table, strategies, strict=True):
    rows = [fd.decode(MODEL, PARAMS, [prompt], strategy, max_len=8) for prompt in PROMPTS]
    calls = sum(int(out.calls[0]) for out in rows)
    later = sum(int(out.lengths[0]) - 1 for out in rows)
    assert one.tokens_per_call == pytest.approx(later / calls)
    same = [(a.tokens == b.tokens).all() for a, b in zip(rows, plain, strict=True)]
    if one.how == 'timed':
      assert one.same == np.mean(same)
  texts = {tuple(out.tokens[0].tolist()) for out in plain}
  assert set(tuned.texts) == texts and len(tuned.texts) == len(PROMPTS)


@pytest.mark.parametrize('rows', [1, 2])
def test_a_prediction_has_the_calls_of_a_decode(tune, monkeypatch, rows):
  """A replay counts the steps of `decode`; a batch runs until its slowest row ends."""
  candidates = []
  monkeypatch.setattr(tuning, '_time', lambda plain, tried, *_: candidates.extend(tried))
  tuned = tune([LOOKUP, fd.Blockwise(HEADS, 3)], rows=rows, budget=600)
  assert [one.how for one in tuned.table] == ['timed', 'predicted', 'predicted']
  for candidate in candidates:
    for number, steps in enumerate(candidate.steps):
      run = candidate.begin(number)
      run.advance()
      assert steps == run.decoded.calls.max()
  assert {nodes_of(one.strategy) for one in candidates} == {4, 3}
  assert list(tuned.call_ms) == ['1 token', '3 tokens', '4 tokens']


REQUEST = prepare(MODEL, PARAMS, PROMPTS, fd.Greedy(), Settings(max_len=8))
BATCHES = np.zeros((1, 1), int)


@pytest.mark.parametrize('predicted, measured, name, why', [
  ({'a': 1.9, 'b': 1.8}, {'a': (1.5, 1.4, 1.6), 'b': (1.7, 1.6, 1.8)}, 'b',
   'b is 1.70 times as fast as Greedy (1.60 to 1.80)'),
  ({'a': 1.9}, {'a': (1.1, 0.9, 1.2)}, 'Greedy', 'nothing else was faster beyond noise'),
  ({'a': 1.9, 'b': 1.8}, {}, 'a', 'a is predicted to be 1.90 times as fast as Greedy'),
  ({'a': 1.1}, {}, 'Greedy', 'Greedy is kept: the best prediction is 1.10 times its speed'),
  # where the best prediction was wrong, others are not trusted
  ({'a': 2.0, 'b': 1.9}, {'a': (0.8, 0.7, 0.9)}, 'Greedy', 'nothing else was faster'),
  ({'a': None}, {}, 'Greedy', 'Greedy is kept: nothing else was predicted or timed'),
  ({}, {}, 'Greedy', 'Greedy is kept: nothing else was predicted or timed'),
])  # fmt: skip
def test_the_fastest_measured_one_is_chosen_else_the_best_prediction(
  predicted, measured, name, why
):
  table = [Figures('Greedy', 'timed', speedup=1.0, low=1.0, high=1.0)]
  for other, ratio in predicted.items():
    figures = Figures(other, predicted=ratio)
    if other in measured:
      speedup, low, high = measured[other]
      figures = dataclasses.replace(figures, speedup=speedup, low=low, high=high)
    table.append(figures)
  chosen = tuning._choose(table)
  assert chosen[0] == name and why in chosen[1]


def test_where_all_take_as_long_greedy_is_kept_and_the_reason_is_named(tune):
  tuned = tune([LOOKUP, LOOKUP])
  assert tuned.name == 'Greedy' and isinstance(tuned.strategy, fd.Greedy)
  assert tuned.why.startswith('Greedy is kept: ')
  assert '> Greedy' in str(tuned) and '  PromptLookup(ngram=2, k=4) 2' in str(tuned)
  assert tuned.tokens_per_second == tuned.table[0].tokens_per_second


def test_a_prediction_that_was_wrong_says_so():
  out = fd.decode(MODEL, PARAMS, PROMPTS[:1], fd.Greedy(), max_len=8)
  plain = Candidate('Greedy', REQUEST, BATCHES, speeds=[100.0])
  one = dataclasses.replace(plain, name='a', predicted=2.0, speeds=[])
  figures = tuning._make_figures(one, plain)
  assert (figures.how, figures.predicted, figures.speedup) == ('predicted', 2.0, None)
  assert figures.tokens_per_second == 200
  one.speeds, plain.texts, one.texts = [125.0], {0: out}, {0: out}
  figures = tuning._make_figures(one, plain)
  assert (figures.how, figures.speedup, figures.same) == ('timed', 1.25, 1.0)
  assert figures.note == 'predicted 60 % too high'


def test_a_call_wider_than_the_texts_have_room_for_costs_in_proportion(tune):
  """Texts of eight tokens have slots for sixteen."""
  tuned = tune([fd.PromptLookup(2, 400)])
  assert list(tuned.call_ms) == ['1 token', '400 tokens'] and tuned.table[1].predicted


def test_rows_are_decoded_together(tune):
  tuned = tune([LOOKUP], rows=2)
  assert tuned.rows == 2 and tuned.prompts == 12 and len(tuned.texts) == 12


def test_the_budget_is_spent_on_texts_then_predictions_then_times(ticks, monkeypatch):
  """Each program compiles for 10 seconds, so that 39 are enough for two candidates of three."""
  clock = ticks(0.001)
  begin = Candidate.begin

  def begin_slowly(candidate, number):
    clock.now += 10 * (not candidate.texts)
    return begin(candidate, number)

  monkeypatch.setattr(Candidate, 'begin', begin_slowly)
  widths = fd.Adaptive(fd.PromptLookup(2, 3), costs={1: 1.0, 3: 1.5})
  strategies = [fd.Jacobi(2), widths, fd.Jacobi(4)]
  tuned = fd.tune(MODEL, PARAMS, strategies, PROMPTS, max_len=8, budget=39)
  assert [one.how for one in tuned.table] == ['timed', 'timed', 'timed', '']
  assert tuned.table[-1].note == 'not timed: the budget was not enough to compile it'
  assert tuned.seconds < 39 and tuned.compile_seconds == pytest.approx(30, abs=0.1)


def test_a_budget_too_small_for_one_round_keeps_greedy(ticks):
  ticks(1.0)
  tuned = fd.tune(MODEL, PARAMS, [fd.Jacobi(2)], PROMPTS, max_len=8, budget=2)
  assert tuned.why == 'Greedy is kept: nothing else was predicted or timed'
  assert tuned.table[-1].note == 'not timed: the budget was not enough to compile it'


@pytest.mark.parametrize('settings, message', [
  ({'budget': 0}, 'budget=0 is not possible'),
  ({'budget': float('nan')}, 'budget=nan is not possible'),
  ({'rows': 0}, 'rows=0 is not possible'),
  ({'rows': (1, 2)}, 'is not possible: give 1 or more'),
  ({'prompts': []}, 'inputs must be integer ids of shape'),
  ({'prompts': [[2], []]}, 'prompt 1 is empty'),
  ({'prompts': [[99]]}, 'inputs have ids from 99 to 99'),
  ({'strategies': [fd.Beam()]}, 'Beam ranks whole outputs'),
  ({'strategies': [fd.Greedy]}, 'is not a strategy'),
  ({'strategies': [fd.LinearForecast()]}, r'^LinearForecast: this model makes no forecasts'),
])  # fmt: skip
def test_mistakes_are_one_sentence(tune, settings, message):
  with pytest.raises(fd.UserError, match=message):
    tune(settings.pop('strategies', []), **settings)
