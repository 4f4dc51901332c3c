"""Mistakes at the command line of `experiments.generate`: a sentence each, before weights are read
if possible."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fastdec.folders.stored import Stored
from tests.experiments.conftest import ROOT

MISTAKES = {
  'no prompt': ([], 'nothing to go on from'),
  'both': (['--prompt=a', '--prompts={files}/lines', '--output=o'], 'both given'),
  'no output': (['--prompts={files}/lines'], 'belong together'),
  'empty prompt': (['--prompt= '], 'the prompt is empty'),
  'unknown folder': (['--prompt=a', '--model={files}/nowhere'], 'is not a folder'),
  "a model's name": (
    ['--prompt=a', '--model=Qwen/Qwen2-0.5B'],
    'hf download Qwen/Qwen2-0.5B --local-dir=Qwen2-0.5B',
  ),
  'unknown draft': (['--prompt=a', '--draft={files}/nowhere'], 'is not a folder'),
  'unknown heads': (['--prompt=a', '--heads={files}/nowhere'], 'is not a folder'),
  'two drafters': (
    ['--prompt=a', '--draft={model}', '--lookup'],
    '--draft and --lookup each say how to draft',
  ),
  'gamma of nothing': (['--prompt=a', '--gamma=2'], 'is about drafts'),
  'unknown draft network': (['--prompt=a', '--draft-head={files}/nowhere'], 'is not a folder'),
  'heads for a draft network': (
    ['--prompt=a', '--draft-head={model}'],
    'is not of a fastdec draft',
  ),
  'nodes of nothing': (
    ['--prompt=a', '--nodes=8'],
    '--nodes=8 is about the tree of a draft network',
  ),
  'nodes of heads': (
    ['--prompt=a', '--heads={model}', '--nodes=8'],
    '--nodes=8 is about the tree of a draft network',
  ),
  'draft and network': (
    ['--prompt=a', '--draft={model}', '--draft-head={model}'],
    '--draft and --draft-head each say',
  ),
  'gamma of lookahead': (
    ['--prompt=a', '--lookahead', '--gamma=3'],
    '--lookahead guesses n-grams: leave it out',
  ),
  'pool of nothing': (
    ['--prompt=a', '--pool=p'],
    '--pool=p has guesses for text that is drafted from: give',
  ),
  'unknown pool': (
    ['--prompt=a', '--lookup', '--pool={files}/nowhere'],
    '{files}/nowhere is not a file',
  ),
  'gamma 0': (['--prompt=a', '--gamma=0', '--lookup'], '--gamma=0 is not possible'),
  'unknown medusa': (['--prompt=a', '--medusa={files}/nowhere'], 'is not a folder'),
  'no heads': (['--prompt=a', '--medusa={model}/../short'], 'holds a model without heads'),
  'two kinds of heads': (
    ['--prompt=a', '--heads={model}', '--medusa={model}'],
    '--heads and --medusa each say how to',
  ),
  'choices of nothing': (
    ['--prompt=a', '--choices=zephyr_stage2'],
    '--choices=zephyr_stage2 is about a tree',
  ),
  'choices of a chain': (
    ['--prompt=a', '--heads={model}', '--choices=zephyr_stage2'],
    'give --medusa=folder too',
  ),
  'gamma of a tree': (
    ['--prompt=a', '--medusa={model}', '--gamma=2'],
    '--gamma=2 is about a chain',
  ),
  'top_k of a tree': (
    ['--prompt=a', '--medusa={model}', '--temperature=1', '--top_k=3'],
    '--medusa does not sample',
  ),
  'unknown tree': (
    ['--prompt=a', '--medusa={model}', '--choices=mc'],
    "'mc' is no published tree: known are mc_sim_7",
  ),
  'no tree': (
    ['--prompt=a', '--medusa={model}', '--choices={files}/lines'],
    '{files}/lines is not JSON',
  ),
  'an orphan': (
    ['--prompt=a', '--medusa={model}', '--choices={files}/orphan'],
    'choice [1, 0] has no parent',
  ),
  'a deep tree': (
    ['--prompt=a', '--medusa={model}', '--choices=zephyr_stage2'],
    'is 4 deep, and there are 2 heads',
  ),
  'a wide tree': (
    ['--prompt=a', '--medusa={model}', '--choices={files}/wide'],
    '31 choices, and there are 30 words',
  ),
  'heads of another width': (
    ['--prompt=a', '--medusa={model}/../wide'],
    'hidden states of 6, and this model has 8',
  ),
  'a chain of another width': (
    ['--prompt=a', '--heads={model}/../wide'],
    'hidden states of 6, and this model has 8',
  ),
  'heads of other words': (
    ['--prompt=a', '--medusa={model}/../wordy'],
    'among 31 words, and this model has 30',
  ),
  'too many heads': (['--prompt=a', '--gamma=3', '--heads={model}'], 'k=4 is out of range'),
  'cold': (['--prompt=a', '--temperature=-1'], '--temperature=-1'),
  'top_k of greedy': (['--prompt=a', '--top_k=3'], 'about sampling'),
  'top_p': (['--prompt=a', '--temperature=1', '--top_p=0'], 'top_p=0.0 is not possible'),
  'not a temperature': (['--prompt=a', '--temperature=nan'], 'temperature=nan'),
  'another tokenizer': (
    ['--prompt=a', '--draft={model}/../other'],
    '/other has 18 tokens and {model} 30, of which',
  ),
  'short-sighted draft': (
    ['--prompt=a', '--draft={model}/../short'],
    "the draft model's 4 positions",
  ),
  'too long': (['--prompt=' + 'dog ' * 40], "exceeds the model's 32 positions"),
  'too long an output': (['--prompt=a', '--max_len=33'], "exceeds the model's 32 positions"),
  'no file': (['--prompts={files}/nowhere', '--output={files}/out'], 'cannot read'),
  'empty file': (['--prompts={files}/empty', '--output={files}/out'], 'is empty'),
  'empty line': (['--prompts={files}/gap', '--output={files}/out'], 'line 2 of'),
  'not UTF-8': (
    ['--prompts={files}/latin', '--output={files}/out'],
    'line 2 of {files}/latin is not UTF-8',
  ),
  'long line': (['--prompts={files}/long', '--output={files}/out'], 'prompt 2 of'),
  'output folder': (['--prompts={files}/lines', '--output={files}'], 'is a folder'),
}


TREES = (
  ('orphan', b'[[0], [1, 0]]'),
  ('wide', json.dumps([[rank] for rank in range(31)]).encode()),
)


@pytest.fixture(scope='module')
def files(tmp_path_factory):
  place = tmp_path_factory.mktemp('files')
  for name, data in (
    ('lines', b'a\n'),
    ('empty', b''),
    ('gap', b'a\n \nb\n'),
    ('latin', b'a\nzur\xfcck\n'),
    *TREES,
  ):
    (place / name).write_bytes(data)
  (place / 'long').write_text('a\n' + 'dog ' * 40 + '\n')
  return place


@pytest.mark.parametrize('name', MISTAKES)
def test_a_mistake_is_one_sentence_before_weights_are_read(
  translator, files, launch, name, monkeypatch
):
  words, expected = MISTAKES[name]
  monkeypatch.setattr(Stored, '__getitem__', lambda self, index: pytest.fail('a tensor is read'))
  words = [word.format(files=files, model=translator) for word in words]
  ended = launch('generate', f'--model={translator}', '--max_len=8', *words)
  assert ended.code == 2 and ended.out == '', ended
  assert expected.format(files=files, model=translator) in ended.err and ended.err.count('\n') == 1
  assert not (files / 'out').exists()


@pytest.mark.parametrize(
  'words',
  [['--prompt=a'], ['--prompt=a', '--lookup'], ['--prompts={files}/lines', '--output={out}']],
)
def test_weights_that_are_no_numbers_write_no_words(translator, files, launch, tmp_path, words):
  folder, out = shutil.copytree(translator, tmp_path / 'broken'), tmp_path / 'out.jsonl'
  weights = load_file(folder / 'model.safetensors')
  save_file(
    {name: np.full_like(x, np.nan) for name, x in weights.items()}, folder / 'model.safetensors'
  )
  ended = launch(
    'generate',
    f'--model={folder}',
    '--max_len=8',
    *(word.format(files=files, out=out) for word in words),
  )
  assert ended.code == 2 and not ended.out.strip()
  assert (
    'the logits of 1 of 1 rows were NaN or infinite' in ended.err and 'Traceback' not in ended.err
  )
  assert not out.exists() or not out.read_text()


TINY = ROOT.parent / 'shared' / 'reference' / 'hf' / 'llama_tiny'
needs_tiny = pytest.mark.skipif(not TINY.is_dir(), reason='../shared/reference/hf is not there')


def broken(folder, name, tiny):
  """The folder of Hugging Face's, with one thing wrong."""
  config = json.loads((tiny / 'config.json').read_text())
  tensors = load_file(tiny / 'model.safetensors')
  if name == 'no config':
    (folder / 'config.json').unlink()
  elif name in CONFIGS:
    (folder / 'config.json').write_text(json.dumps(config | CONFIGS[name]))
  elif name == 'pickle':
    (folder / 'model.safetensors').rename(folder / 'pytorch_model.bin')
  elif name == 'missing':
    save_file(
      {name: x for name, x in tensors.items() if 'layers.1.mlp' not in name},
      folder / 'model.safetensors',
    )
  elif name == 'extra':
    save_file(
      tensors | {'model.layers.7.gate': np.zeros(2, np.float32)}, folder / 'model.safetensors'
    )
  elif name == 'torn':
    (folder / 'model.safetensors').write_bytes((tiny / 'model.safetensors').read_bytes()[:-100])
  elif name == 'no tokenizer':
    (folder / 'tokenizer.model').unlink()


CONFIGS = {
  'unknown type': {'model_type': 'mamba'},
  'an option that we lack': {'rope_parameters': {'rope_type': 'yarn', 'rope_theta': 1e4}},
  'short context': {'max_position_embeddings': 8},
  'another size': {'intermediate_size': 48},
}
BROKEN = {
  'no config': ([], 'has no config.json'),
  'unknown type': ([], "is of model_type 'mamba': known are llama, marian, mistral, "),
  'an option that we lack': ([], 'yarn'),
  'no tokenizer': ([], 'has no tokenizer (looked for tokenizer.json, '),
  'pickle': ([], 'only as pickle (pytorch_model.bin), which is refused: convert by python -c "'),
  'missing': ([], 'lacks model.layers.1.mlp.gate_proj.weight, '),
  'extra': ([], 'has unknown model.layers.7.gate: '),
  'torn': ([], 'is corrupt or cut short'),
  'another size': ([], 'and config.json means'),
  'short context': (['--max_len=8'], "--max_len=8 exceed the model's 8 positions: lower"),
  'empty prompt': (['--prompt='], 'the prompt is empty'),
  'gamma': (['--lookup', '--gamma=0'], '--gamma=0 is not possible'),
  'negative gamma': (['--lookup', '--gamma=-3'], '--gamma=-3 is not possible'),
  'temperature': (['--temperature=-0.5'], '--temperature=-0.5 is not possible'),
  'draft with an encoder': (
    ['--draft={model}'],
    'the draft model has an encoder, and the target has none',
  ),
  'draft of other tokens': (['--draft={model}/../other'], 'other has 18 tokens and '),
}
READ = ('missing', 'extra', 'another size')  # what the weights alone tell


@needs_tiny
@pytest.mark.parametrize('name', BROKEN)
def test_what_is_wrong_with_a_folder_of_hugging_face_is_one_sentence(
  translator, tmp_path, launch, name, monkeypatch
):
  tiny = tmp_path / 'tiny'
  tiny.mkdir()
  for file in ('config.json', 'generation_config.json', 'model.safetensors'):
    (tiny / file).write_bytes((TINY / file).read_bytes())
  shutil.copy(translator / 'tokenizer.model', tiny)
  broken(tiny, name, TINY)
  if name not in READ:
    monkeypatch.setattr(Stored, '__getitem__', None)
  words, expected = BROKEN[name]
  ended = launch(
    'generate',
    f'--model={tiny}',
    '--prompt=a dog',
    *[word.format(model=translator) for word in words],
  )
  assert ended.code == 2 and ended.out == '', ended
  assert expected in ended.err and ended.err.count('\n') == 1
