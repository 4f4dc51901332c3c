"""Foreign checkpoints, one file a family. Every family module has

MODEL_TYPES                           names of its models in config.json
OVERFLOWS                             types of config.json in which such models overflow
model_of(config, generation, dtype)   the model, from config.json and generation_config.json
params_of(model, tensors)             its parameters, unread: tensors[name] is a `stored.Stored`;
                                      several that become one parameter are `stored.Stacked`
"""

import importlib
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from fastdec.errors import UserError
from fastdec.fields import shown

FAMILIES = ('llama', 'gemma', 'bart', 't5')


def families() -> dict[str, ModuleType]:
  """Returns the family module of every known model_type."""
  modules = [importlib.import_module(f'fastdec.folders.{name}') for name in FAMILIES]
  return {model_type: module for module in modules for model_type in module.MODEL_TYPES}


def check_heeded(config: Mapping[str, Any], others: Sequence[str]) -> None:
  """Raises UserError if config.json has a field of `others`, which its own family does not know."""
  for name in others:
    if config.get(name) not in (None, False):
      raise UserError(
        f'{name}={shown(config[name])} of config.json is not known of model_type'
        f' {config["model_type"]!r}: remove it if the model was made without it'
      )
