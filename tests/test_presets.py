"""Presets: a setting is written once, in the dataclass that has its default."""

import ast
import dataclasses
import importlib
from pathlib import Path

import pytest

CONFIGS = Path(__file__).parents[1] / 'configs'
PRESETS = sorted(file.stem for file in CONFIGS.glob('*.py') if file.stem[0] != '_')


@pytest.mark.parametrize('page', PRESETS)
def test_a_preset_holds_only_what_differs_from_the_defaults(page):
  module = importlib.import_module(f'configs.{page}')
  for call in ast.walk(ast.parse((CONFIGS / f'{page}.py').read_text())):
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
      continue
    made = vars(module).get(call.func.id)
    if not (isinstance(made, type) and dataclasses.is_dataclass(made)):
      continue
    defaults = {field.name: field.default for field in dataclasses.fields(made)}
    for keyword in call.keywords:
      if keyword.arg is None or not isinstance(keyword.value, ast.Constant | ast.Tuple):
        continue
      try:
        value = ast.literal_eval(keyword.value)
      except ValueError:  # a tuple of names
        continue
      default = defaults[keyword.arg]
      is_default = default == value and type(default) is type(value)
      assert not is_default, f'{made.__name__}({keyword.arg}={value!r}) is the default'
