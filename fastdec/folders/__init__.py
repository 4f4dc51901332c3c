"""Model folders: the results of our training runs, and models that others publish.

  folder = folders.open('out/run')   # ours, Hugging Face's, or published Medusa heads
  folder.model, folder.params()      # and .heads, .head_params(), .tokenizer, .content: read on use

`load`, `load_heads` and `load_tokenizer` open a folder for one of these; `save` writes our format.
"""

from fastdec.folders.folder import Folder
from fastdec.folders.load import content, load, load_heads, load_tokenizer, open, packed
from fastdec.folders.native import is_replaceable, model_of, save

__all__ = [
  'Folder',
  'content',
  'is_replaceable',
  'load',
  'load_heads',
  'load_tokenizer',
  'model_of',
  'open',
  'packed',
  'save',
]
