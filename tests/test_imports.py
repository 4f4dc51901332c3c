"""Imports go one way, held by reading every file.

configs -> experiments -> lab -> fastdec; in fastdec cli -> text -> hub, tuning, folders, training,
evaluation, data -> laws -> decoding -> models, heads -> cache -> kernels -> errors, struct, ...
"""

import ast
import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import fastdec
from experiments import EXPERIMENTS
from fastdec.extras import EXTRA_OF

ROOT = Path(__file__).parent.parent

GROUND = {'errors', 'extras', 'struct', 'fields', 'files'}
BASE = GROUND | {'kernels'}
MODELS = {'models.api', 'models.taps', 'models.attention'}  # what decoding knows of them
CORE = BASE | {'cache', 'models', 'heads', 'decoding'}
# What each room of fastdec may import of the others. A room may always import itself.
ALLOWED = {
  'errors': set(), 'lazy': set(), 'extras': {'errors'}, 'struct': {'errors'}, 'fields': {'errors'},
  'files': {'errors', 'fields'},
  'terminal': {'errors', 'extras'},
  'kernels': {'errors', 'struct'},
  'cache': BASE,
  'models': BASE | {'cache'},
  'heads': BASE | {'cache', 'models'},
  'decoding': BASE | {'cache', 'heads'} | MODELS,
  'laws': BASE | {'decoding'} | MODELS,
  'protocol': BASE | {'decoding', 'models'},
  'folders': BASE | {'cache', 'models', 'heads'},
  'data': BASE,
  'training': CORE | {'data', 'folders', 'evaluation.wallclock'},
  'evaluation': CORE,
  'tuning': CORE | {'evaluation', 'folders'},
  'hub': BASE | {'cache', 'models', 'heads', 'folders', 'data'},
  'text': CORE | {'laws', 'evaluation', 'folders', 'hub', 'tuning'},
}  # fmt: skip
ALLOWED['cli'] = set(ALLOWED)
DECODING_NEEDS = (*sorted(GROUND), 'kernels', 'cache', 'models', 'heads', 'decoding', 'laws')


def imports(file: Path) -> Iterator[str]:
  """Full names of what a file imports, wherever in it: `from fastdec.cache import kv` is
  fastdec.cache.kv."""
  for node in ast.walk(ast.parse(file.read_text(), file)):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0, f'{file}: relative import'
      yield from (f'{node.module}.{alias.name}' for alias in node.names)


def files_of(part: str) -> list[Path]:
  folder = ROOT / 'fastdec' / part
  return sorted(folder.rglob('*.py')) if folder.is_dir() else [folder.with_suffix('.py')]


PARTS = sorted(path.stem for path in (ROOT / 'fastdec').iterdir() if path.name[0] not in '_.')


@pytest.mark.parametrize('part', PARTS)
def test_a_part_imports_only_what_is_below_it(part):
  for file in files_of(part):
    allowed = {f'fastdec.{name}' for name in ALLOWED[part] | {part}}
    for name in imports(file):
      top = name.split('.')[0]
      assert top not in ('experiments', 'configs', 'tests'), f'{file} imports {name}'
      if top == 'fastdec' and (part != 'cli' or name.count('.') > 1):  # which reads as users write
        assert any(f'{name}.'.startswith(f'{prefix}.') for prefix in allowed), (
          f'{file} imports {name}'
        )


# What `pip install fastdec` brings, and the part of it that the core needs: the rest reads folders
# and texts.
INSTALLED = {
  'flax', 'huggingface_hub', 'jax', 'jaxtyping', 'numpy', 'rich', 'safetensors', 'tokenizers',
}  # fmt: skip
NEEDED = {'flax', 'jax', 'jaxtyping', 'numpy'}


def strangers(file: Path) -> set[str]:
  """What a file imports that is neither Python's nor ours, by its first name."""
  known = sys.stdlib_module_names | {'fastdec', 'experiments', 'configs', 'tests'}
  return {name.split('.')[0] for name in imports(file)} - known


@pytest.mark.parametrize('part', [part for part in DECODING_NEEDS if part in PARTS])
def test_decoding_runs_where_only_jax_and_flax_are_installed(part):
  for file in files_of(part):
    assert strangers(file) <= NEEDED, file


def test_what_is_imported_is_installed_or_has_an_extra():
  for file in [*files_of(''), *experiments_files(''), *(ROOT / 'configs').rglob('*.py')]:
    assert strangers(file) <= INSTALLED | set(EXTRA_OF), file


@pytest.mark.parametrize('part', PARTS)
def test_a_missing_extra_is_explained_wherever_the_library_imports_it(part):
  """Either by `extras.explained`, or by a sentence of the file's own; of experiments `cli.run`
  explains it."""
  for file in files_of(part):
    tree = ast.parse(file.read_text(), file)
    told = set()
    for node in ast.walk(tree):
      if isinstance(node, ast.With) and ast.unparse(node.items[0]) == 'extras.explained()':
        told.update(ast.walk(node))
      if isinstance(node, ast.Try) and any(
        ast.unparse(handler.type) == 'ImportError' for handler in node.handlers
      ):
        told.update(ast.walk(node))
    for node in ast.walk(tree):
      if isinstance(node, ast.Import | ast.ImportFrom) and node not in told:
        name = node.names[0].name if isinstance(node, ast.Import) else node.module
        assert name.split('.')[0] not in EXTRA_OF, (
          f'{file} imports {name}: write it under extras.explained()'
        )


def test_every_extra_brings_what_it_promises():
  project = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
  distribution = lambda requirement: re.match(r'[\w.-]+', requirement)[0].lower().replace('_', '-')
  of_module = importlib.metadata.packages_distributions()
  for module, extra in EXTRA_OF.items():
    brought = {distribution(requirement) for requirement in project['optional-dependencies'][extra]}
    provided = {distribution(name) for name in of_module.get(module, ())}
    assert not provided or brought & provided, (
      f'{extra} does not bring {module}, which is in {provided}'
    )
  brought = {distribution(requirement) for requirement in project['dependencies']}
  assert brought == {name.replace('_', '-') for name in INSTALLED}


def test_the_library_itself_loads_none_of_the_extras():
  """Modules that flax loads itself do not count."""
  loaded = 'sorted({name.split(".")[0] for name in sys.modules})'
  code = (
    f'import json, sys, flax; before = {loaded}; import fastdec; print(json.dumps([before,'
    f' {loaded}]))'
  )
  printed = subprocess.run(
    [sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True, check=True
  ).stdout
  before, after = map(set, json.loads(printed))
  assert not (after - before) & (set(EXTRA_OF) | {'safetensors', 'tokenizers'})


def test_the_library_itself_loads_neither_hub_nor_text():
  """Decoding needs nothing that reads the folders of others: `fd.load` imports it on first use."""
  loaded = modules_after('import fastdec; fastdec.decode')
  assert 'fastdec.decoding.decode' in loaded
  assert not {name for name in loaded if name.startswith(('fastdec.hub', 'fastdec.text'))}


def test_the_help_of_the_command_loads_nothing_that_takes_time():
  loaded = modules_after("from fastdec.cli import main; main(['--help']); main(['--version'])")
  assert 'fastdec.cli' in loaded
  assert not {'jax', 'numpy', 'flax', 'rich', 'tokenizers', 'fastdec.decoding'} & loaded


def test_all_public_names_have_a_module():
  assert len(fastdec.__all__) > 60 and {*fastdec.__all__} <= {*dir(fastdec)}
  assert all(getattr(fastdec, name) is not None for name in fastdec.__all__)
  with pytest.raises(AttributeError, match="no attribute 'decodes'"):
    getattr(fastdec, 'decodes')  # noqa: B009


def modules_after(code: str) -> set[str]:
  """Returns the modules that a new process has loaded after running some code."""
  code += '; import json, sys; print(); print(json.dumps(sorted(sys.modules)))'
  printed = subprocess.run(
    [sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True, check=True
  ).stdout
  return set(json.loads(printed.splitlines()[-1]))


def test_experiments_never_import_configs():
  for file in experiments_files(''):
    assert 'configs' not in {name.split('.')[0] for name in imports(file)}, (
      f'{file} imports configs'
    )


# Files that read several papers, as commands do.
ABOVE_PAPERS = {'precision.py', 'costs.py'}


def experiments_files(folder: str) -> list[Path]:
  return sorted((ROOT / 'experiments' / folder).rglob('*.py'))


@pytest.mark.parametrize('room', ['lab', 'pictures', 'stern2018'])
def test_a_room_of_experiments_imports_only_the_lab_and_the_library(room):
  """Commands know papers and pictures, these know the lab, the lab knows fastdec; no paper
  knows another."""
  own = f'experiments.{room}'
  for file in experiments_files(room):
    for name in imports(file):
      if name.split('.')[0] == 'experiments':
        assert name.startswith((own, 'experiments.lab')), f'{file} imports {name}'


def test_benchmarks_import_only_the_library():
  """Benchmarks run without the rest of this repository; they may import one another."""
  files = list((ROOT / 'benchmarks').glob('*.py'))
  for file in files:
    firsts = {name.split('.')[0] for name in imports(file)}
    assert not firsts & {'experiments', 'configs', 'tests', 'absl', 'ml_collections'}, file
    peers = {'ctranslate2', 'torch', 'transformers', 'xllamacpp'}
    assert strangers(file) <= {'jax', 'numpy', *peers, *(each.stem for each in files)}, file


def is_command(file: Path) -> bool:
  return file.stem in EXPERIMENTS or file.name in ('__main__.py', *ABOVE_PAPERS)


@pytest.mark.parametrize(
  'file', sorted((ROOT / 'experiments').glob('*.py')), ids=lambda file: file.name
)
def test_a_paper_imports_only_the_lab_and_the_library(file):
  """A file of experiments/ is a command, or a paper, which imports no other paper."""
  for name in () if is_command(file) else imports(file):
    if name.split('.')[0] in ('experiments', 'configs'):
      assert name.startswith('experiments.lab.') or name == 'experiments.lab', f'imports {name}'


def test_only_commands_read_flags():
  """A notebook can train and measure: below the launchers and their manners nothing knows of a
  command line."""
  below = [
    file for file in (ROOT / 'experiments').rglob('*.py') if file.parent != ROOT / 'experiments'
  ]
  for file in below:
    if file.name != 'cli.py':
      assert 'absl' not in {name.split('.')[0] for name in imports(file)}, f'{file} imports absl'
      assert 'experiments.lab.cli' not in set(imports(file)), (
        f'{file} imports the manners of launchers'
      )
