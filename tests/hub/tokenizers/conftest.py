"""Fixtures for tests of tokenizers."""

import pytest


@pytest.fixture
def folder(tmp_path):
  """The folder of a Llama without a tokenizer."""
  (tmp_path / 'config.json').write_text('{"model_type": "llama"}')
  return tmp_path
