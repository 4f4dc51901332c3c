"""Families of published checkpoints, one file each. Every family module has

MODEL_TYPES                           {model_type of config.json: names that people know}
OVERFLOWS                             dtypes of config.json in which such models overflow
model_of(config, generation, dtype)   the model, from config.json and generation_config.json
params_of(model, tensors)             its parameters, unread: tensors[name] is a `stored.Stored`;
                                      several that become one parameter are `stored.Stacked`
"""

import importlib
import re
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any, TypeVar

from fastdec.errors import UserError
from fastdec.fields import quote, read

Fields = TypeVar('Fields')
# Names of fields that change the result. A family refuses those that it does not compute, since
# ignoring one would give other tokens.
COMPUTES = re.compile(
  'scal(e|ar|ing)|cap$|capping|multiplier|clip|alibi|sink|bidirectional|rope|rotary|window|chunk'
  '|experts?_|experts$|moe_|swiglu|sparse|qk_|parallel_|attn_temp|embedding_type|kv_shared|per_layer'
)
STACK_ACTIVATIONS = {  # names in `models/stacks.py` by theirs
  'swish': 'swish', 'silu': 'swish', 'relu': 'relu', 'gelu': 'exact_gelu',
  'gelu_python': 'exact_gelu', 'gelu_new': 'gelu', 'gelu_fast': 'gelu', 'gelu_pytorch_tanh': 'gelu',
}  # fmt: skip
MODULES = ('llama', 'gemma', 'bart', 't5')


def families() -> dict[str, ModuleType]:
  """Returns the family module of every known model_type."""
  modules = {}
  for name in MODULES:
    module = importlib.import_module(f'fastdec.hub.{name}')
    modules |= dict.fromkeys(module.MODEL_TYPES, module)
  return modules


def read_fields(
  cls: type[Fields], config: Mapping[str, Any], source: str = 'config.json'
) -> Fields:
  """Reads the fields of a dataclass from a published file, whose other fields are ignored.

  Raises:
    UserError: a field is missing, or its value has a wrong type; the message names the `source`.
  """
  return read(cls, config, source, ': ', ignores=True)


def check_options(
  config: Mapping[str, Any], known: Iterable[str], others: Iterable[str] = ()
) -> None:
  """Raises UserError if config.json has an unknown field that changes the result.

  Args:
    config: the content of config.json.
    known: fields that the family computes, or that change nothing in it.
    others: further names that change the result, besides `COMPUTES`.
  """
  for name, value in config.items():
    changes_result = COMPUTES.search(name) or name in others
    if value and changes_result and name not in known:
      raise UserError(
        f'{name}={quote(value)} of config.json is not known for model_type'
        f' {config.get("model_type")!r}: remove it if the model was made without it'
      )


def table() -> str:
  """Returns the families as the table of docs/own/folders.md; a test compares the two."""
  rows = ['| `model_type` | models |', '|---|---|']
  for model_type, module in families().items():
    rows.append(f'| `{model_type}` | {module.MODEL_TYPES[model_type]} |')
  return '\n'.join(rows)
