"""The text of an experiment: every kind through the config, and a teacher's lines instead of
people's."""

import dataclasses
import shutil

import numpy as np
import pytest
import tensorflow_datasets as tfds

from configs import wmt14
from experiments.lab.config import to_dataclass
from experiments.lab.text import ids_of
from experiments.stern2018.text import Translation
from fastdec.data.text.corpus import open_text
from fastdec.data.text.sentencepiece import EOS_ID, UNK_ID, normalise
from fastdec.data.text.tokens import Ragged, TokenPairs
from fastdec.errors import UserError


@pytest.fixture(scope='module')
def text_of(tmp_path_factory):
  """text_of(settings) is the text of scale smoke with these settings of config.data."""
  cache = tmp_path_factory.mktemp('cache')

  def text_of(scale='smoke', **settings):
    config = wmt14.get_config(f'scale={scale}')
    config.data.update({'cache': str(cache), 'vocab_size': 300, 'max_train': 200} | settings)
    return to_dataclass(Translation, config).data.open()

  return text_of


@pytest.fixture
def distilled(tmp_path):
  """A finished distillation: two outputs for a source."""
  folder = tmp_path / 'distilled'
  folder.mkdir()
  (folder / 'train.en').write_text('The train is late.\n' * 2 + 'It rains.\n')
  (folder / 'train.de').write_text('Der Zug ist spät.\nDer Zug hat Verspätung.\nEs regnet.\n')
  return folder


def test_distilled_text_is_trained_on_and_changes_nothing_else(text_of, distilled):
  people, teacher = text_of(), text_of(distilled=str(distilled))
  assert teacher.tokenizer.model_proto == people.tokenizer.model_proto
  assert teacher.tokenizer_path == people.tokenizer_path
  for split in ('dev', 'test'):
    assert teacher.pairs(split) == people.pairs(split)
  assert [people.tokenizer.decode(ids.tolist()) for ids in teacher.tokens('train').target] == [
    'Der Zug ist spät.', 'Der Zug hat Verspätung.', 'Es regnet.',
  ]  # fmt: skip
  np.testing.assert_array_equal(
    teacher.dev_batches()[0]['source'], people.dev_batches()[0]['source']
  )


LONG = 'The train is late. ' * 40


@pytest.mark.parametrize('by', ['people', 'a teacher', 'both'])
def test_pairs_that_are_not_read_are_counted(text_of, tmp_path, capsys, by):
  sides = {
    'train.en': ['It rains.'] * 5 + [LONG, 'It rains.', '', 'It rains.'],
    'train.de': ['Es regnet.'] * 5 + ['Kurz.', LONG, 'Leer.', ' '],
    'dev.en': ['It rains.', LONG],
    'dev.de': ['Es regnet.', 'Kurz.'],
  }
  written = tmp_path / 'written'
  for folder in (tmp_path, written):
    folder.mkdir(exist_ok=True)
    for name, lines in sides.items():
      if folder == tmp_path or name.startswith('train'):
        (folder / name).write_text('\n'.join(lines) + '\n')
  settings = {'kind': 'files', 'folder': str(tmp_path), 'vocab_size': 40, 'row_length': 64}
  settings |= dict.fromkeys(['train', 'dev', 'test'], '') | {'train': 'train', 'dev': 'dev'}
  settings |= {'test': 'dev', 'distilled': '' if by == 'people' else str(written)}
  text = text_of(**settings, mixed=by == 'both')
  text.train_batches()
  text.dev_batches()
  counts = {'both': '8 of 13'}.get(by, '4 of 9')
  reason = 'are left out: a side is empty or has more than row_length=64 tokens'
  assert capsys.readouterr().out.splitlines() == [
    f'{counts} pairs of the training text {reason}', f'1 of 2 pairs of the dev text {reason}',
  ]  # fmt: skip


def test_mixed_text_is_a_teachers_and_peoples(text_of, distilled):
  people, teacher = text_of(), text_of(distilled=str(distilled))
  mixed = dataclasses.replace(teacher.config, mixed=True).open()
  assert mixed.pairs('dev') == people.pairs('dev')
  assert len(mixed.tokens('train', 64)) == len(teacher.tokens('train', 64)) + len(
    people.tokens('train', 64)
  )
  assert mixed.config.key != teacher.config.key


def test_training_batches_pack_the_distilled_pairs(text_of, distilled):
  text = text_of(distilled=str(distilled))
  batch = text.train_batches()[0]
  rows = [row[row > 0].tolist() for row in batch['target']]
  (ids,) = filter(None, rows)
  ends = [i + 1 for i, token in enumerate(ids) if token == text.tokenizer.eos_id]
  lines = {
    text.tokenizer.decode(ids[start:end]) for start, end in zip([0, *ends], ends, strict=False)
  }
  assert lines == {normalise(line) for line in (distilled / 'train.de').read_text().splitlines()}


@pytest.fixture
def with_ids(text_of, distilled):
  """The same folder with ids: those of the targets are spelt letter by letter, as no encoder
  would."""
  tokenizer = text_of().tokenizer
  sources, targets = (
    (distilled / f'train.{language}').read_text().splitlines() for language in ('en', 'de')
  )
  spelt = [
    [token for letter in line for token in tokenizer.encode(letter)] + [EOS_ID] for line in targets
  ]
  ids = TokenPairs(Ragged.of(tokenizer.encode_lines(sources)), Ragged.of(spelt))
  data = text_of(distilled=str(distilled)).config
  key = open_text(data.lines_of(distilled, 'train'), data.cache).key
  ids.save(ids_of(distilled, 'train', key, tokenizer))
  return distilled, ids


def test_ids_are_trained_on_as_they_were_written(text_of, with_ids, tmp_path):
  folder, ids = with_ids
  text = text_of(distilled=str(folder))
  assert [text.tokens('train').target[i].tolist() for i in range(3)] == [
    ids.target[i].tolist() for i in range(3)
  ]
  assert sorted(text.train_batches()[0]['target'].ravel())[-len(ids.target.tokens) :] == sorted(
    ids.target.tokens
  )
  shortest = int(ids.lengths.max(1).min())
  short = text.tokens('train', shortest)
  assert (len(short), short.dropped) == (1, 2) and short.target[0].tolist() == ids.target[
    2
  ].tolist()
  plain = tmp_path / 'plain'
  shutil.copytree(folder, plain)
  for file in plain.glob('train-*.npy'):
    file.unlink()
  assert text.config.key != text_of(distilled=str(plain)).config.key


@pytest.mark.parametrize('why', ['the lines were changed', 'another tokenizer', 'damaged ids'])
def test_lines_are_trained_on_where_the_ids_are_not_theirs(text_of, with_ids, why):
  folder, _ = with_ids
  settings = {'distilled': str(folder)}
  if why == 'the lines were changed':
    (folder / 'train.de').write_text('Der Zug ist spät.\nDer Zug hat Verspätung.\nEs schneit.\n')
  elif why == 'another tokenizer':
    settings['vocab_size'] = 290
  else:
    next(folder.glob('train-*.npy')).write_bytes(b'damaged')
  text = text_of(**settings)
  lines = [normalise(line) for line in (folder / 'train.de').read_text().splitlines()]
  assert [text.tokens('train').target[i].tolist() for i in range(3)] == text.tokenizer.encode_lines(
    lines
  )


def test_own_text_comes_before_distilled_and_counts_in_the_key(text_of, distilled, tmp_path):
  (distilled / 'config.json').write_text('{"teacher": "f00d", "beam": 1}')
  own = text_of(own=str(distilled), distilled=str(tmp_path / 'nowhere'))
  assert len(own.tokens('train')) == 3
  assert own.config.key != text_of().config.key
  with pytest.raises(
    UserError,
    match=r"no folder '.*nowhere' with own text: run"
    r' experiments.distill',
  ):
    text_of(own=str(tmp_path / 'nowhere'))
  (distilled / 'config.json').write_text('{"teacher": "f00d", "beam": 4}')
  with pytest.raises(UserError, match='written by a search with beam=4, not greedily: write it by'):
    text_of(own=str(distilled))


def test_several_texts_are_trained_on_as_one_without_what_an_earlier_one_has(
  text_of, with_ids, tmp_path
):
  folder, ids = with_ids
  other = tmp_path / 'other'
  other.mkdir()
  (other / 'train.en').write_text('It rains.\nIt snows.\nIt snows.\n')
  (other / 'train.de').write_text('Es regnet.\nEs schneit.\nEs schneit.\n')
  text = text_of(distilled=f'{folder}, {other}')
  encoded = text.tokenizer.encode_lines(['Es regnet.', 'Es schneit.', 'Es schneit.'])
  trained = text.tokens('train', 64)
  # 'Es regnet.' was spelt in another way
  expected = [ids.target[i].tolist() for i in range(3)] + encoded
  assert [trained.target[i].tolist() for i in range(len(trained))] == expected
  again = text_of(distilled=f'{other},{other}').tokens('train', 64)
  assert [again.target[i].tolist() for i in range(len(again))] == encoded
  one, both = (text_of(distilled=str(folder)).config.key, text.config.key)
  turned = text_of(distilled=f'{other},{folder}').config.key
  assert len({one, both, turned}) == 3 and len(both) == 16
  (other / 'train.de').write_text('Es regnet.\nEs schneit.\nEs taut.\n')
  assert text.config.key != both
  with pytest.raises(UserError, match=r"no folder '.*nowhere' with distilled text"):
    text_of(distilled=f'{folder},{tmp_path}/nowhere')


def test_of_several_own_texts_the_first_is_written_without_a_search(text_of, distilled, tmp_path):
  other = shutil.copytree(distilled, tmp_path / 'other')
  (distilled / 'config.json').write_text('{"teacher": "f00d", "beam": 1}')
  (other / 'config.json').write_text('{"teacher": "f00d", "beam": 4}')
  assert len(text_of(own=f'{distilled},{other}').tokens('train')) == 3
  with pytest.raises(UserError, match='other was written by a search with beam=4, not greedily'):
    text_of(own=f'{other},{distilled}')
  (other / 'config.json').unlink()
  with pytest.raises(UserError, match=r'other is not a finished text of experiments\.distill'):
    text_of(own=f'{distilled},{other}')


def test_held_out_text_is_next_to_the_first_text(text_of, with_ids):
  folder, ids = with_ids
  text = text_of(distilled=str(folder))
  with pytest.raises(UserError, match='distilled has no text of the dev set: let it be written'):
    text.own_dev()
  for language in ('en', 'de'):
    shutil.copy(folder / f'train.{language}', folder / f'dev.{language}')
  data = text.config
  key = open_text(data.lines_of(folder, 'dev'), data.cache).key
  ids.save(ids_of(folder, 'dev', key, text.tokenizer))
  assert [text.own_dev().target[i].tolist() for i in range(3)] == [
    ids.target[i].tolist() for i in range(3)
  ]
  (batch,) = text.dev_batches(text.own_dev())
  assert sorted(batch['target'].ravel())[-len(ids.target.tokens) :] == sorted(ids.target.tokens)


def test_distilled_text_that_is_not_whole_is_refused_before_the_tokenizer_is_learnt(
  text_of, distilled, tmp_path
):
  settings = {'distilled': str(distilled), 'cache': str(tmp_path / 'new')}
  with pytest.raises(
    UserError,
    match=r"no folder '.*nowhere' with distilled text: run"
    r' experiments.distill',
  ):
    text_of(**settings | {'distilled': str(tmp_path / 'nowhere')})
  (distilled / 'train.en').write_text('The train is late.\n')
  with pytest.raises(UserError, match=r'train.en has 1 lines and .*train.de has 3 lines'):
    text_of(**settings)
  (distilled / 'train.de').unlink()
  with pytest.raises(UserError, match=r'cannot read .*distilled/train.de'):
    text_of(**settings)
  assert not list(tmp_path.glob('new/tokenizer-*'))


def test_the_papers_text_is_that_of_tfds(text_of):
  with tfds.testing.mock_data(num_examples=8):
    text = text_of('wmt14', vocab_size=24)
    assert len(text.tokens('train', 256)) == 8 and len(text.pairs('test')) == 8
    assert text.train_batches()[0]['source'].shape == (128, 256)


def test_archives_want_a_folder(text_of, tmp_path):
  with pytest.raises(
    UserError, match=r"no folder '' with the text: name it by --config.data.folder"
  ):
    text_of('wmt14', kind='archives')
  with pytest.raises(UserError, match=r'lacks training-parallel-europarl-v7.tgz, .* dev.tgz'):
    text_of('wmt14', kind='archives', folder=str(tmp_path))


@pytest.mark.slow
def test_real_wmt_text_through_parallel_files(text_of, shared):
  """newstest2012 is the dev set, because newstest2013 is not in the shared data."""
  names = {
    'train': 'train10k.detok',
    'dev': 'newstest2012.detok',
    'test': 'newstest2014.detok',
    'suffix': '.gz',
  }
  folder = str(shared / 'data' / 'wmt_en_de')
  text = text_of('wmt14', kind='files', folder=folder, vocab_size=4000, max_train=5000, **names)
  tokens, pairs = text.tokens('test'), text.pairs('test')
  assert len(tokens) == len(pairs) == 2737 and len(text.tokens('dev')) == 3000
  assert text.tokenizer.vocab_size == 4000
  known = [i for i in range(len(pairs)) if UNK_ID not in tokens.target[i]]
  assert len(known) > 2700
  for i in known:
    assert text.tokenizer.decode(tokens.target[i].tolist()) == normalise(pairs[i][1])
