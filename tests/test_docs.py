"""All pages: links lead somewhere, commands exist, public names have entries, and the site
builds."""

import pathlib
import re
import subprocess
import sys

import pytest

import fastdec as fd
from experiments import EXPERIMENTS
from tests.pages import ADD, ROOT, blocks_of

PAGES = sorted(
  [*ROOT.glob('*.md'), *(ROOT / 'docs').rglob('*.md'), *(ROOT / 'notes').rglob('*.md')]
)
SOURCES = [
  path
  for room in ('fastdec', 'experiments', 'configs', 'benchmarks', 'tests')
  for path in (ROOT / room).rglob('*.py')
]

SHELL = re.compile(r'^```sh\n(.*?)^```', re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r'(?:^|\s)(python -m experiments[. ]|python benchmarks/|fastdec )([\w-]+)')
ROOMS = {'python -m experiments.': 'experiments', 'python -m experiments ': 'experiments'}
ROOMS |= {'python benchmarks/': 'benchmarks'}
SHARED = 'fastdec/cli/opening.py', 'experiments/lab/cli.py'

LINK = re.compile(r'\]\(([^)\s]+)\)')
SOURCE = re.compile(r'[\w/]+\.py\b')
HEADING = re.compile(r'^#+ (.*)$', re.MULTILINE)


def place(page: pathlib.Path) -> str:
  return str(page.relative_to(ROOT))


def anchor(heading: str) -> str:
  """The name that GitHub gives to a heading: [a `b`](c.md), d -> a-b-d."""
  shown = re.sub(r'\[([^]]*)\]\([^)]*\)', r'\1', heading)
  return re.sub(r'[^\w\- ]', '', shown.lower()).replace(' ', '-')


@pytest.mark.parametrize('page', PAGES, ids=place)
def test_links_lead_somewhere(page: pathlib.Path) -> None:
  broken = []
  for link in LINK.findall(page.read_text()):
    path, _, heading = link.partition('#')
    if re.match(r'[a-z]+:', path):
      continue
    target = page.parent / path if path else page
    headings = HEADING.findall(target.read_text()) if heading and target.exists() else []
    if not target.exists() or (heading and heading not in map(anchor, headings)):
      broken.append(link)
  assert broken == []


@pytest.mark.parametrize('page', [page for page in PAGES if page.name != 'CHANGELOG.md'], ids=place)
def test_source_files_that_are_named_exist(page: pathlib.Path) -> None:
  """A name may leave out the folders at the beginning: methods/greedy.py. A page of docs/add names
  the files that it makes, too."""
  sources = ['/' + place(path) for path in SOURCES]
  if page in ADD:
    sources += ['/' + block.file for block in blocks_of(page)]
  missing = []
  for path in sorted(set(SOURCE.findall(page.read_text()))):
    if not any(source.endswith('/' + path.lstrip('/')) for source in sources):
      missing.append(path)
  assert missing == []


@pytest.mark.parametrize(
  'page', [page for page in PAGES if SHELL.search(page.read_text())], ids=place
)
def test_commands_of_a_page_exist_with_their_flags(page: pathlib.Path) -> None:
  """Flags of a config or an engine, which have a dot, are left to other tests."""
  shared = ''.join((ROOT / path).read_text() for path in SHARED)
  missing = []
  for block in SHELL.findall(page.read_text()):
    for line in block.replace('\\\n', ' ').splitlines():
      command = COMMAND.search(line.partition('#')[0])
      if command is None:
        continue
      room, name = command.groups()
      file = ROOT / ROOMS.get(room, 'fastdec/cli') / f'{name.replace("-", "_")}.py'
      if not (name in EXPERIMENTS if 'experiments' in room else file.exists()):
        missing.append(name)
        continue
      source = shared + file.read_text()
      for flag in re.findall(r'--([a-z][\w-]*)(?=[= ]|$)', line[command.end() :]):
        if not re.search(rf"'(?:--)?{flag}'", source):
          missing.append(f'{name} --{flag}')
  assert missing == []


def test_lines_of_files_are_encoded_without_their_newlines() -> None:
  """In pages and examples, as `fastdec generate --prompts` reads them."""
  wrong = []
  for page in (*PAGES, *(ROOT / 'examples').glob('*.py')):
    text = page.read_text()
    for name in re.findall(r'for (\w+) in (?:open\(|.*readlines\()', text):
      if re.search(rf'(?:encode|generator|g)\({name}\)', text):
        wrong.append(place(page))
  assert wrong == []


def test_sources_are_tested_where_the_table_of_docs_code_says() -> None:
  text = (ROOT / 'docs' / 'code.md').read_text()
  table = text.partition('## Where each source is tested')[2].partition('\n## ')[0]
  room, wrong = '', []
  for line in table.replace('\\', '').splitlines():
    cells = [cell.strip() for cell in line.strip('|').split('|')]
    if len(cells) != 3 or cells[0] in ('folder', '---'):
      continue
    room = cells[0] or room
    named = [f'{room}/{name}.py' for name in cells[1].split(', ')]
    named += [f'tests/{test}.py' for test in cells[2].split(', ')]
    wrong += [file for file in named if not (ROOT / file).exists()]
  assert wrong == [], 'these files are elsewhere'


def test_every_public_name_has_an_entry() -> None:
  pages = [page.read_text() for page in (ROOT / 'docs' / 'api').glob('*.md')]
  entries = re.findall(r'^::: fastdec\.(\w+)$', '\n'.join(pages), re.MULTILINE)
  assert sorted(entries) == sorted(fd.__all__)


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: pathlib.Path) -> None:
  """The build is strict: a dead link, a page outside the index or a foreign script is an error."""
  pytest.importorskip('mkdocs')
  command = [sys.executable, '-m', 'mkdocs', 'build', '-f', 'docs/site/mkdocs.yml', '-d', tmp_path]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr[-3000:]
  assert (tmp_path / 'source' / 'fastdec' / 'decoding' / 'loop.py.html').exists()


@pytest.mark.slow
def test_the_code_about_meshes_runs() -> None:
  """It runs in a process of its own, because it needs eight virtual devices and their number is
  fixed when JAX starts."""
  blocks = re.findall(r'```python\n(.*?)```', (ROOT / 'docs' / 'scale.md').read_text(), re.DOTALL)
  command = [sys.executable, '-c', '\n'.join(blocks)]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr[-3000:]
  assert done.stdout.splitlines()[-1].endswith(' 8')


def test_the_citation_has_the_version_of_the_package() -> None:
  assert f'version: {fd.__version__}\n' in (ROOT / 'CITATION.cff').read_text()
  assert 'fastdec.__version__' in (ROOT / 'pyproject.toml').read_text()
