"""Packages beyond those of decoding, and advice to install them.

`pip install fastdec` installs the packages that decoding needs. Others come by extras, such as
`fastdec[train]`, which pyproject.toml lists. A file imports such a package within `explained`, so
that a user who lacks it learns what to install:

  with extras.explained():
    import optax

`require` only checks that a package is installed, before long work that needs it at the end.
"""

import contextlib
import importlib.util
from collections.abc import Iterator

from fastdec.errors import UserError

EXTRA_OF = {  # the extra that brings a module
  'sentencepiece': 'sentencepiece',
  'absl': 'commands',
  'ml_collections': 'commands',
  'array_record': 'data',
  'google': 'data',  # google.protobuf
  'grain': 'data',
  'tensorflow_datasets': 'data',
  'PIL': 'images',
  'skimage': 'images',
  'optax': 'train',
  'orbax': 'train',
  'tensorboardX': 'train',
  'matplotlib': 'evaluate',
  'sacrebleu': 'evaluate',
  'sacremoses': 'evaluate',
  'submitit': 'cluster',
  'outlines_core': 'constraint',
  'transformers': 'hf',
  'jinja2': 'hf',
  'gguf': 'gguf',
  'ctranslate2': 'benchmark',
  'torch': 'benchmark',
}


@contextlib.contextmanager
def explained() -> Iterator[None]:
  """Turns a failed import into a UserError that names the extra with the package.

  Raises:
    UserError: a module of EXTRA_OF is not installed. Other missing modules raise as usual.
  """
  try:
    yield
  except ModuleNotFoundError as error:
    module = (error.name or '').split('.')[0]
    if module not in EXTRA_OF:
      raise
    wanted = f"'.[{EXTRA_OF[module]}]'"
    remedy = f"pip install 'fastdec[{EXTRA_OF[module]}]', or in a checkout pip install -e {wanted}"
    raise UserError(
      f'{module} is not installed: run {remedy} (the extra all brings everything)'
    ) from None


def require(module: str) -> None:
  """Raises UserError, as `explained`, if a module is not installed; it is not imported."""
  with explained():
    if importlib.util.find_spec(module) is None:
      raise ModuleNotFoundError(module, name=module)
