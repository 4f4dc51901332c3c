"""The result of tuning is saved next to the model, loaded again, and refused if it does not fit."""

import dataclasses
import json
import os
import shutil

import jax
import numpy as np
import pytest

import fastdec as fd
from fastdec import folders
from fastdec.decoding.description import label
from fastdec.evaluation import machine
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.models.lm import LM, LMConfig
from fastdec.tuning.tuned import Figures, Tuned

GREEDY = Figures('Greedy', 'timed', 1.0, 2.0, 2.0, 500.0, None, 1.0, 1.0, 1.0, 1.0, 6, 0.5)
TUNED = Tuned(
  'Greedy', 'of this test', 'Greedy', 'exact', 1, 8, 6, 2.0, 1.0, machine.here(), (GREEDY,),
  {'one token': 1.0},
  strategy=fd.Greedy(),
)  # fmt: skip


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  """A model folder with heads, a second model folder, and the result of tuning for the first."""
  place = tmp_path_factory.mktemp('tuned')
  model = LM(LMConfig(vocab_size=14, d_model=8, d_ff=8, layers=1, heads=2, key_heads=2))
  heads = BlockwiseHeads(k=3, d_model=8, d_ff=6)
  for name, seed in (('model', 0), ('other', 1)):
    key = jax.random.key(seed)
    folders.save(model, model.init(key), place / name, (heads, heads.init(key)))
  strategy = fd.Blockwise(fd.load_heads(place / 'model'), 2)
  return place, dataclasses.replace(TUNED, strategy=strategy)


def test_the_result_is_saved_next_to_the_model_and_loaded_again(run):
  place, tuned = run
  file = tuned.save(place / 'model')
  assert file == place / 'model' / 'tuned.json'
  assert json.loads(file.read_text())['strategy'] == 'Blockwise(k=2, rule=Exact(), window=0)'
  again = fd.load_tuned(place / 'model')
  assert dataclasses.replace(again, strategy=None) == dataclasses.replace(tuned, strategy=None)
  model, params = fd.load(place / 'model')
  ours = fd.decode(model, params, [[2, 3]], again.strategy, max_len=6)
  greedy = fd.decode(model, params, [[2, 3]], fd.Greedy(), max_len=6)
  assert again.strategy.k == 2 and (ours.tokens == greedy.tokens).all()


def test_if_a_folder_cannot_be_written_the_users_own_is_used(run, tmp_path, monkeypatch):
  place, tuned = run
  folder = shutil.copytree(place / 'model', tmp_path / 'shared', ignore=lambda *_: ['tuned.json'])
  monkeypatch.setenv('XDG_DATA_HOME', str(tmp_path / 'data'))
  with monkeypatch.context() as locked:
    locked.setattr(os, 'access', lambda path, mode: False)
    file = tuned.save(folder)
  assert file.is_relative_to(tmp_path / 'data' / 'fastdec') and not (folder / 'tuned.json').exists()
  assert fd.load_tuned(folder).strategy.k == 2
  os.utime(file, (1, 1))
  dataclasses.replace(tuned, strategy=fd.Greedy()).save(folder)  # newer, and next to the model
  assert isinstance(fd.load_tuned(folder).strategy, fd.Greedy)


def test_the_table_marks_the_choice_and_says_why_something_did_not_run():
  table = (GREEDY, Figures('Jacobi(k=2)', note='not run: no time'))
  lines = str(dataclasses.replace(TUNED, table=table)).splitlines()
  assert lines[1].split() == [
    '>',
    'Greedy',
    *['1.00', '2.000', '2.000', '500', '-', '1.00x', '(1.00-1.00)', '100.0%'],
  ]
  assert lines[2].split()[:3] == ['Jacobi(k=2)', '-', '-'] and lines[2].endswith('not run: no time')


def test_the_result_for_a_hugging_face_folder_does_not_belong_to_it(tmp_path):
  """The file is in the folder that it is about, and does not change the folder's content hash."""
  (tmp_path / 'config.json').write_text(json.dumps({'model_type': 'llama'}))
  for name in ('model-00001-of-00001.safetensors', 'tokenizer.json'):
    (tmp_path / name).write_bytes(b'weights, or words')
  content = folders.content(tmp_path)
  TUNED.save(tmp_path)
  (tmp_path / 'out.jsonl.settings.json').write_text('{}')
  assert folders.content(tmp_path) == content
  assert isinstance(fd.load_tuned(tmp_path).strategy, fd.Greedy)
  for name in ('config.json', 'model-00001-of-00001.safetensors', 'tokenizer.json'):
    before = (tmp_path / name).read_text()
    (tmp_path / name).write_text(f'{before} ')
    with pytest.raises(fd.UserError, match='was made with a different model'):
      fd.load_tuned(tmp_path)
    (tmp_path / name).write_text(before)


def test_a_folder_of_heads_elsewhere_is_named_again(run, tmp_path):
  place, tuned = run
  file = tuned.save(place / 'model', place / 'other', tmp_path / 'mine.json')
  again = fd.load_tuned(place / 'model', part=place / 'other', file=file)
  wanted = jax.tree.leaves(fd.Blockwise(fd.load_heads(place / 'other'), 2))
  ours = jax.tree.leaves(again.strategy)
  assert all(np.array_equal(a, b) for a, b in zip(ours, wanted, strict=True))
  with pytest.raises(fd.UserError, match=r"the heads of '.*/other': give that folder too, as part"):
    fd.load_tuned(place / 'model', file=file)
  message = 'was made with a different heads than .*model has now: make it again by'
  with pytest.raises(fd.UserError, match=message):
    fd.load_tuned(place / 'model', part=place / 'model', file=file)


def test_a_draft_model_is_named_where_it_is_tuned(run, tmp_path):
  place, tuned = run
  drafted = dataclasses.replace(tuned, strategy=fd.Speculative(fd.load(place / 'other'), gamma=2))
  with pytest.raises(fd.UserError, match='drafts with a model of its own: give its folder as part'):
    drafted.save(place / 'model', file=tmp_path / 'mine.json')
  file = drafted.save(place / 'model', place / 'other', tmp_path / 'mine.json')
  assert fd.load_tuned(place / 'model', place / 'other', file).strategy.gamma == 2


def test_a_union_is_saved_with_the_part_that_has_heads(run, tmp_path):
  place, tuned = run
  both = fd.Union(fd.PromptLookup(k=4), tuned.strategy)
  file = dataclasses.replace(tuned, strategy=both).save(place / 'model', file=tmp_path / 'it.json')
  again = fd.load_tuned(place / 'model', file=file).strategy
  assert label(again) == 'Union(PromptLookup(k=4), Blockwise(k=2))'
  assert jax.tree.structure(again) == jax.tree.structure(both)


def test_heads_are_prepared_as_the_caller_says(run):
  place, tuned = run
  tuned.save(place / 'model')
  zero = lambda module, params: (module, jax.tree.map(np.zeros_like, params))
  again = fd.load_tuned(place / 'model', prepare=zero)
  assert not any(leaf.any() for leaf in jax.tree.leaves(again.strategy))


def test_a_file_for_a_different_model_is_refused(run):
  place, tuned = run
  file = tuned.save(place / 'model')
  message = r'was made with a different model than .*other has now: make it again by fastdec tune'
  with pytest.raises(fd.UserError, match=message):
    fd.load_tuned(place / 'other', file=file)
  message = r'other/tuned.json does not exist: make it by fastdec tune'
  with pytest.raises(fd.UserError, match=message):
    fd.load_tuned(place / 'other')


PASSWORDS = "Medusa(choices='/etc/passwd')"


@pytest.mark.parametrize('change, message', [
  ({'figures': {}}, "lacks the field 'name'"),
  ({'strategy': {'kind': 'Medusa', 'choices': '/etc/passwd'}}, 'strategy=.* is not possible'),
  ({'strategy': PASSWORDS}, "'/etc/passwd' is not a published tree"),
  ({'strategy': f'Medusa(choices={[[i] for i in range(50_000)]})'}, 'at most 65536 characters'),
  ({'strategy': 'Speculative'}, 'drafts with Model, not with BlockwiseHeads'),
  ({'part': None}, 'Blockwise drafts with heads'),
])  # fmt: skip
def test_a_damaged_file_is_a_short_sentence(run, tmp_path, change, message):
  place, tuned = run
  file = tuned.save(place / 'model', file=tmp_path / 'tuned.json')
  file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
  with pytest.raises(
    fd.UserError, match=rf'tuned.json is damaged \(.*{message}.*: make it'
  ) as raised:
    fd.load_tuned(place / 'model', file=file)
  assert len(str(raised.value)) < 1000


@pytest.mark.parametrize('folder, message', [
  (5, 'part.folder=5 is not possible'),
  (['x'], 'part.folder=.* is not possible'),
  (True, 'part.folder=True is not possible'),
  ('x' * 5000, 'with the heads of .x{70}.*: give that folder too'),
  ('/etc/passwd', "with the heads of '/etc/passwd': give that folder too"),
  ('a\0', 'give that folder too'),
  ('other', 'give that folder too'),
])  # fmt: skip
def test_a_part_that_is_elsewhere_is_a_short_sentence(run, tmp_path, folder, message):
  place, tuned = run
  file = tuned.save(place / 'model', file=tmp_path / 'tuned.json')
  content = json.loads(file.read_text())
  content['part']['folder'] = folder
  file.write_text(json.dumps(content))
  with pytest.raises(fd.UserError, match=message) as raised:
    fd.load_tuned(place / 'model', file=file)
  assert len(str(raised.value)) < 1000


def test_a_file_from_a_different_machine_is_used_with_a_note(run, tmp_path):
  place, tuned = run
  elsewhere = dataclasses.replace(tuned.machine, processor='Another CPU', cpus=64)
  tuned = dataclasses.replace(tuned, machine=elsewhere)
  file = tuned.save(place / 'model', file=tmp_path / 'tuned.json')
  with pytest.warns(fd.UserNote, match=r'figures of another machine \(Another CPU, 64 CPUs\)'):
    assert fd.load_tuned(place / 'model', file=file).strategy.k == 2
