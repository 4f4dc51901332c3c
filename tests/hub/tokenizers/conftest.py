"""What tests of tokenizers share."""

import pytest


@pytest.fixture
def folder(tmp_path):
  """A folder of some Llama, without a tokenizer."""
  (tmp_path / 'config.json').write_text('{"model_type": "llama"}')
  return tmp_path
