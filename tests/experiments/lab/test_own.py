"""Text that models write is greedy decoding's, even if writing was stopped."""

import dataclasses

import jax
import pytest

import fastdec as fd
from configs import presets
from experiments.lab import own
from experiments.lab.own import DistillConfig
from experiments.lab.text import TextConfig, check_author, check_written, prompts_of
from fastdec import folders
from fastdec.data.text.corpus import TextData, load_pairs
from fastdec.data.text.tokens import TokenPairs
from fastdec.training import written as training_written
from fastdec.training.stage import OutOfTime

PROMPT, MAX_LEN = 4, 5
FILES = ('train.en', 'train-*.npy', 'dev.en', 'dev-*.npy', 'config.json')


def ids_of(folder, split):
  (file,) = folder.glob(f'{split}-*.npy')
  return TokenPairs.load(file)


@pytest.fixture(scope='module', params=['lm', 'translation'])
def written(request, tmp_path_factory):
  """(task, text, the folder of an untrained model, write(folder)), in parts of 20."""
  folder = tmp_path_factory.mktemp(request.param)
  for split, count in (('train', 100), ('dev', 60)):
    sides = zip(*load_pairs(TextData(), split, folder)[:count], strict=True)
    for language, lines in zip(('en', 'de'), sides, strict=True):
      (folder / f'{split}.{language}').write_text(''.join(f'{line}\n' for line in lines))
  files = {'folder': str(folder), 'train': 'train', 'dev': 'dev', 'test': 'dev'}
  if request.param == 'lm':
    files['target'] = 'en'  # as of captions: a language model reads one side
  data = TextConfig('files', **files, vocab_size=300, rows=4, cache=str(folder / 'cache'))
  text = data.open()
  model = text.model_of(presets.model(request.param, width=16, layers=1))
  params = jax.jit(model.init)(jax.random.key(0))
  folders.save(model, params, folder / 'run' / 'model', tokenizer=text.tokenizer_path)

  def write(place):
    if request.param == 'lm':
      sizes = {'prompt': PROMPT, 'max_len': MAX_LEN}
      own.continuations(place, model=folder / 'run', data=data, **sizes)
    else:
      distill = DistillConfig(beam=1, shard_size=20, max_len=(0, 6))
      own.translations(place, model=folder / 'run', data=data, distill=distill)

  return request.param, text, folder / 'run', write


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
  monkeypatch.setattr(own, 'PART', 20)


@pytest.mark.wide('lm')
def test_what_is_written_is_what_greedy_decoding_writes(written, tmp_path):
  task, text, model, write = written
  write(tmp_path)
  check_written(tmp_path, is_greedy=True)
  check_author(tmp_path, model, text.tokenizer)
  assert not (tmp_path / 'parts').exists()
  module, params = folders.load(model)
  for split in ('train', 'dev'):
    ids = ids_of(tmp_path, split)
    if task == 'lm':
      prompts = prompts_of(text, split, PROMPT, module.config.bos_id)
      if split == 'dev':  # without what the draft learns
        learnt = prompts_of(text, 'train', PROMPT, module.config.bos_id).tolist()
        prompts = prompts[[prompt not in learnt for prompt in prompts.tolist()]]
        assert 0 < len(prompts) < 60
      assert len(ids) == len(prompts) and ids.source.tokens.tolist() == ids.target.tokens.tolist()
    for i in range(0, len(ids), 1 + len(ids) // 8):
      prompt, length = (prompts[i], MAX_LEN) if task == 'lm' else (ids.source[i], 6)
      out = fd.decode(module, params, prompt[None], fd.Greedy(), max_len=length)
      tokens = [t for t in out.tokens[0, : out.lengths[0]].tolist() if t not in module.eos_ids]
      before = prompt[1:].tolist() if task == 'lm' else []
      assert ids.target[i].tolist() == [*before, *tokens, 1]
  trained_on = dataclasses.replace(text.config, own=str(tmp_path))
  assert trained_on.key != text.config.key
  held_out = ids_of(tmp_path, 'dev')
  assert trained_on.open().own_dev().target.tokens.tolist() == held_out.target.tokens.tolist()


@pytest.mark.wide('translation')
def test_stopped_anywhere_it_continues_and_yields_the_same_bytes(written, tmp_path, monkeypatch):
  task, *_, write = written
  begun = []

  def stop_before_the_third_part():
    begun.append(1)
    if len(begun) in (3, 6):
      raise OutOfTime

  monkeypatch.setattr(training_written, 'check_budget', stop_before_the_third_part)
  for _ in range(2):
    with pytest.raises(OutOfTime):
      write(tmp_path / 'stopped')
    assert not (tmp_path / 'stopped' / 'config.json').exists()
  write(tmp_path / 'stopped')
  write(tmp_path / 'whole')
  for name in FILES if task == 'lm' else (*FILES, 'train.de'):
    (stopped,), (whole,) = ((tmp_path / one).glob(name) for one in ('stopped', 'whole'))
    assert stopped.name == whole.name and stopped.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize('settings, message', [
  ({'samples': 2}, r'samples=2 with beam=4 is not possible'),
  ({'n_best': 5}, r'n_best=5 is not possible: beam=4 is the most'),
  ({'max_len': (0, 0)}, r'max_len=\(0, 0\) is not possible'),
])  # fmt: skip
def test_a_search_that_cannot_be(settings, message):
  with pytest.raises(fd.UserError, match=message):
    DistillConfig(**settings)
