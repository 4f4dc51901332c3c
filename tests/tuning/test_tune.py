"""Tuning on models without weights: who takes part, what is counted, what is said, and what is kept
in JSON."""

import dataclasses
import json

import jax
import numpy as np
import pytest

import fastdec as fd
from fastdec import folders
from fastdec.decoding.rules.matching import Exact
from fastdec.tuning import description, tuned
from fastdec.tuning.race import Race
from tests.decoding.fakes import HashLM, Imitation
from tests.decoding.methods_table import LOSSLESS, hash_kit

MODEL, PARAMS = HashLM(), {}
PROMPTS = [[2 + i % 11, 3 + i // 11, 5] for i in range(12)]


class Ticks:
  """A clock on which every look takes as long."""

  def __init__(self, seconds=1.0):
    self.now, self.seconds = 0.0, seconds

  def __call__(self):
    self.now += self.seconds
    return self.now


def tune(strategies, prompts=PROMPTS, **settings):
  return fd.tune(MODEL, PARAMS, strategies, prompts, max_len=8, clock=Ticks(0.001), **settings)


RELAXED = {
  'top': fd.Blockwise(hash_kit().heads('separate'), 3, fd.TopN(2)),
  'distance': fd.Blockwise(hash_kit().heads('separate'), 3, fd.Distance(1)),
  'block': fd.Blockwise(hash_kit().heads('separate'), 3, fd.MinBlock(fd.Exact(), 2)),
  'typical': fd.Medusa(hash_kit().heads('separate'), [[0]], fd.Typical()),
  'lenient': fd.Speculative(hash_kit().draft, 2, rule=fd.Rejection(0.5)),
  'drawn': fd.PromptLookup(temperature=1.0),
}


def test_exact_lets_no_relaxed_rule_take_part(monkeypatch):
  """Whatever is given, and however fast it were: a relaxed candidate is not even run."""
  ran = []
  monkeypatch.setattr(
    Race, 'winner', lambda race: ran.extend(race.seconds) or (max(race.seconds), 'of this test')
  )
  found = tune({**RELAXED, 'lookup': fd.PromptLookup(2, 4)})
  assert set(ran) == {'greedy', 'lookup'}
  by_name = {one.name: one for one in found.table}
  assert list(by_name) == ['greedy', *RELAXED, 'lookup']
  for name in RELAXED:
    assert by_name[name].said.startswith('not exact: its rule is ') and by_name[name].rounds == 0
  assert found.name == 'lookup' and isinstance(found.strategy, fd.PromptLookup)


def test_in_law_takes_those_that_draw_from_the_same_law_alone():
  strategies = {
    'same': fd.PromptLookup(2, 4, temperature=0.7, top_k=5),
    'hotter': fd.PromptLookup(2, 4, temperature=0.8, top_k=5),
    'exact': fd.PromptLookup(2, 4),
    **RELAXED,
  }
  found = tune(strategies, plain=fd.Sample(0.7, top_k=5), key=jax.random.key(0))
  assert found.promise == 'law' and found.plain == 'sampling'
  assert [one.name for one in found.table if one.rounds] == ['sampling', 'same']
  said = {one.name: one.said for one in found.table}
  assert said['hotter'] == said['drawn'] == 'samples at other settings than the plain strategy'
  assert said['exact'] == 'not in law: its rule is exact'


def test_relaxed_takes_all_and_what_is_counted_is_what_decode_writes():
  found = tune({'lookup': fd.PromptLookup(2, 4), 'top': RELAXED['top']}, promise='relaxed')
  assert [one.rounds > 0 for one in found.table] == [True] * 3
  for one, strategy in zip(
    found.table, (fd.Greedy(), fd.PromptLookup(2, 4), RELAXED['top']), strict=True
  ):
    rows = [fd.decode(MODEL, PARAMS, [prompt], strategy, max_len=8) for prompt in PROMPTS]
    plain = [fd.decode(MODEL, PARAMS, [prompt], fd.Greedy(), max_len=8) for prompt in PROMPTS]
    calls = sum(int(out.calls[0]) for out in rows)
    assert one.tokens_per_call == pytest.approx(
      sum(int(out.lengths[0]) - 1 for out in rows) / calls
    )
    assert one.same == np.mean(
      [(a.tokens == b.tokens).all() for a, b in zip(rows, plain, strict=True)]
    )
  assert found.table[0].same == found.table[1].same == 1 and found.table[2].same < 1


def test_where_all_take_as_long_greedy_is_kept_and_it_is_said():
  found = tune([fd.PromptLookup(2, 4)])
  assert (found.name, found.why) == (
    'greedy',
    'greedy is kept: nothing else was faster beyond noise',
  )
  assert isinstance(found.strategy, fd.Greedy) and found.table[1].name == 'PromptLookup 0'
  assert 'PromptLookup 0' in str(found) and '> greedy' in str(found)


def test_few_prompts_are_said_and_greedy_is_kept():
  # the same ones again tell nothing
  found = tune({'lookup': fd.PromptLookup(2, 4)}, PROMPTS[:3] * 9)
  assert (
    found.name == 'greedy'
    and ('there are 3 batches of prompts, too few to tell candidates apart') in found.why
  )
  assert found.prompts == 3


def test_rows_are_decoded_together():
  found = tune({'lookup': fd.PromptLookup(2, 4)}, rows=2)
  assert found.rows == 2 and found.prompts == 12 and found.table[1].same == 1


def same(texts, others):
  return np.mean([(a.tokens == b.tokens).all() for a, b in zip(texts, others, strict=True)])


def test_types_are_models_of_their_own_in_one_race(monkeypatch):
  """What a candidate promises is about its own type's greedy output, and how far that is the
  first's is counted."""
  other, lies = Imitation(), {'lies': 7}
  # these two stand for one model in two types
  monkeypatch.setattr('fastdec.tuning.tune.check_types', lambda *_: None)
  monkeypatch.setattr(Race, 'winner', lambda race: ('lookup, int8', 'of this test'))
  lookup = fd.PromptLookup(2, 4)
  found = tune(
    {'lookup': lookup}, types={'int8': (other, lies, {'lookup': lookup})}, dtype='float32'
  )
  texts = [fd.decode(MODEL, PARAMS, [prompt], fd.Greedy(), max_len=8) for prompt in PROMPTS]
  others = [fd.decode(other, lies, [prompt], fd.Greedy(), max_len=8) for prompt in PROMPTS]
  assert [one.name for one in found.table] == ['greedy', 'lookup', 'greedy, int8', 'lookup, int8']
  assert [one.same for one in found.table] == [1, 1, 1, 1]
  assert [one.as_first for one in found.table] == [
    None,
    None,
    same(others, texts),
    same(others, texts),
  ]
  assert 0 < same(others, texts) < 1 and 'as float32 %' in str(found)
  assert (
    found.dtype == 'int8'
    and (f'{100 * same(others, texts):.1f} % of the texts are those of float32') in found.why
  )


def test_numbers_of_rows_decode_the_same_prompts_in_one_race():
  found = tune({'lookup': fd.PromptLookup(2, 4)}, rows=(1, 2))
  assert [(one.name, one.rows) for one in found.table] == [
    ('greedy', 1), ('lookup', 1), ('greedy, 2 rows', 2), ('lookup, 2 rows', 2),
  ]  # fmt: skip
  assert all(one.same == 1 and one.as_first is None and one.rounds for one in found.table)
  one, two = (found.table[i].tokens_per_call for i in (1, 3))
  assert one == two and found.prompts == 12 and found.rows == 1


def test_half_of_the_time_compiles_and_who_is_compiled_late_joins_the_race():
  """Compiling takes 10 seconds of 39: two candidates at first, a third when these have raced, and
  never a fourth."""
  clock = Ticks(0.01)

  def said(line):
    clock.now += 10 * line.startswith('compiling')

  given = {f'lookup {k}': fd.PromptLookup(2, k) for k in (2, 3, 4)}
  found = fd.tune(MODEL, PARAMS, given, PROMPTS, max_len=8, budget=39, said=said, clock=clock)
  greedy, first, second, third = (one.rounds for one in found.table)
  assert greedy == first > second >= len(PROMPTS) and third == 0
  assert found.table[-1].said == 'not run: the budget was not enough to compile it'
  assert found.compile_seconds == pytest.approx(30, abs=1)


def test_a_budget_too_small_for_one_round_is_a_sentence():
  with pytest.raises(
    fd.UserError,
    match=r'the budget ended before one round: compiling 2 candidates took \d+ s, so'
    r' give',
  ):
    fd.tune(
      MODEL, PARAMS, {'lookup': fd.PromptLookup(2, 4)}, PROMPTS, max_len=8, budget=2, clock=Ticks()
    )


IN_INT8 = {'int8': (MODEL, PARAMS, {})}


@pytest.mark.parametrize('settings, said', [
  ({'promise': 'fast'}, "promise='fast' is unknown: give exact, law, relaxed"),
  ({'promise': 'exact', 'plain': fd.Sample()}, 'what is sampled is never exact'),
  ({'promise': 'law', 'plain': fd.Greedy()}, 'greedy decoding draws nothing'),
  ({'plain': fd.PromptLookup()}, 'plain=PromptLookup is not one token a call'),
  ({'budget': 0}, 'budget=0 is not possible'),
  ({'budget': float('nan')}, 'budget=nan is not possible'),
  ({'rows': 0}, 'rows=0 is not possible'),
  ({'rows': (1, 1)}, r'rows=\(1, 1\) is not possible: give one number or more, each once'),
  ({'rows': ()}, 'is not possible: give one number or more'),
  ({'types': {'int8': (Imitation(), {}, {})}}, "int8 is another model: load the same folder with"
                                               " dtype='int8'"),
  ({'types': IN_INT8, 'dtype': 'int8'}, 'the type int8 is given twice'),
  ({'types': IN_INT8, 'strategies': {'greedy, int8': fd.PromptLookup()}}, 'two candidates have the'
                                                                          ' name greedy, int8'),
  ({'prompts': []}, 'there are no inputs to decode'),
  ({'prompts': [[2], []]}, 'a prompt is empty'),
  ({'prompts': [[99]]}, 'inputs have ids from 99 to 99'),
  ({'strategies': {'beam': fd.Beam()}}, 'beam is a Beam, which ranks whole outputs'),
  ({'strategies': {'greedy': fd.PromptLookup()}}, 'greedy is the name of one token a call'),
  ({'strategies': {'x': fd.Greedy}}, 'is no strategy'),
])  # fmt: skip
def test_mistakes_are_one_sentence(settings, said):
  with pytest.raises(fd.UserError, match=said):
    tune(settings.pop('strategies', {}), **settings)


def test_a_candidate_that_cannot_decode_is_named():
  with pytest.raises(fd.UserError, match=r'^drawn: sampling needs randomness'):
    tune({'drawn': fd.PromptLookup(temperature=1.0)}, promise='relaxed')


# What is saved.

KINDS = {
  **LOSSLESS,
  'sampling': lambda kit: fd.Sample(0.8, 5, 0.95),
  'typical': lambda kit: fd.Medusa(
    kit.heads('separate'), [[0], [1], [0, 0]], fd.Typical(0.1, 0.3, 0.7)
  ),
  'min': lambda kit: fd.Blockwise(kit.heads('separate'), 3, fd.MinBlock(fd.TopN(2), 2)),
  'lenient': lambda kit: fd.Speculative(
    kit.draft, 2, temperature=0.8, rule=fd.Rejection(0.5), same_ids=True
  ),
  'verified': lambda kit: fd.Speculative(
    kit.draft, 2, temperature=0.8, rule=fd.BlockVerification()
  ),
}


@pytest.mark.parametrize('name', KINDS)
def test_a_strategy_comes_back_from_json_as_it_was(name):
  strategy = KINDS[name](hash_kit())
  text = json.dumps(description.describe(strategy))
  part = getattr(strategy, 'heads', None) or getattr(strategy, 'draft', None)
  again = description.build(json.loads(text), part)
  assert jax.tree.structure(again) == jax.tree.structure(strategy)  # with all that is static
  for one, other in zip(jax.tree.leaves(again), jax.tree.leaves(strategy), strict=True):
    assert np.array_equal(one, other) and one.dtype == other.dtype
  assert json.dumps(description.describe(again)) == text


def test_a_strategy_of_someone_elses_is_not_saved():
  class Own(fd.Greedy):
    pass

  class Lax(Exact):
    pass

  with pytest.raises(fd.UserError, match='Own cannot be saved'):
    description.describe(Own())
  with pytest.raises(fd.UserError, match='Lax cannot be saved'):
    description.describe(fd.Blockwise(hash_kit().heads('separate'), 3, Lax()))


@pytest.mark.parametrize(
  'said',
  [None, 3, {}, {'kind': 'Beam'}, {'kind': 'Greedy', 'k': 2}, {'kind': 'Blockwise', 'heads': 1}],
)
def test_what_describes_no_strategy_is_refused(said):
  with pytest.raises(fd.UserError, match=r'is no kind that is saved|has no setting'):
    description.build(said)


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  """A model folder with heads, another one beside it, and what was tuned for the first."""
  from fastdec.heads.blockwise import BlockwiseHeads
  from fastdec.models.lm import LM, LMConfig

  place = tmp_path_factory.mktemp('tuned')
  model = LM(LMConfig(vocab_size=14, d_model=8, d_ff=8, layers=1, heads=2, key_heads=2))
  heads = BlockwiseHeads(k=3, d_model=8, d_ff=6)
  for name, seed in (('model', 0), ('other', 1)):
    key = jax.random.key(seed)
    folders.save(place / name, model, model.init(key), None, (heads, heads.init(key)))
  strategy = fd.Blockwise(fd.load_heads(place / 'model'), 2)
  figures = dataclasses.replace(tune([]), name='blockwise 2', strategy=strategy)
  return place, figures


def test_what_was_tuned_is_saved_beside_the_model_and_comes_back(run):
  place, figures = run
  file = figures.save(place / 'model')
  assert file == place / 'model' / 'tuned.json'
  again = fd.load_tuned(place / 'model')
  assert dataclasses.replace(again, strategy=None) == dataclasses.replace(figures, strategy=None)
  model, params = fd.load(place / 'model')
  texts = [
    fd.decode(model, params, [[2, 3]], one, max_len=6).tokens
    for one in (again.strategy, fd.Greedy())
  ]
  assert again.strategy.k == 2 and (texts[0] == texts[1]).all()


def test_what_was_tuned_for_a_hugging_face_folder_is_no_part_of_it(tmp_path):
  """The file lies in the folder that it is about, and what the folder is stays what it was."""
  (tmp_path / 'config.json').write_text(json.dumps({'model_type': 'llama'}))
  for name in ('model-00001-of-00001.safetensors', 'tokenizer.json'):
    (tmp_path / name).write_bytes(b'weights, or words')
  before = folders.content(tmp_path)
  dataclasses.replace(tune([]), strategy=fd.Greedy()).save(tmp_path)
  (tmp_path / 'out.jsonl.settings.json').write_text('{}')
  assert folders.content(tmp_path) == before and isinstance(
    fd.load_tuned(tmp_path).strategy, fd.Greedy
  )
  for name in ('config.json', 'model-00001-of-00001.safetensors', 'tokenizer.json'):
    said = (tmp_path / name).read_text()
    (tmp_path / name).write_text(f'{said} ')
    with pytest.raises(fd.UserError, match='was made with another model'):
      fd.load_tuned(tmp_path)
    (tmp_path / name).write_text(said)


def test_a_folder_of_heads_elsewhere_is_remembered(run, tmp_path):
  place, figures = run
  file = figures.save(place / 'model', place / 'other', tmp_path / 'mine.json')
  found = fd.load_tuned(place / 'model', file=file)
  wanted = jax.tree.leaves(fd.Blockwise(fd.load_heads(place / 'other'), 2))
  assert all(
    np.array_equal(a, b) for a, b in zip(jax.tree.leaves(found.strategy), wanted, strict=True)
  )
  assert fd.load_tuned(place / 'model', part=place / 'other', file=file).strategy.k == 2
  with pytest.raises(
    fd.UserError,
    match=r'was made with another set of heads than is in .*model now: make it again'
    r' by',
  ):
    fd.load_tuned(place / 'model', part=place / 'model', file=file)
  content = json.loads(file.read_text())
  content['part']['folder'] = str(tmp_path / 'gone')
  file.write_text(json.dumps(content))
  with pytest.raises(
    fd.UserError, match=r'uses the set of heads in .*gone, which is no folder now'
  ):
    fd.load_tuned(place / 'model', file=file)


def test_a_draft_model_is_named_where_it_is_tuned(run, tmp_path):
  place, figures = run
  drafted = dataclasses.replace(figures, strategy=fd.Speculative(fd.load(place / 'other'), gamma=2))
  with pytest.raises(fd.UserError, match='drafts with a model of its own: give its folder as part'):
    drafted.save(place / 'model', file=tmp_path / 'mine.json')
  file = drafted.save(place / 'model', place / 'other', tmp_path / 'mine.json')
  assert fd.load_tuned(place / 'model', file=file).strategy.gamma == 2


def test_heads_are_prepared_as_the_caller_says(run):
  place, figures = run
  figures.save(place / 'model')
  found = fd.load_tuned(
    place / 'model', prepare=lambda module, params: (module, jax.tree.map(np.zeros_like, params))
  )
  assert not any(leaf.any() for leaf in jax.tree.leaves(found.strategy))


def test_a_file_of_another_model_is_refused(run):
  place, figures = run
  file = figures.save(place / 'model')
  with pytest.raises(
    fd.UserError,
    match=r'was made with another model than is in .*other now: make it again by'
    r' python',
  ):
    fd.load_tuned(place / 'other', file=file)
  with pytest.raises(
    fd.UserError,
    match=r'other/tuned.json is not there: make it by python -m'
    r' experiments.tune',
  ):
    fd.load_tuned(place / 'other')


@pytest.mark.parametrize('part, value', [
  ('figures', {}), ('figures', 3), ('strategy', None), ('part', 'a word'), ('strategy', {'kind': 'Blockwise', 'k': 99}),
  ('strategy', {'kind': 'Blockwise', 'rule': {'kind': 'TopN'}}), ('part', None),
])  # fmt: skip
def test_a_damaged_file_is_a_sentence(run, tmp_path, part, value):
  place, figures = run
  file = figures.save(place / 'model', file=tmp_path / 'tuned.json')
  file.write_text(json.dumps({**json.loads(file.read_text()), part: value}))
  with pytest.raises(fd.UserError, match=r'tuned.json is damaged'):
    fd.load_tuned(place / 'model', file=file)


def test_a_file_of_another_machine_is_used_with_a_note(run, tmp_path, monkeypatch):
  place, figures = run
  elsewhere = dataclasses.replace(figures.machine, processor='Another CPU', cpus=64)
  file = dataclasses.replace(figures, machine=elsewhere).save(
    place / 'model', file=tmp_path / 'tuned.json'
  )
  with pytest.warns(fd.UserNote, match=r'figures of another machine \(Another CPU, 64 CPUs\)'):
    assert fd.load_tuned(place / 'model', file=file).strategy.k == 2
  assert tuned.NAME == 'tuned.json'
