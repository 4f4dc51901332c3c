"""Mistakes of `fastdec generate`: each is one sentence, before the model's weights are read.
tests/text has the mistakes of `fd.Generator.load`."""

import json
import shutil
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fastdec.folders.native import NativeFolder

MISTAKES = {
  'no prompt': ([], 'nothing to continue'),
  'both': (['--prompt=a', '--prompts={files}/lines', '--output=o'], 'used with --prompts: give'),
  'no output': (['--prompts={files}/lines'], '--prompts needs --output'),
  'empty prompt': (['--prompt= '], '--prompt is empty'),
  'unknown folder': (['--prompt=a', '--model={files}/nowhere'], 'is not a folder'),
  "a model's name": (
    ['--prompt=a', '--model=Qwen/Qwen2-0.5B'],
    'hf download Qwen/Qwen2-0.5B --local-dir=Qwen2-0.5B',
  ),
  'no heads': (['--prompt=a', '--heads={model}/../short'], 'holds a model without heads'),
  'no strategy': (['--prompt=a', '--strategy=fast'], "'fast' is not a strategy: known are Greedy"),
  'a schema that is text': (
    ['--prompt=a', '--json-schema={files}/lines'],
    '{files}/lines is not JSON (Expecting value: line 1 column 1 (char 0)): give the file of',
  ),
  'many likely ones': (['--prompt=a', '--logprobs=31'], 'logprobs=31 is more than a call can hold'),
  'unknown tree': (
    ['--prompt=a', "--strategy=medusa(choices='mc')"],
    "'mc' is not a published tree: known are mc_sim_7",
  ),
  'a deep tree': (
    ['--prompt=a', "--strategy=medusa(choices='zephyr_stage2')"],
    'is 4 deep, and there are 2 heads',
  ),
  'heads of other words': (
    ['--prompt=a', '--heads={model}/../wordy'],
    'among 31 words, and this model has 30',
  ),
  'too many heads': (['--prompt=a', '--strategy=blockwise(k=4)'], 'k=4 is out of range'),
  'cold': (['--prompt=a', '--temperature=-1'], '--temperature=-1 is not possible'),
  'top-k of greedy': (['--prompt=a', '--top-k=3'], 'about sampling'),
  'top-p beside heads': (
    ['--prompt=a', '--strategy=medusa', '--top-p=2'],
    'top_p=2.0 is not possible',
  ),
  'too long': (['--prompt=' + 'dog ' * 40], "exceeds the model's 32 positions"),
  'a seed': (['--prompt=a', '--seed=4294967296'], 'give a whole number, 0 to 4294967295'),
  'empty line': (['--prompts={files}/gap', '--output={files}/out'], 'line 2 of'),
  'output folder': (['--prompts={files}/lines', '--output={files}'], 'is a folder'),
  'output name': (['--prompts={files}/lines', f'--output={"x" * 5000}'], 'no file can be called'),
  'trace name': (['--prompt=a', '--trace=/proc/x/trace'], 'cannot write /proc/x/trace'),
  'one file for both': (
    ['--prompts={files}/lines', '--output={files}/o', '--trace={files}/../{files.name}/o'],
    'are the same file',
  ),
  'half a character': (['--prompts={files}/half.jsonl', '--output={files}/out'], 'line 1 of'),
}


@pytest.fixture(scope='module')
def files(tmp_path_factory):
  place = tmp_path_factory.mktemp('files')
  wide = json.dumps([[rank] for rank in range(31)])
  for name, text in {
    'lines': 'a\n', 'lines.json': 'a\n', 'gap': 'a\n \nb\n', 'wide.json': wide,
    'long': 'a\n' + 'dog ' * 40 + '\n', 'half.jsonl': r'{"prompt": "a\ud800"}', 'form.json': '{}',
  }.items():  # fmt: skip
    (place / name).write_text(text)
  return place


@pytest.mark.parametrize('name', MISTAKES)
def test_a_mistake_is_one_sentence_before_the_models_weights_are_read(
  translator, files, fastdec, name, monkeypatch
):
  words, expected = MISTAKES[name]
  read = lambda self, mesh=None, as_stored=False: pytest.fail('the model is read')
  monkeypatch.setattr(NativeFolder, 'params', read)
  words = [word.format(files=files, model=translator) for word in words]
  ended = fastdec('generate', '--model', translator, '--max-len=8', *words)
  assert expected.format(files=files, model=translator) in ended.mistake and ended.out == ''
  assert not (files / 'out').exists()


def test_what_a_form_needs_is_missed_before_anything_is_read(fastdec, files, monkeypatch):
  monkeypatch.setitem(sys.modules, 'outlines_core', None)
  for form in ('--regex=a', f'--json-schema={files}/form.json'):
    ended = fastdec('generate', '--model=nowhere', '--prompt=a', form)
    assert "outlines_core is not installed: run pip install 'fastdec[constraint]'" in ended.mistake


@pytest.mark.parametrize(
  'words',
  [
    ['--prompt=a'],
    ['--prompt=a', '--strategy=prompt_lookup'],
    ['--prompts={files}/lines', '--output={out}'],
  ],
)
def test_weights_that_are_not_numbers_write_no_words(translator, files, fastdec, tmp_path, words):
  folder, out = shutil.copytree(translator, tmp_path / 'broken'), tmp_path / 'out.jsonl'
  weights = load_file(folder / 'model.safetensors')
  nothing = {name: np.full_like(x, np.nan) for name, x in weights.items()}
  save_file(nothing, folder / 'model.safetensors')
  words = [word.format(files=files, out=out) for word in words]
  ended = fastdec('generate', '--model', folder, '--max-len=8', *words)
  assert 'the logits of 1 of 1 rows were NaN or infinite' in ended.mistake
  assert not ended.out.strip() and (not out.exists() or not out.read_text())


@pytest.mark.parametrize(
  'words, expected',
  [
    ([], 'has no tokenizer (looked for tokenizer.json, '),
    (['--draft={model}'], 'give a draft model with the same tokenizer'),
  ],
)
def test_what_is_wrong_with_a_folder_of_hugging_face_is_one_sentence(
  translator, tmp_path, fastdec, shared, words, expected
):
  theirs, tiny = shared / 'reference' / 'hf' / 'llama_tiny', tmp_path / 'tiny'
  if not theirs.is_dir():
    pytest.skip(f'{theirs} is not there')
  tiny.mkdir()
  for file in ('config.json', 'generation_config.json', 'model.safetensors'):
    (tiny / file).write_bytes((theirs / file).read_bytes())
  if words:
    shutil.copy(translator / 'tokenizer.model', tiny)
  words = [word.format(model=translator) for word in words]
  assert expected in fastdec('generate', '--model', tiny, '--prompt=a dog', *words).mistake
