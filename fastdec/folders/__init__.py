"""Model folders in our own format: the results of training runs.

  folder = folders.open('out/run')
  folder.model, folder.params()        # and .heads, .head_params(), .content: read on use

Folders that others publish are read by `fastdec.hub`; `fd.load` opens both kinds.
"""

from fastdec.folders.drafts import draft_content, load_draft, save_draft
from fastdec.folders.folder import Folder, content, model_folder
from fastdec.folders.native import is_replaceable, load, load_heads, model_of, open, save

__all__ = [
  'Folder',
  'content',
  'draft_content',
  'is_replaceable',
  'load',
  'load_draft',
  'load_heads',
  'model_folder',
  'model_of',
  'open',
  'save',
  'save_draft',
]
