"""The examples in docstrings run."""

import ast
import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def examples():
  """Finds docstrings with an example in the source, as the checker of array types hides functions
  from doctest."""
  for folder in ('fastdec', 'experiments', 'configs'):
    for path in sorted((ROOT / folder).rglob('*.py')):
      module = '.'.join(path.relative_to(ROOT).with_suffix('').parts).removesuffix('.__init__')
      for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
          continue
        text = ast.get_docstring(node)
        if text and '>>>' in text:
          yield pytest.param(module, text, id=f'{module}.{getattr(node, "name", "__doc__")}')


@pytest.mark.parametrize(('module', 'text'), list(examples()))
def test_examples_run(module, text):
  names = dict(vars(importlib.import_module(module)))
  test = doctest.DocTestParser().get_doctest(text, names, module, module, 0)
  report = []
  assert doctest.DocTestRunner().run(test, out=report.append).failed == 0, ''.join(report)
