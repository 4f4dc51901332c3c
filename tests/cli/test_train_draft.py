"""Drafts that are trained by the command line."""

import argparse
import json
import random
import signal
import subprocess
import sys

import jax
import numpy as np
import pytest

import fastdec as fd
from fastdec.cli import opening, train_draft
from fastdec.data.text.tokens import TokenPairs
from fastdec.folders.drafts import save_draft
from fastdec.struct import Bound
from fastdec.training import run, written
from fastdec.training.drafts import kept, trainer
from fastdec.training.drafts.settings import TrainedDraft


@pytest.mark.wide('heads')
@pytest.mark.parametrize('kind', ['eagle', 'block', 'heads'])
def test_a_draft_is_trained_and_drafts(translator, fastdec, prompts, tmp_path, kind, monkeypatch):
  out = tmp_path / 'draft'
  words = ('train-draft', '--model', translator, '--prompts', prompts, '--out', out)
  words += (f'--kind={kind}', '--steps=2', '--rows=2', '--max-len=8', '--no-tune')
  monkeypatch.setattr(train_draft, 'PART', 4)
  monkeypatch.setattr(train_draft, 'LEAST', 0)
  stopped = lambda *args, **kw: (_ for _ in ()).throw(KeyboardInterrupt)
  with monkeypatch.context() as patch:  # after some texts
    write_part, parts = written.write_part, []
    patch.setattr(
      train_draft,
      'write_part',
      lambda *args: parts.append(args) or (write_part if len(parts) < 2 else stopped)(*args),
    )
    assert fastdec(*words).code == 130
  with monkeypatch.context() as patch:  # before the training
    patch.setattr(trainer, 'carry_out', stopped)
    assert fastdec(*words).code == 130 and not out.exists()
  files = sorted(tmp_path.glob('train-draft-text-*/*.jsonl'))
  assert [len(file.read_text().splitlines()) for file in files] == [4, 2]  # of 6 prompts
  monkeypatch.setattr(written, 'decode_list', lambda *args, **kw: pytest.fail('written again'))
  changed = fastdec(*words, '--seed=1', '--steps=3').mistake
  assert 'was made with other settings (steps, seed): give another --out' in changed
  ended = fastdec(*words)
  assert ended.code == 0 and f'={out}' in ended.out.splitlines()[-1], ended
  assert ('is predicted to be ' in ended.out) == (kind != 'heads')
  before = [(file, file.read_bytes()) for file in sorted(out.iterdir())]
  with monkeypatch.context() as patch:
    patch.setattr(trainer, 'carry_out', stopped)
    assert fastdec(*words).out == f'{out} is done already: use it by {ended.out.split()[-1]}\n'
    assert fastdec(*words, '--steps=3', f'--out={tmp_path}/other').code == 130
  assert before == [(file, file.read_bytes()) for file in sorted(out.iterdir())]
  flag = 'heads' if kind == 'heads' else 'draft'
  drafted = fastdec(
    'generate', '--model', translator, f'--{flag}', out, '--prompt=a dog', '--max-len=8', '--plain'
  )
  greedy = fastdec('generate', '--model', translator, '--prompt=a dog', '--max-len=8', '--plain')
  assert drafted.code == 0 and drafted.out == greedy.out, drafted.err


def stop_at(patch, module, name, number):
  """Interrupts a command before the call of this number to a function."""
  calls, function = [], getattr(module, name)

  def call(*args, **settings):
    calls.append(args)
    if len(calls) == number:
      raise KeyboardInterrupt
    return function(*args, **settings)

  patch.setattr(module, name, call)


def test_stopped_anywhere_next_to_other_commands_a_training_ends_alike(
  talker, fastdec, tmp_path, monkeypatch
):
  """All commands in a folder share the model's texts. Those with a budget take only some, and the
  states of other texts are others."""
  prompts = tmp_path / 'prompts.txt'
  prompts.write_text(''.join(f'A {one} {other}\n' for one in ('man', 'dog') for other in 'abcde'))
  for name, number in {'PART': 4, 'FEW': 0, 'FOR_TEXT': 0, 'FOR_STEPS': 1e-9}.items():
    monkeypatch.setattr(train_draft, name, number)

  def train(folder, out, *words, stop=None):
    with monkeypatch.context() as patch:
      if stop is not None:
        stop_at(patch, *stop)
      flags = ('--model', talker, '--prompts', prompts, f'--out={tmp_path}/{folder}/{out}')
      flags += ('--max-len=6', '--rows=2', '--words=12', '--no-tune', *words)
      ended = fastdec('train-draft', *flags)
      assert ended.code == (0 if stop is None else 130), ended.err

  def read(folder):
    files = sorted((tmp_path / folder).glob('*.safetensors'))
    assert files
    return [file.read_bytes() for file in files]

  train('whole', 'all', '--steps=2')
  train('whole', 'few', '--budget=9m')
  train('stopped', 'all', '--steps=2', stop=(train_draft, 'write_part', 3))
  train('stopped', 'few', '--budget=9m', stop=(trainer, 'carry_out', 1))
  train('stopped', 'all', '--steps=2', stop=(kept, 'write_json', 3))
  train('stopped', 'few', '--budget=9m')
  train('stopped', 'all', '--steps=2', stop=(run, 'average_checkpoints', 1))
  train('stopped', 'all', '--steps=2')
  assert read('stopped/all') == read('whole/all') != read('stopped/few') == read('whole/few')


# The command, which kills itself before it writes for the time of this number. Its clock counts ten
# seconds for each part of the texts, so that a budget always plans alike.
KILLED = """
import os, signal, sys
import fastdec.cli
from fastdec.cli import train_draft
from fastdec.evaluation import wallclock
from fastdec.training import written

seconds, writes, decode, number = 0.0, 0, written.decode_list, int(sys.argv[1])

def now():
  global seconds
  seconds += 1e-6
  return seconds

def decode_slowly(*args):
  global seconds
  seconds += 10
  return decode(*args)

def count_write(event, args):
  global writes
  is_write = event in ('os.rename', 'os.remove', 'os.mkdir', 'os.symlink')
  if is_write or event == 'open' and args[2] & (os.O_WRONLY | os.O_RDWR):
    writes += sys.argv[2] in str(args[0])
    if writes == number:
      os.kill(os.getpid(), signal.SIGKILL)

wallclock.now, written.decode_list = now, decode_slowly
train_draft.PART, train_draft.FEW = 4, 0
train_draft.time_step = lambda *args: 5.0
sys.addaudithook(count_write)
code = fastdec.cli.main(sys.argv[3:])
print('writes', writes)
sys.exit(code)
"""


@pytest.mark.slow
@pytest.mark.parametrize('limit', ['--steps=4', '--budget=60s'])
def test_killed_at_any_moment_it_ends_alike(talker, tmp_path, limit):
  """SIGKILL after lines of output and before writes, and a second command in between, which
  writes all texts."""
  prompts, moments = tmp_path / 'prompts.txt', random.Random(limit)
  prompts.write_text(
    ''.join(f'A {one} {other}\n' for one in ('man', 'dog') for other in 'abcdefgh')
  )

  def start(out, write=0, limit=limit):
    out.parent.mkdir(exist_ok=True)
    words = [sys.executable, '-c', KILLED, write, out.parent, 'train-draft', '--model', talker]
    words += ['--prompts', prompts, f'--out={out}', '--max-len=6', '--rows=2', '--words=12']
    words = [*map(str, words), '--no-tune', limit]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)

  def read(out):
    texts, folder = {}, out.with_name('draft.training')
    for file in (*out.iterdir(), *(folder / 'texts').iterdir(), *folder.glob('steps/steps.json')):
      texts[file.name] = file.read_bytes()
    return texts

  whole, killed = tmp_path / 'whole' / 'draft', tmp_path / 'killed' / 'draft'
  *lines, last = start(whole).communicate()[0].splitlines()
  writes, kills = int(last.removeprefix('writes ')), 0
  for attempt in range(4):
    write = 0
    if attempt % 2:
      write = moments.randrange(1, writes // 2)
    process, line = start(killed, write), moments.randrange(1, len(lines))
    for count, _ in enumerate(process.stdout, start=1):
      if not write and count == line:
        process.kill()
    ended = process.wait()  # less is left to write after each kill, so the last may end first
    assert ended in (0, -signal.SIGKILL)
    kills += ended != 0
    if attempt == 1:
      assert start(killed.with_name('other'), limit='--steps=2').wait() == 0
  assert start(killed).wait() == 0 and kills >= 2
  assert read(killed) == read(whole)
  if 'budget' in limit:  # 12 of 16 texts, and steps for the rest
    kept = TokenPairs.load(whole.with_name('draft.training') / 'texts' / 'learnt.npy')
    assert len(kept) < 12 and json.loads(read(whole)['steps.json']) == {'steps': 5}


@pytest.mark.parametrize('words, message', [
  (['--kind=tree'], '--kind=tree is not possible: give one of eagle, eagle3, block, dflash, jetsp'),
  (['--loss=tv'], '--loss=tv is no longer supported, since it was measured as no better than kl'),
  (['--as-is'], '--as-is is for a model that continues a text'),
  (['--out={}'], 'is there already, and is not just a draft'),
  (['--max-len=40'], "exceeds the model's 32 positions"),
  (['--prompts={}/../one'], 'has 1 prompt, which is held out: give more'),
  (['--max-len=8', '--start={}/../nowhere'], 'nowhere is not a folder'),
  (['--max-len=8', '--kind=eagle3'], '--kind=eagle3 is for language models: give eagle or block'),
  (['--steps=1'], '--steps=1 is not possible: give a whole number, 2 or more'),
  (['--devices=99'], '--devices=99 is not possible: there are'),
])  # fmt: skip
def test_mistakes_are_one_sentence_and_leave_nothing(
  translator, fastdec, prompts, tmp_path, words, message
):
  flags = ('--model', translator, '--prompts', prompts, f'--out={tmp_path}/draft')
  (translator.parent / 'one').write_text('a dog\n')
  ended = fastdec('train-draft', *flags, *(word.format(translator) for word in words))
  assert message in ended.mistake and not list(tmp_path.glob('draft*'))


def test_texts_as_they_are_may_be_whole_chats(talker, fastdec, tmp_path, monkeypatch):
  asked = {'role': 'user', 'content': 'Who?'}
  chat = [asked, {'role': 'assistant', 'content': 'I.'}]
  records = {'messages': chat}, {'prompt': 'A man'}
  (tmp_path / 'texts').write_text('\n'.join(map(json.dumps, records)))
  seen = []

  def stop(folder, *texts):
    for part in texts:
      seen.extend(part)
    raise fd.UserError('that is enough')

  monkeypatch.setattr(train_draft, 'save_texts', stop)

  words = ('--model', talker, '--prompts', tmp_path / 'texts', f'--out={tmp_path}/draft', '--as-is')
  assert fastdec('train-draft', *words).mistake == 'that is enough\n'
  tokenizer, (end, *_) = fd.load_tokenizer(talker), fd.load(talker)[0].eos_ids
  ids = [*tokenizer.encode_chat(chat, add_generation_prompt=False), end]
  assert (ids, ids) in seen and len(seen) == 2


@pytest.mark.wide('eagle')
@pytest.mark.parametrize('kind', ['eagle', 'eagle3', *train_draft.BLOCKS])
def test_a_draft_is_planned_for_a_budget_and_gives_an_account(
  talker, fastdec, tmp_path, monkeypatch, kind
):
  questions = [{'category': kind, 'prompt': f'A {kind}'} for kind in ('man', 'dog') * 4]
  (tmp_path / 'asked.jsonl').write_text('\n'.join(map(json.dumps, questions)))
  flags = ('--model', talker, '--prompts', tmp_path / 'asked.jsonl', '--max-len=6', '--words=12')
  flags += ('--rows=2', '--loss=ce', '--temperature=1', f'--kind={kind}')
  monkeypatch.setattr(train_draft, 'PART', 4)
  monkeypatch.setattr(train_draft, 'HELD_OUT', 2)
  monkeypatch.setattr(train_draft, 'FOR_TEXT', 0)  # no time but for the first part
  monkeypatch.setattr(train_draft, 'FOR_STEPS', 1e-9)
  asked = []

  def worth(target, strategy, texts):
    asked.append((strategy.drafts_trees, texts))
    return {'all': 1.04 if kind == 'dflash' else 1.5}

  monkeypatch.setattr(train_draft, 'tokens_a_call', worth)
  words = ('train-draft', *flags, f'--out={tmp_path}/draft', '--budget=9m')
  if kind == 'eagle':  # refused before any text is written, and nothing is left
    refused = fastdec(*words)
    assert refused.code == 2
    assert '--budget=540s is too short: after the texts it leaves 0 steps of ' in refused.err
    assert 'and a draft needs 200 or more: give --budget=' in refused.err
    assert sorted(file.name for file in tmp_path.iterdir()) == ['asked.jsonl']
  monkeypatch.setattr(train_draft, 'FEW', 0)
  tuning = []
  monkeypatch.setattr(train_draft.os, 'execv', lambda program, words: tuning.extend(words[3:]))
  with monkeypatch.context() as patch:  # it continues with the texts that were planned
    patch.setattr(
      trainer, 'carry_out', lambda *args, **kw: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    begun = fastdec(*words)
    assert begun.code == 130 and 'texts of 8 prompts are kept in' in begun.out
  monkeypatch.setattr(train_draft, 'write_part', lambda *args: pytest.fail('written again'))
  ended = fastdec(*words)
  assert ended.code == 0, ended.err
  work = tmp_path / 'draft.training'
  assert json.loads((work / 'steps' / 'steps.json').read_text()) == {'steps': 2}
  lines = (work / 'texts' / 'held-out.jsonl').read_text().splitlines()
  (prompt,) = {json.loads(line)['prompt'] for line in lines}  # wherever it is
  ids = fd.load_tokenizer(talker).encode(prompt)
  learnt, held_out = (
    TokenPairs.load(work / 'texts' / f'{part}.npy') for part in ('learnt', 'held-out')
  )
  assert len(learnt) + len(held_out) == 4 and len(held_out) == len(lines)  # the first part
  begins = lambda pairs: {tuple(pairs.target[i][: len(ids)].tolist()) for i in range(len(pairs))}
  assert begins(held_out) == {tuple(ids)} and tuple(ids) not in begins(learnt)
  module, params = fd.load_draft(tmp_path / 'draft')
  assert module.words == (None if kind in train_draft.BLOCKS else 12) and not list(
    work.glob('states*')
  )
  assert 'step 1: ' in ended.out
  if kind == 'dflash':  # it brings too little to be tried in other ways
    end = f'{tmp_path}/draft is not worth using yet, with 1.04 tokens a call on held-out prompts: '
    assert ended.out.splitlines()[-1].startswith(end) and (len(asked), tuning) == (1, [])
    return
  assert ended.out.count('1.50') == len(asked)
  assert [is_tree for is_tree, _ in asked] == [False, True] and len(asked[0][1]) == len(held_out)
  for category, prompt_ids, text in asked[0][1]:
    assert category in ('man', 'dog') and prompt_ids == ids and 1 <= len(text) <= 6
  assert f'{tmp_path}/draft' in ended.out and tuning[0] == 'tune'
  assert f'--prompts={work}/texts/held-out.jsonl' in tuning and '--max-len=6' in tuning
  if kind != 'eagle':
    again = fd.load_draft(tmp_path / 'draft.published')[1]
    params.pop('warmth', None)  # LiLiCorr has none
    jax.tree.map(np.testing.assert_array_equal, again, params)
    return

  # Its last act is a command that finds out whether the draft pays on the prompts held out.
  monkeypatch.undo()
  tuned = []

  def opened(model, dtype, prompts, *_, template):
    tuned.extend(prompts)
    raise fd.UserError('that is enough')

  monkeypatch.setattr(opening, 'open_without_weights', opened)
  assert fastdec(*tuning).err.endswith('that is enough\n') and set(tuned) == {prompt}

  # A training continues with that draft, whose words stay.
  target = Bound(*fd.load(talker))
  started = TrainedDraft(str(tmp_path / 'draft'), 7).begin(
    target, jax.random.key(0), np.zeros(0, np.int32)
  )
  assert (started.params['ids'] == params['ids']).all()
  with pytest.raises(fd.UserError, match='is not a draft of --kind=block: it has edge_kind=None'):
    train_draft._check_start(args_of('block', tmp_path / 'draft'), target.module)


def args_of(kind, folder):
  return argparse.Namespace(kind=kind, start=str(folder), words=7)


@pytest.mark.parametrize(('kind', 'message'), [
  ('eagle', "entry='masks', and that kind has 'joined'"),
  ('block', "entry='masks', and that kind has 'joined'"),
  ('dflash', "edge_kind='rnn', and that kind has None"),
  ('jetspec', "edge_kind='rnn', and that kind has None"),
  ('dflash2', "edge_kind='rnn', and that kind has 'selector'"),
  ('heads', 'is not a draft of --kind=heads'),
])  # fmt: skip
def test_a_draft_of_another_kind_is_not_trained_further(kind, message, talker, tmp_path):
  model, _ = fd.load(talker)
  begun = train_draft._choose_draft(args_of('domino', ''), model)
  network = begun.network(model)
  save_draft(tmp_path / 'draft', (network, jax.jit(network.init)(jax.random.key(0))))
  train_draft._check_start(args_of('domino', tmp_path / 'draft'), model)
  with pytest.raises(fd.UserError, match=message):
    train_draft._check_start(args_of(kind, tmp_path / 'draft'), model)
