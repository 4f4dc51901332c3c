"""Foreign checkpoints, one file a family. Every family module has

MODEL_TYPES                           names of its models in config.json
OVERFLOWS                             types of config.json in which such models overflow
model_of(config, generation, dtype)   the model, from config.json and generation_config.json
params_of(model, tensors)             its parameters, unread: tensors[name] is a `stored.Stored`;
                                      several that become one parameter are `stored.Stacked`
"""

import importlib
from types import ModuleType

FAMILIES = ('llama', 'gemma', 'marian', 't5')


def families() -> dict[str, ModuleType]:
  """Returns the family module of every known model_type."""
  modules = [importlib.import_module(f'fastdec.folders.{name}') for name in FAMILIES]
  return {model_type: module for module in modules for model_type in module.MODEL_TYPES}
