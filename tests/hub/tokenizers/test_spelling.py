"""The joined bytes of tokens are the text that was encoded, for every kind of tokenizer."""

import pytest

import fastdec as fd
from tests.hub.tokenizers.test_huggingface import TEXT, pieces, write_words

KINDS = ('chatml_tiny', 'deepseek_tiny', 'gemma_tiny', 'llama3_tiny', 'mistral_tiny', 'zephyr_tiny')


def spelt(tokenizer, text):
  words = tokenizer.token_bytes()
  assert len(words) == tokenizer.vocab_size
  return b''.join(words[token] for token in tokenizer.encode(text, special=False)).decode()


@pytest.mark.parametrize('kind', KINDS)
def test_published_kinds(kind, shared):
  tokenizer = fd.load_tokenizer(shared / 'reference' / 'chat' / kind)
  text = 'a dog, {"1": "é😀"}' if kind != 'zephyr_tiny' else 'the dog'  # which has no bytes
  assert spelt(tokenizer, text).removeprefix(' ') == text
  special = [token for token, word in enumerate(tokenizer.token_bytes()) if not word]
  assert special and not tokenizer.decode(special).strip()


@pytest.mark.parametrize('name', ['tokenizer.model', 'spiece.model'])
def test_pieces(name, folder):
  ids = {} if name == 'tokenizer.model' else dict(pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
  (folder / name).write_bytes(pieces(**ids))
  tokenizer = fd.load_tokenizer(folder)
  assert spelt(tokenizer, TEXT) == f' {TEXT}'
  assert [word for word in tokenizer.token_bytes() if b'<' in word] == []


def test_words_have_no_bytes_of_their_own(folder):
  write_words(folder)
  with pytest.raises(fd.UserError, match='a constraint needs a tokenizer of bytes'):
    fd.load_tokenizer(folder).token_bytes()
