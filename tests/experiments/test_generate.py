"""Text for people: what is streamed, what a file of prompts yields, what is refused; nothing twice after a stop."""

import dataclasses
import io
import json
import shutil

import hypothesis
import jax
import numpy as np
import pytest
import rich.console
from hypothesis import strategies as st

import fastdec as fd
from experiments import generation, prompt_file, streaming
from fastdec import folders
from fastdec.data.tokenizer import Tokenizer
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.models.transformer import Transformer, TransformerConfig
from tests.decoding.fakes import HashLM

LINES = ['a dog runs', 'ein Hund rennt', 'the cat sits', 'die Katze sitzt']
CONFIG = TransformerConfig(
  vocab_size=30, d_model=8, d_ff=12, heads=2, encoder_layers=1, decoder_layers=1, max_positions=32
)
HEADS = BlockwiseHeads(k=3, d_model=8, d_ff=6)
PROMPTS = [*LINES, 'a cat', 'the dog sits']


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A translator without training, with heads; beside it 'smaller', which reads alike, and 'other', which does not."""
  place = tmp_path_factory.mktemp('models')
  for name, lines, key in (('model', LINES, 0), ('smaller', LINES, 1), ('other', ['zu viel', 'quer', 'hin'], 2)):
    size = 30 if lines is LINES else 18
    Tokenizer.train(lines, place / 'pieces.model', vocab_size=size)
    model = Transformer(dataclasses.replace(CONFIG, vocab_size=size))
    heads = (HEADS, jax.jit(HEADS.init)(jax.random.key(3)))
    folders.save(place / name, model, jax.jit(model.init)(jax.random.key(key)), place / 'pieces.model', heads)
  return place / 'model'


@pytest.fixture
def prompts(tmp_path):
  path = tmp_path / 'prompts.txt'
  path.write_text('\n'.join(PROMPTS) + '\n')
  return path


def greedy_text(folder, prompt, max_len):
  model, params = fd.load(folder)
  tokenizer = fd.load_tokenizer(folder)
  out = fd.decode(model, params, [[*tokenizer.encode(prompt), 1]], fd.Greedy(), max_len=max_len)
  return tokenizer.decode(np.asarray(out.tokens[0]).tolist()), int(out.lengths[0])


@pytest.mark.parametrize('words', [['--lookup'], ['--heads={}', '--gamma=1'], ['--draft={}'], []])
def test_one_prompt_is_what_greedy_writes_and_is_counted(folder, launch, words):
  words = [word.format(folder) for word in words]
  ended = launch('generate', f'--model={folder}', '--prompt=a dog sits', '--max_len=12', '--repeats=1', *words)
  assert ended.code == 0, ended.err
  text, length = greedy_text(folder, 'a dog sits', 12)
  lines = ended.out.splitlines()
  assert lines[0] == text and lines[1].startswith(f'{length} tokens, ') and 'tokens per call' in lines[1]
  assert 'tokens per second' in lines[-1]
  assert ('times greedy decoding' in lines[-1]) == ('accepted at 1: ' in ended.out) == bool(words)
  if words == [f'--draft={folder}']:  # a model that drafts for itself is always right
    assert lines[1].startswith(f'{length} tokens, {-(-(length - 1) // 5)} calls: ')


def test_sampling_follows_the_seed(folder, launch):
  words = ('generate', f'--model={folder}', '--prompt=a dog', '--temperature=1', '--repeats=0', '--lookup')
  same, again, other = (launch(*words, f'--seed={seed}', '--max_len=20').out for seed in (0, 0, 1))
  assert same == again != other


def lines_of(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_file_of_prompts_yields_a_line_each_in_their_order(folder, launch, prompts, tmp_path):
  out = tmp_path / 'new' / 'out.jsonl'
  ended = launch('generate', f'--model={folder}', f'--prompts={prompts}', f'--output={out}', '--max_len=9', '--lookup')
  assert ended.code == 0 and '6 outputs, 6 of them new' in ended.out, ended.err
  lines = lines_of(out)
  assert [line['index'] for line in lines] == list(range(6)) and [line['prompt'] for line in lines] == PROMPTS
  assert (lines[1]['text'], lines[1]['tokens']) == greedy_text(folder, PROMPTS[1], 9)
  assert sorted(path.name for path in out.parent.iterdir()) == ['out.jsonl', 'out.jsonl.settings.json']


def test_a_run_that_was_stopped_goes_on(folder, launch, prompts, tmp_path, monkeypatch):
  """Ctrl-C after two exchanges: what is done is kept; a torn line is made again, and all draw what they would have."""
  words = ('generate', f'--model={folder}', f'--prompts={prompts}', '--max_len=9', '--temperature=1', '--rows=4')
  whole, stopped = tmp_path / 'whole.jsonl', tmp_path / 'stopped.jsonl'
  assert launch(*words, f'--output={whole}').code == 0
  with monkeypatch.context() as patch:
    append, calls = prompt_file._append, []

    def interrupted(*args):
      calls.append(args)
      if len(calls) > 2:
        raise KeyboardInterrupt
      append(*args)

    patch.setattr(prompt_file, '_append', interrupted)
    ended = launch(*words, f'--output={stopped}')
  assert ended.code == 130 and ended.err.strip() == 'Interrupted.'
  kept = stopped.read_bytes()
  assert kept.count(b'\n') == 2 and kept.endswith(b'\n')
  stopped.write_bytes(kept + b'{"index": 3, "prom')
  ended = launch(*words, f'--output={stopped}')
  assert ended.code == 0 and '4 of them new' in ended.out
  assert stopped.read_bytes() == whole.read_bytes()
  assert '0 of them new' in launch(*words, f'--output={stopped}').out and stopped.read_bytes() == whole.read_bytes()


def test_an_output_of_other_settings_is_refused_and_kept(folder, launch, prompts, tmp_path):
  out, words = tmp_path / 'out.jsonl', ('generate', f'--model={folder}', f'--prompts={prompts}', '--max_len=3')
  assert launch(*words, f'--output={out}').code == 0
  before = out.read_bytes()
  for word, named in (('--seed=1', 'seed'), ('--lookup', 'lookup'), (f'--model={folder}/../smaller', 'model')):
    ended = launch(*words, f'--output={out}', word)
    assert (ended.code, out.read_bytes()) == (2, before) and f'other settings ({named})' in ended.err
  prompts.write_text('a dog\n')
  assert 'other settings (prompts)' in launch(*words, f'--output={out}').err
  (tmp_path / 'out.jsonl.settings.json').unlink()
  assert 'without its settings' in launch(*words, f'--output={out}').err and out.read_bytes() == before


def test_two_processes_do_not_write_one_file(tmp_path):
  output = prompt_file.Output(tmp_path / 'out.jsonl', {}, 1)
  with output.open(), pytest.raises(fd.UserError, match='another process'), output.open():
    pass


def test_a_damaged_line_is_named(tmp_path):
  output = prompt_file.Output(tmp_path / 'out.jsonl', {}, 3)
  for second in (b'nonsense', b'{"index": 0}', b'{"index": 3}', b'[1]'):
    output.path.write_bytes(b'{"index": 0}\n' + second + b'\n')
    with pytest.raises(fd.UserError, match=r'line 2 of .* is damaged'):
      output.done()


MISTAKES = {
  'no prompt': ([], 'nothing to go on from'),
  'both': (['--prompt=a', '--prompts={files}/lines', '--output=o'], 'both given'),
  'no output': (['--prompts={files}/lines'], 'belong together'),
  'empty prompt': (['--prompt= '], 'the prompt is empty'),
  'unknown folder': (['--prompt=a', '--model={files}/nowhere'], 'is not a folder'),
  'unknown draft': (['--prompt=a', '--draft={files}/nowhere'], 'is not a folder'),
  'unknown heads': (['--prompt=a', '--heads={files}/nowhere'], 'is not a folder'),
  'two drafters': (['--prompt=a', '--draft={model}', '--lookup'], '--draft and --lookup each say how to draft'),
  'gamma of nothing': (['--prompt=a', '--gamma=2'], 'is about drafts'),
  'gamma 0': (['--prompt=a', '--gamma=0', '--lookup'], '--gamma=0 is not possible'),
  'too many heads': (['--prompt=a', '--gamma=3', '--heads={model}'], 'k=4 is out of range'),
  'cold': (['--prompt=a', '--temperature=-1'], '--temperature=-1'),
  'top_k of greedy': (['--prompt=a', '--top_k=3'], 'about sampling'),
  'top_p': (['--prompt=a', '--temperature=1', '--top_p=0'], 'top_p=0.0 is not possible'),
  'another tokenizer': (['--prompt=a', '--draft={model}/../other'], 'with the same tokenizer'),
  'too long': (['--prompt=' + 'dog ' * 40], "exceeds the model's 32 positions"),
  'too long an output': (['--prompt=a', '--max_len=33'], "exceeds the model's 32 positions"),
  'no file': (['--prompts={files}/nowhere', '--output={files}/out'], 'cannot read'),
  'empty file': (['--prompts={files}/empty', '--output={files}/out'], 'is empty'),
  'empty line': (['--prompts={files}/gap', '--output={files}/out'], 'line 2 of'),
  'not UTF-8': (['--prompts={files}/latin', '--output={files}/out'], 'line 2 of {files}/latin is not UTF-8'),
  'long line': (['--prompts={files}/long', '--output={files}/out'], 'prompt 2 has'),
  'output folder': (['--prompts={files}/lines', '--output={files}'], 'is a folder'),
}


@pytest.fixture(scope='module')
def files(tmp_path_factory):
  place = tmp_path_factory.mktemp('files')
  for name, data in (('lines', b'a\n'), ('empty', b''), ('gap', b'a\n \nb\n'), ('latin', b'a\nzur\xfcck\n')):
    (place / name).write_bytes(data)
  (place / 'long').write_text('a\n' + 'dog ' * 40 + '\n')
  return place


@pytest.mark.parametrize('name', MISTAKES)
def test_a_mistake_is_one_sentence(folder, files, launch, name):
  words, expected = MISTAKES[name]
  words = [word.format(files=files, model=folder) for word in words]
  ended = launch('generate', f'--model={folder}', '--max_len=8', *words)
  assert ended.code == 2 and ended.out == '', ended
  assert expected.format(files=files) in ended.err and ended.err.count('\n') == 1
  assert not (files / 'out').exists()


class Bytes:
  """Ids are pieces of bytes, some of them parts of a character; a space at the very beginning is left out."""

  pieces = (b'', b'', b' a', b'b', b' ', 'é'.encode()[:1], 'é'.encode()[1:], *(bytes([x]) for x in '語'.encode()),
            b' cd', b'.', b' x', 'ß'.encode())  # fmt: skip
  vocab_size = len(pieces)

  def encode(self, text):
    return [self.pieces.index(piece.encode()) for piece in text.split('|')]

  def decode(self, ids):
    return b''.join(self.pieces[i] for i in ids).decode(errors='replace').removeprefix(' ')


@hypothesis.given(
  context=st.lists(st.sampled_from([2, 3, 10, 13]), max_size=3), blocks=st.lists(st.lists(st.integers(2, 13)))
)
def test_characters_that_blocks_split_come_out_whole(context, blocks):
  reader = generation.Reader(Bytes(), context)
  said = [reader.add(block) for block in blocks]
  ids = [i for block in blocks for i in block]
  assert not said or not said[-1].endswith('\ufffd')
  assert Bytes().decode(context) + ''.join(said) + reader.finish() == Bytes().decode(context + ids)


def test_a_decoder_only_model_goes_on_from_its_prompt():
  """One prompt, streamed: the prompt, then all that follows it, spaces as they are within a sentence."""
  settings = generation.Settings('model', lookup=True, max_len=20)
  strategy = generation.strategy_of(settings, None, None)
  generator = generation.Generator(HashLM(vocab_size=14), {}, Bytes(), strategy, settings)
  file = io.StringIO()
  streaming.show(rich.console.Console(file=file, width=80), generator, ' a|b', 0)
  tokens = fd.decode(HashLM(), {}, [[2, 3]], fd.Greedy(), max_len=20).tokens[0]
  text = Bytes().decode([2, 3, *np.asarray(tokens).tolist()]).removeprefix('ab')
  assert file.getvalue().startswith(f' a|b{text}\n')
  with pytest.raises(fd.UserError, match='2 tokens, which with --max_len=20 exceeds'):
    generation.Generator(HashLM(max_positions=20), {}, Bytes(), strategy, settings).check([' a|b'])


def test_blocks_are_coloured_in_turn():
  settings = generation.Settings('model', lookup=True, max_len=30)
  strategy = generation.strategy_of(settings, None, None)
  generator = generation.Generator(HashLM(vocab_size=14), {}, Bytes(), strategy, settings)
  file = io.StringIO()
  console = rich.console.Console(file=file, force_terminal=True, color_system='standard', _environ={})
  sizes = streaming.stream(console, generator, ' a', {'inputs': np.array([[2]], np.int32), 'max_len': 30})
  assert len(sizes) > 3 and '\x1b[36m' in file.getvalue() and '\x1b[33m' in file.getvalue()


def test_shares_of_calls_that_accept_each_place():
  assert generation.accepted_shares([1, 3, 2, 1], 3) == [0.5, 0.25, 0.0]
  assert generation.accepted_shares([], 3) == []


def test_a_model_s_own_copy_is_a_folder_of_the_same_settings(folder, tmp_path):
  """What counts is what a folder holds, not where it lies."""
  copy = shutil.copytree(folder, tmp_path / 'copy')
  outputs = [
    prompt_file.Output.of(tmp_path / 'out.jsonl', generation.Settings(str(path)), ['a']) for path in (folder, copy)
  ]
  assert outputs[0].record == outputs[1].record
