"""What keeps the house small: a budget of lines, settings that stand once. Who adds removes, or
changes a figure here in a commit that says why."""

import ast
import dataclasses
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LINES = {  # of Python, at 100 columns
  'fastdec': 33_013,
  'experiments': 9_435,
  'experiments/lab': 2_815,
  'benchmarks': 710,
  'configs': 930,
  'tests': 32_220,
}


def lines_of(file: Path) -> int:
  return file.read_text().count('\n')


@pytest.mark.parametrize('folder', LINES)
def test_a_folder_keeps_to_its_budget(folder):
  lines = sum(map(lines_of, (ROOT / folder).rglob('*.py')))
  assert lines <= LINES[folder], f'{folder} has {lines} lines: remove some, or say why it grows'


PRESETS = sorted(file.stem for file in (ROOT / 'configs').glob('*.py') if file.stem[0] != '_')


@pytest.mark.parametrize('page', PRESETS)
def test_a_preset_holds_only_what_differs_from_the_defaults(page):
  module = importlib.import_module(f'configs.{page}')
  for node in ast.walk(ast.parse((ROOT / 'configs' / f'{page}.py').read_text())):
    made = (
      vars(module).get(node.func.id)
      if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
      else None
    )
    if not (isinstance(made, type) and dataclasses.is_dataclass(made)):
      continue
    defaults = {field.name: field.default for field in dataclasses.fields(made)}
    for keyword in node.keywords:
      if keyword.arg is not None and isinstance(keyword.value, ast.Constant | ast.Tuple):
        try:
          value = ast.literal_eval(keyword.value)
        except ValueError:
          continue
        is_default = defaults[keyword.arg] == value and type(defaults[keyword.arg]) is type(value)
        assert not is_default, f'{made.__name__}({keyword.arg}={value!r}) is the default'
