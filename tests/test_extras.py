"""If a package is missing, one sentence says which extra brings it."""

import subprocess
import sys
from pathlib import Path

import pytest

from fastdec import extras
from fastdec.errors import UserError

ROOT = Path(__file__).parent.parent
BLOCK = """
import runpy, sys

class Blocked:
  def find_spec(self, name, path=None, target=None):
    if name.split('.')[0] in {blocked!r}:
      raise ModuleNotFoundError(f'No module named {{name!r}}', name=name)

sys.meta_path.insert(0, Blocked())
"""


def run_without(module: str, code: str) -> subprocess.CompletedProcess:
  """Runs code in a Python that does not have the module."""
  command = [sys.executable, '-c', BLOCK.format(blocked={module}) + code]
  return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_a_missing_module_is_explained():
  explanation = (
    r"optax is not installed: run pip install 'fastdec\[train\]', or in a checkout pip"
    r' install -e'
  )
  with pytest.raises(UserError, match=explanation), extras.explained():
    raise ModuleNotFoundError("No module named 'optax.losses'", name='optax.losses')


@pytest.mark.parametrize(
  'error',
  [ModuleNotFoundError('a bug', name='fastdec.nothing'), ImportError('another'), KeyError(1)],
)
def test_other_errors_stay_what_they_are(error):
  with pytest.raises(type(error)) as raised, extras.explained():
    raise error
  assert raised.value is error


def test_a_module_may_be_required_before_it_is_needed(monkeypatch):
  extras.require('json')
  for module in ('skimage', 'matplotlib', 'outlines_core'):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=rf"{module} is not installed: run pip install 'fastdec\["):
      extras.require(module)


@pytest.mark.wide('matplotlib-*')
@pytest.mark.parametrize(('missing', 'command', 'extra'), [
  ('ml_collections', 'train', 'commands'),
  ('orbax', 'train', 'train'), ('matplotlib', 'masks', 'evaluate'),
])  # fmt: skip
def test_a_command_says_which_extra_it_lacks_and_shows_no_traceback(
  tmp_path, missing, command, extra
):
  arguments = {
    'train': [
      '--config=configs/wmt14.py:scale=smoke',
      f'--workdir={tmp_path}/run',
      f'--config.data.cache={tmp_path}',
    ],
    'masks': [f'--out={tmp_path}/masks.png'],
  }[command]
  code = (
    f'sys.argv = {["", *arguments]!r}\nrunpy.run_module("experiments.{command}",'
    ' run_name="__main__")'
  )
  ended = run_without(missing, code)
  assert ended.returncode == 2, ended.stderr
  assert f"{missing} is not installed: run pip install 'fastdec[{extra}]'" in ' '.join(
    ended.stderr.split()
  )
  assert 'Traceback' not in ended.stderr
