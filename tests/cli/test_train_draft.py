"""Drafts that are trained by the command line."""

import pytest

import fastdec as fd
from fastdec.cli import train_draft


@pytest.mark.wide('heads')
@pytest.mark.parametrize('kind', ['eagle', 'block', 'heads'])
def test_a_draft_is_trained_and_drafts(translator, fastdec, prompts, tmp_path, kind, monkeypatch):
  out = tmp_path / 'draft'
  words = ('train-draft', '--model', translator, '--prompts', prompts, '--out', out)
  words += (f'--kind={kind}', '--steps=2', '--rows=2', '--max-len=8')
  with monkeypatch.context() as patch:  # the text is written, and the training interrupted
    patch.setattr(train_draft, 'train', lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
    assert fastdec(*words).code == 130 and not out.exists()
  monkeypatch.setattr(fd.Generator, '__call__', lambda *args: pytest.fail('it writes again'))
  assert 'was made with other settings' in fastdec(*words, '--seed=1').mistake
  ended = fastdec(*words)
  assert ended.code == 0 and f'={out}' in ended.out.splitlines()[-1], ended
  flag = 'heads' if kind == 'heads' else 'draft'
  written = fastdec(
    'generate', '--model', translator, f'--{flag}', out, '--prompt=a dog', '--max-len=8', '--plain'
  )
  greedy = fastdec('generate', '--model', translator, '--prompt=a dog', '--max-len=8', '--plain')
  assert written.code == 0 and written.out == greedy.out, written.err


@pytest.mark.parametrize('words, message', [
  (['--kind=tree'], '--kind=tree is not possible: give one of eagle, block, heads'),
  (['--as-is'], '--as-is is for a model that continues a text'),
  (['--out={}'], 'is there already, and is no draft alone'),
  (['--max-len=40'], "exceeds the model's 32 positions"),
  (['--steps=1'], '--steps=1 is not possible: give a whole number, 2 or more'),
])  # fmt: skip
def test_mistakes_are_one_sentence_and_leave_nothing(
  translator, fastdec, prompts, tmp_path, words, message
):
  flags = ('--model', translator, '--prompts', prompts, f'--out={tmp_path}/draft')
  ended = fastdec('train-draft', *flags, *(word.format(translator) for word in words))
  assert message in ended.mistake and not list(tmp_path.glob('draft*'))
