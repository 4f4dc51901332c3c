"""Model folders: what a training run leaves for others to decode with, and what others publish."""

from fastdec.folders.native import (
  CONTENT,
  content,
  describe,
  describe_heads,
  has_heads,
  is_replaceable,
  load,
  load_heads,
  load_tokenizer,
  model_of,
  save,
)

__all__ = [
  'CONTENT',
  'content',
  'describe',
  'describe_heads',
  'has_heads',
  'is_replaceable',
  'load',
  'load_heads',
  'load_tokenizer',
  'model_of',
  'save',
]
