"""A draft network of few words, from the command line."""

import numpy as np
import pytest

import fastdec as fd

LINES = ['a dog runs', 'the cat sits on the dog', 'a dog runs on']


@pytest.fixture
def flags(translator, networks, tmp_path):
  (tmp_path / 'corpus.txt').write_text('\n'.join(LINES) + '\n')
  return {
    'model': translator,
    'draft': networks['eagle'],
    'texts': tmp_path / 'corpus.txt',
    'words': 8,
    'output': tmp_path / 'short',
  }


def words_of(flags):
  return [f'--{name}={value}' for name, value in flags.items()]


def test_the_texts_most_frequent_words_are_kept_and_the_draft_is_one_like_others(flags, fastdec):
  ended = fastdec('shortlist', *words_of(flags))
  assert ended.code == 0 and 'guesses among 8 of 30 words, which are' in ended.out, ended.err
  model, params = fd.load(flags['model'])
  tokens = np.concatenate([fd.load_tokenizer(flags['model']).encode(line) for line in LINES])
  _, wanted = fd.shortlist((model, params), fd.load_draft(flags['draft']), tokens, 8)
  _, params = fd.load_draft(flags['output'])
  np.testing.assert_array_equal(params['ids'], wanted['ids'])
  np.testing.assert_array_equal(params['output'], wanted['output'])
  words = (f'--model={flags["model"]}', f'--draft={flags["output"]}')
  ended = fastdec('generate', *words, '--prompt=a dog sits', '--max-len=12')
  assert ended.code == 0, ended.err


@pytest.mark.parametrize('change, sentence', [
  ({'words': 31}, 'words=31 is not possible: this model has 30'),
  ({'output': '{texts}'}, 'is there already, and holds no draft alone: give a new folder'),
  ({'draft': '{model}'}, 'these are prediction heads: load them with fd.load_heads'),
  ({'texts': ''}, '--texts= is empty'),
  ({'texts': '/nowhere/corpus.txt'}, '/nowhere/corpus.txt'),
])  # fmt: skip
def test_mistakes_are_sentences_and_nothing_is_written(flags, fastdec, change, sentence):
  changed = flags | {name: str(value).format(**flags) for name, value in change.items()}
  ended = fastdec('shortlist', *words_of(changed))
  assert sentence in ended.mistake and not flags['output'].exists()
