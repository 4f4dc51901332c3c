"""Foreign checkpoints, one file a family. Every family module has

MODEL_TYPES                           {name in config.json: models, as people call them}
OVERFLOWS                             types of config.json in which such models overflow
model_of(config, generation, dtype)   the model, from config.json and generation_config.json
params_of(model, tensors)             its parameters, unread: tensors[name] is a `stored.Stored`;
                                      several that become one parameter are `stored.Stacked`
"""

import importlib
import re
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any

from fastdec.errors import UserError
from fastdec.fields import shown

# fields that change the result, by their names: if they are set, a family heeds or refuses them
COMPUTES = re.compile(
  'scal(e|ar|ing)|cap$|capping|multiplier|clip|alibi|sink|bidirectional|rope|rotary|window|chunk'
  '|experts?_|experts$|moe_|swiglu|sparse|qk_|parallel_|attn_temp|embedding_type|kv_shared|per_layer'
)
FAMILIES = ('llama', 'gemma', 'bart', 't5')


def families() -> dict[str, ModuleType]:
  """Returns the family module of every known model_type."""
  modules = [importlib.import_module(f'fastdec.hub.{name}') for name in FAMILIES]
  return {model_type: module for module in modules for model_type in module.MODEL_TYPES}


def check_heeded(
  config: Mapping[str, Any], known: Iterable[str], others: Iterable[str] = ()
) -> None:
  """Raises UserError if config.json has a field that changes the result, and is not known.

  Args:
    config: config.json.
    known: fields that its family has, or that change nothing in it.
    others: fields beside those of `COMPUTES`.
  """
  for name, value in config.items():
    if value and (COMPUTES.search(name) or name in others) and name not in known:
      raise UserError(
        f'{name}={shown(value)} of config.json is not known of model_type'
        f' {config.get("model_type")!r}: remove it if the model was made without it'
      )


def table() -> str:
  """Returns the families as a table of docs/own/folders.md; a test holds that it is there."""
  rows = ['| `model_type` | models |', '|---|---|']
  for kind, module in families().items():
    rows.append(f'| `{kind}` | {module.MODEL_TYPES[kind]} |')
  return '\n'.join(rows)
