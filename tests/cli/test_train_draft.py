"""Drafts that are trained by the command line."""

import argparse
import json

import jax
import numpy as np
import pytest

import fastdec as fd
from fastdec.cli import own_texts, train_draft
from fastdec.data.text.tokens import TokenPairs
from fastdec.struct import Bound


@pytest.mark.wide('heads')
@pytest.mark.parametrize('kind', ['eagle', 'block', 'heads'])
def test_a_draft_is_trained_and_drafts(translator, fastdec, prompts, tmp_path, kind, monkeypatch):
  out = tmp_path / 'draft'
  words = ('train-draft', '--model', translator, '--prompts', prompts, '--out', out)
  words += (f'--kind={kind}', '--steps=2', '--rows=2', '--max-len=8', '--no-tune')
  stopped = lambda *args, **kw: (_ for _ in ()).throw(KeyboardInterrupt)
  with monkeypatch.context() as patch:  # after some texts
    append = own_texts.append
    patch.setattr(own_texts, 'append', lambda *args: stopped(append(*args)))
    assert fastdec(*words).code == 130
  with monkeypatch.context() as patch:  # before the training
    patch.setattr(train_draft, 'carry_out', stopped)
    assert fastdec(*words).code == 130 and not out.exists()
  (texts,) = tmp_path.glob('train-draft-text-*/texts.jsonl')
  indices = [json.loads(line)['index'] for line in texts.read_text().splitlines()]
  assert sorted(indices) == list(range(6))  # none was written twice
  monkeypatch.setattr(own_texts, 'decode_list', lambda *args, **kw: pytest.fail('written again'))
  changed = fastdec(*words, '--seed=1', '--steps=3').mistake
  assert 'was made with other settings (steps, seed): give another --out' in changed
  ended = fastdec(*words)
  assert ended.code == 0 and f'={out}' in ended.out.splitlines()[-1], ended
  before = [(file, file.read_bytes()) for file in sorted(out.iterdir())]
  with monkeypatch.context() as patch:
    patch.setattr(train_draft, 'carry_out', stopped)
    assert fastdec(*words).out == f'{out} is done already: use it by {ended.out.split()[-1]}\n'
    assert fastdec(*words, '--steps=3', f'--out={tmp_path}/other').code == 130
  assert before == [(file, file.read_bytes()) for file in sorted(out.iterdir())]
  flag = 'heads' if kind == 'heads' else 'draft'
  written = fastdec(
    'generate', '--model', translator, f'--{flag}', out, '--prompt=a dog', '--max-len=8', '--plain'
  )
  greedy = fastdec('generate', '--model', translator, '--prompt=a dog', '--max-len=8', '--plain')
  assert written.code == 0 and written.out == greedy.out, written.err


@pytest.mark.parametrize('words, message', [
  (['--kind=tree'], '--kind=tree is not possible: give one of eagle, eagle3, block, dflash, heads'),
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
  read = own_texts.read_as_is
  monkeypatch.setattr(own_texts, 'read_as_is', lambda *args: seen.append(read(*args)) or stop())

  def stop():
    raise fd.UserError('that is enough')

  words = ('--model', talker, '--prompts', tmp_path / 'texts', f'--out={tmp_path}/draft', '--as-is')
  assert fastdec('train-draft', *words).mistake == 'that is enough\n'
  tokenizer, (end, *_) = fd.load_tokenizer(talker), fd.load(talker)[0].eos_ids
  ids = [*tokenizer.encode_chat(chat, add_generation_prompt=False), end]
  assert seen[0][0][:2] == (ids, ids)


@pytest.mark.wide('eagle')
@pytest.mark.parametrize('kind', ['eagle', 'eagle3', 'dflash'])
def test_a_draft_is_planned_for_a_budget_and_gives_an_account(
  talker, fastdec, tmp_path, monkeypatch, kind
):
  questions = [{'category': kind, 'prompt': f'A {kind}'} for kind in ('man', 'dog') * 4]
  (tmp_path / 'asked.jsonl').write_text('\n'.join(map(json.dumps, questions)))
  flags = ('--model', talker, '--prompts', tmp_path / 'asked.jsonl', '--max-len=6', '--words=12')
  flags += ('--rows=2', '--loss=ce', '--temperature=1', f'--kind={kind}')
  monkeypatch.setattr(own_texts, 'FIRST', 1)
  monkeypatch.setattr(train_draft, 'WRITTEN', 4)
  monkeypatch.setattr(own_texts, 'HELD_OUT', 2)
  monkeypatch.setattr(train_draft, 'FOR_TEXT', 0)  # no time but for the first poolful
  monkeypatch.setattr(train_draft, 'FOR_STEPS', 0)
  asked = []

  def worth(target, strategy, prompts, most):
    asked.append((strategy.drafts_trees, getattr(strategy.sampling, 'temperature', None), prompts))
    return {'all': 1.5}

  monkeypatch.setattr(train_draft, 'tokens_a_call', worth)
  words = ('train-draft', *flags, f'--out={tmp_path}/draft', '--budget=9m')
  tuning = []
  monkeypatch.setattr(train_draft.os, 'execv', lambda program, words: tuning.extend(words[3:]))
  with monkeypatch.context() as patch:  # it continues with the texts that were planned
    patch.setattr(
      train_draft, 'carry_out', lambda *args, **kw: (_ for _ in ()).throw(KeyboardInterrupt)
    )
    assert fastdec(*words).code == 130
  monkeypatch.setattr(own_texts, '_write_part', lambda *args: pytest.fail('written again'))
  ended = fastdec(*words)
  assert ended.code == 0, ended.err
  work = tmp_path / 'draft.training'
  assert json.loads((work / 'steps' / 'steps.json').read_text()) == {'steps': 2}
  learnt, held_out = (
    TokenPairs.load(work / 'texts' / f'{part}.npy') for part in ('learnt', 'held-out')
  )
  assert (len(learnt), len(held_out)) == (2, 2)  # the first poolful
  assert 'step 1: ' in ended.out and ended.out.count('1.50') == len(asked) >= 4
  assert {is_tree for is_tree, *_ in asked} == {True, False} and len(asked[0][2]) == 2
  assert {category for category, _ in asked[0][2]} <= {'man', 'dog'}
  assert not list(work.glob('states*'))
  module, params = fd.load_draft(tmp_path / 'draft')
  assert module.words == (None if kind == 'dflash' else 12)
  assert f'{tmp_path}/draft' in ended.out and tuning[0] == 'tune'
  if kind != 'eagle':
    again = fd.load_draft(tmp_path / 'draft.published')[1]
    del params['warmth']
    jax.tree.map(np.testing.assert_array_equal, again, params)
    return

  # Its last act is a command that finds out whether the draft pays.
  monkeypatch.undo()
  ended = fastdec(*tuning, '--budget=9s', '--max-len=6')
  assert ended.code == 0 and 'Eagle(' in ended.out, ended.err
  assert (tmp_path / 'draft.tuned.json').is_file()

  # A training continues with that draft, whose words stay.
  target = Bound(*fd.load(talker))
  args = argparse.Namespace(kind='eagle', start=str(tmp_path / 'draft'), words=7)
  started = train_draft._choose_draft(args, target.module).begin(
    target, jax.random.key(0), np.zeros(0, np.int32)
  )
  assert (started.params['ids'] == params['ids']).all()
  args.kind = 'block'
  with pytest.raises(fd.UserError, match='is not a draft of --kind=block'):
    train_draft._check_start(args, target.module)
