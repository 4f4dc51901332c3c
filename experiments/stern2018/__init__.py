"""Blockwise parallel decoding (Stern et al. 2018): of text (text.py), of images (images.py)."""

from typing import Any


def half(config: Any) -> tuple[Any, type]:
  """The half of the paper that a config is of, a module, and the class of its settings."""
  if config.get('task') == 'images':
    from experiments.stern2018 import images

    return images, images.Table2
  from experiments.stern2018 import text

  return text, text.Translation
