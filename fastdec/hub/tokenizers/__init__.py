"""Tokenizers of models: ours, fairseq's, Hugging Face's, GGUF's, each with its own reader."""

import pathlib
from typing import Any

from fastdec.folders.folder import DICTIONARIES
from fastdec.hub.tokenizers import huggingface
from fastdec.hub.tokenizers.chat import SETTINGS
from fastdec.hub.tokenizers.dictionary import DictionaryPair
from fastdec.hub.tokenizers.gguf import load_gguf
from fastdec.hub.tokenizers.huggingface import UNREAD, load

__all__ = ['UNREAD', 'load', 'load_gguf', 'load_ours']


def load_ours(folder: pathlib.Path) -> Any:
  """Reads the tokenizer of a folder in our format, in whatever form it came with the model."""
  dictionaries = [folder / name for name in DICTIONARIES]
  if any(file.is_file() for file in dictionaries):
    return DictionaryPair.load(*dictionaries)
  if (folder / SETTINGS).is_file():
    return huggingface.load(folder)
  # SentencePiece is an extra: other tokenizers work without it.
  from fastdec.data.text.sentencepiece import Tokenizer

  return Tokenizer.load(folder / 'tokenizer.model')
