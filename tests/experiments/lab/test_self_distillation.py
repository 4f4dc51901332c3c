"""What a language model writes after beginnings, of any text: what greedy decoding does, wherever
it was stopped."""

import gzip

import jax
import pytest

import fastdec as fd
from configs import medusa
from experiments.lab import self_distillation
from experiments.lab.captions import beginnings_of, prompts_of
from experiments.lab.model_text import check_author, check_greedy
from experiments.papers.cai2024.settings import MedusaExperiment
from fastdec import folders
from fastdec.data.text.tokens import Ragged, TokenPairs
from fastdec.errors import UserError
from tests.experiments.conftest import with_settings

PROMPT, MAX_LEN = 4, 5


@pytest.fixture(scope='module')
def target(tmp_path_factory):
  """An experiment, and the workdir of its language model, which has learnt nothing."""
  folder = tmp_path_factory.mktemp('target')
  settings = {'data.cache': str(folder / 'cache'), 'data.max_train': 100}
  experiment = MedusaExperiment.of(with_settings(medusa.get_config('scale=smoke'), settings))
  text = experiment.open()
  params = jax.jit(text.model.init)(jax.random.key(0))
  folders.save(folder / 'run' / 'model', text.model, params, text.tokenizer_path)
  return experiment, folder / 'run'


@pytest.fixture
def write(target, monkeypatch):
  """write(folder, files='', budget=None), in shards of 20."""
  monkeypatch.setattr(self_distillation, 'SHARD_SIZE', 20)
  experiment, model = target

  def write(folder, **more):
    return self_distillation.write(
      folder, model, experiment.open(), experiment.data, PROMPT, MAX_LEN, **more
    )

  return write


def check(target, folder, split, prompts):
  """The ids are those of each beginning and what greedy decoding adds to it, and an end."""
  model, params = folders.load(target[1])
  ids = TokenPairs.load(folder / f'{split}.npy')
  assert len(ids) == len(prompts) and ids.source.tokens.tolist() == ids.target.tokens.tolist()
  for i in range(0, len(prompts), 1 + len(prompts) // 8):
    out = fd.decode(model, params, prompts[i][None], fd.Greedy(), max_len=MAX_LEN)
    written = [
      token for token in out.tokens[0, : out.lengths[0]].tolist() if token not in model.eos_ids
    ]
    assert ids.target[i].tolist() == [*prompts[i][1:].tolist(), *written, 1]


def test_training_and_dev_captions_are_gone_on_with_as_greedy_decoding_does(
  target, write, tmp_path
):
  experiment, model = target
  assert write(tmp_path / 'own')
  for split in ('train', 'dev'):
    check(
      target,
      tmp_path / 'own',
      split,
      prompts_of(experiment.open(), split, PROMPT, experiment.open().model.config.bos_id),
    )
  assert not (tmp_path / 'own' / 'parts').exists()
  check_greedy(tmp_path / 'own')
  text = experiment.on(tmp_path / 'own').open()
  check_author(tmp_path / 'own', model, text.tokenizer)
  held_out = TokenPairs.load(tmp_path / 'own' / 'dev.npy')
  assert text.own_dev().target.tokens.tolist() == held_out.target.tokens.tolist()


def test_stopped_it_goes_on_and_yields_the_same_bytes(target, write, tmp_path):
  _, model = target
  record = self_distillation.wanted(model, PROMPT, MAX_LEN)
  assert not write(tmp_path / 'stopped', budget=0)
  parts = tmp_path / 'stopped' / 'parts'
  (done,) = parts.glob('*.jsonl')
  before = done.stat().st_mtime_ns
  assert not self_distillation.is_written(tmp_path / 'stopped', record)
  assert not write(tmp_path / 'stopped', budget=0) and done.stat().st_mtime_ns == before
  assert len([*parts.glob('*.jsonl')]) == 2
  assert write(tmp_path / 'stopped') and write(tmp_path / 'whole')
  assert self_distillation.is_written(tmp_path / 'stopped', record)
  for name in ('train.en', 'train.de', 'train.npy', 'dev.en', 'dev.npy', 'dev.json', 'config.json'):
    assert (tmp_path / 'stopped' / name).read_bytes() == (tmp_path / 'whole' / name).read_bytes(), (
      name
    )


def test_shards_of_other_beginnings_are_made_anew(target, write, tmp_path):
  experiment, _ = target
  assert not write(tmp_path / 'own', budget=0)  # the first shard is there
  text = experiment.open()
  lines = [line for _, line in text.pairs('test')[:40]]
  (tmp_path / 'more.txt').write_text('\n'.join(lines) + '\n')
  assert write(tmp_path / 'own', files=str(tmp_path / 'more.txt'))
  prompts = beginnings_of(
    Ragged.of(text.tokenizer.encode_lines(lines)), PROMPT, text.model.config.bos_id, 'the file'
  )
  # it has as many records as that one
  assert len({tuple(prompt) for prompt in prompts.tolist()}) > 20
  check(target, tmp_path / 'own', 'train', prompts)


def test_beginnings_come_from_files(target, write, tmp_path):
  experiment, model = target
  lines = [
    'A train is late today.',
    '',
    'It',
    'The dog runs home at once.',
    'The dog runs home at once.',
  ]
  with gzip.open(tmp_path / 'some.gz', 'wt') as file:
    file.write('\n'.join(lines) + '\n')
  (tmp_path / 'more.txt').write_text('A train is late now.\n')
  files = f'{tmp_path}/some.gz,{tmp_path}/more.txt'
  assert write(tmp_path / 'own', files=files)
  tokenizer = experiment.open().tokenizer
  first = experiment.open().model.config.bos_id
  begun = [lines[0], *lines[3:], 'A train is late now.']
  prompts = [jax.numpy.array([first, *tokenizer.encode(line)[:PROMPT]]) for line in begun]
  check(target, tmp_path / 'own', 'train', prompts)
  wanted = self_distillation.wanted(model, PROMPT, MAX_LEN, files, experiment.data.cache)
  assert self_distillation.is_written(tmp_path / 'own', wanted)
  assert not self_distillation.is_written(
    tmp_path / 'own', self_distillation.wanted(model, PROMPT, MAX_LEN)
  )
  with pytest.raises(UserError, match=r'cannot read nowhere \(No such file'):
    write(tmp_path / 'other', files='nowhere')
  assert not (tmp_path / 'other').exists()
