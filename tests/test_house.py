"""What keeps the house small: a budget of lines, commands that import little, settings that stand
once. Who adds removes, or changes a figure here in a commit that says why."""

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
FILES, READ = 12, 3_750  # files and lines of experiments and configs, that a paper's command loads


def lines_of(file: Path) -> int:
  return file.read_text().count('\n')


@pytest.mark.parametrize('folder', LINES)
def test_a_folder_keeps_to_its_budget(folder):
  lines = sum(map(lines_of, (ROOT / folder).rglob('*.py')))
  assert lines <= LINES[folder], f'{folder} has {lines} lines: remove some, or say why it grows'


def imported(file: Path, everywhere: bool) -> set[Path]:
  """The files of experiments and configs that a file imports: at its top, or everywhere in it."""
  tree, found = ast.parse(file.read_text()), set()
  for node in ast.walk(tree) if everywhere else tree.body:
    names = []
    if isinstance(node, ast.Import):
      names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module:
      names = [node.module, *(f'{node.module}.{alias.name}' for alias in node.names)]
    for name in names:
      path = ROOT / (name.replace('.', '/') + '.py')
      if name.split('.')[0] in ('experiments', 'configs') and path.is_file():
        found.add(path)
  return found


PAPERS = sorted(
  file for file in (ROOT / 'experiments').glob('*.py') if 'cli.Page(' in file.read_text()
)


@pytest.mark.parametrize('command', PAPERS, ids=[file.stem for file in PAPERS])
def test_a_papers_command_imports_little(command):
  read, left = set(), [command]
  while left:
    file = left.pop()
    if file not in read:
      read.add(file)
      left += imported(file, everywhere=file == command)
  names, lines = sorted(file.stem for file in read), sum(map(lines_of, read))
  assert len(read) <= FILES and lines <= READ, f'{lines} lines of {", ".join(names)}'


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
