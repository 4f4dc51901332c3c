"""Docstrings: their first words, and their examples."""

import ast
import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)
NO_OPENING = {'What', 'Whether', 'How', 'Of', 'Those', 'Where', 'Who', 'Whom', 'Whose', 'Which'}
MENDED = ('fastdec', 'benchmarks', 'experiments', 'configs')


@pytest.mark.parametrize('place', MENDED)
def test_docstrings_begin_with_a_verb_or_a_noun(place):
  files = list(ROOT.glob(place if place.endswith('.py') else f'{place}/**/*.py'))
  texts = [
    (file, ast.get_docstring(node))
    for file in files
    for node in ast.walk(ast.parse(file.read_text()))
    if isinstance(node, DOCUMENTED)
  ]
  assert texts
  wrong = [(str(file), text) for file, text in texts if text and text.split()[0] in NO_OPENING]
  assert not wrong


def examples():
  """Lists every docstring with an example, from the source: the checker of array types hides
  functions from doctest."""
  found = []
  files = (
    file
    for folder in ('fastdec', 'experiments', 'configs')
    for file in (ROOT / folder).rglob('*.py')
  )
  for path in sorted(files):
    module = '.'.join(path.relative_to(ROOT).with_suffix('').parts).removesuffix('.__init__')
    for node in ast.walk(ast.parse(path.read_text())):
      text = ast.get_docstring(node) if isinstance(node, DOCUMENTED) else None
      if text and '>>>' in text:
        found.append(pytest.param(module, text, id=f'{module}.{getattr(node, "name", "__doc__")}'))
  return found


@pytest.mark.parametrize(('module', 'text'), examples())
def test_examples_run(module, text):
  names = dict(vars(importlib.import_module(module)))
  test = doctest.DocTestParser().get_doctest(text, names, module, module, 0)
  said = []
  assert doctest.DocTestRunner().run(test, out=said.append).failed == 0, ''.join(said)
