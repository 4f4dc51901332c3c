"""Pages under docs/ and the README: links lead somewhere, names have entries, the site builds."""

import pathlib
import re
import subprocess
import sys

import pytest

import fastdec as fd

ROOT = pathlib.Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob('*.md'), *(ROOT / 'docs').rglob('*.md')])
README_WORDS = 1500  # a stranger's minute
SOURCES = [
  path
  for room in ('fastdec', 'experiments', 'configs', 'benchmarks', 'tests')
  for path in (ROOT / room).rglob('*.py')
]
DECISIONS = ROOT / 'docs' / 'decisions'
LABELS = ('decided', 'because', 'costs', 'would change', 'superseded')

SHELL = re.compile(r'^```sh\n(.*?)^```', re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r'(?:^|\s)(python -m experiments[. ]|python benchmarks/|fastdec )([\w-]+)')
ROOMS = {'python -m experiments.': 'experiments', 'python -m experiments ': 'experiments'}
ROOMS |= {'python benchmarks/': 'benchmarks'}
SHARED = 'fastdec/cli/opening.py', 'experiments/lab/cli.py'

LINK = re.compile(r'\]\(([^)\s]+)\)')
SOURCE = re.compile(r'[\w/]+\.py\b')
HEADING = re.compile(r'^#+ (.*)$', re.MULTILINE)


def name(page: pathlib.Path) -> str:
  return str(page.relative_to(ROOT))


def anchor(heading: str) -> str:
  """The name that GitHub gives to a heading: [a `b`](c.md), d -> a-b-d."""
  shown = re.sub(r'\[([^]]*)\]\([^)]*\)', r'\1', heading)
  return re.sub(r'[^\w\- ]', '', shown.lower()).replace(' ', '-')


@pytest.mark.parametrize('page', PAGES, ids=name)
def test_links_lead_somewhere(page: pathlib.Path) -> None:
  broken = []
  for link in LINK.findall(page.read_text()):
    path, _, wanted = link.partition('#')
    if re.match(r'[a-z]+:', path):
      continue
    target = page.parent / path if path else page
    headings = HEADING.findall(target.read_text()) if wanted and target.exists() else []
    if not target.exists() or (wanted and wanted not in map(anchor, headings)):
      broken.append(link)
  assert broken == []


@pytest.mark.parametrize('page', [page for page in PAGES if page.name != 'CHANGELOG.md'], ids=name)
def test_source_files_that_are_named_exist(page: pathlib.Path) -> None:
  """A name may leave out the folders at the beginning: methods/greedy.py."""
  there = ['/' + name(path) for path in SOURCES]
  named = sorted(set(SOURCE.findall(page.read_text())))
  assert [
    path for path in named if not any(full.endswith('/' + path.lstrip('/')) for full in there)
  ] == []


@pytest.mark.parametrize(
  'page', [page for page in PAGES if SHELL.search(page.read_text())], ids=name
)
def test_commands_of_a_page_exist_with_their_flags(page: pathlib.Path) -> None:
  """Flags of a config, and of an engine, have a dot, and are other tests'."""
  shared = ''.join((ROOT / path).read_text() for path in SHARED)
  missing = []
  for block in SHELL.findall(page.read_text()):
    for line in block.replace('\\\n', ' ').splitlines():
      found = COMMAND.search(line.partition('#')[0])
      if found is None:
        continue
      file = ROOT / ROOMS.get(found[1], 'fastdec/cli') / f'{found[2].replace("-", "_")}.py'
      source = shared + file.read_text() if file.exists() else ''
      for flag in re.findall(r'--([a-z][\w-]*)(?=[= ]|$)', line[found.end() :]):
        if not re.search(rf"'(?:--)?{flag}'", source):
          missing.append(f'{found[2]} --{flag}')
      missing += [] if source else [found[2]]
  assert missing == []


def test_every_public_name_has_an_entry() -> None:
  pages = [page.read_text() for page in (ROOT / 'docs' / 'api').glob('*.md')]
  entries = re.findall(r'^::: fastdec\.(\w+)$', '\n'.join(pages), re.MULTILINE)
  assert sorted(entries) == sorted(fd.__all__)


def test_the_readme_is_short() -> None:
  assert len((ROOT / 'README.md').read_text().split()) <= README_WORDS


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: pathlib.Path) -> None:
  """It is strict: a dead link, a page without a place, a script from elsewhere are errors."""
  pytest.importorskip('mkdocs')
  command = [sys.executable, '-m', 'mkdocs', 'build', '-f', 'docs/site/mkdocs.yml', '-d', tmp_path]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr[-3000:]
  assert (tmp_path / 'source' / 'fastdec' / 'decoding' / 'loop.py.html').exists()


def test_decisions_are_numbered_and_say_what_is_known_in_labelled_lines() -> None:
  for page in sorted(DECISIONS.glob('*.md')):
    if page.name == 'README.md':
      continue
    parts = re.split(r'^## ', page.read_text(), flags=re.MULTILINE)[1:]
    for number, part in enumerate(parts, start=1):
      title, _, body = part.partition('\n')
      assert title.startswith(f'{number}. '), f'{page.name}: {title}'
      labels = re.findall(r'^- \*\*(.*?):\*\*', body, re.MULTILINE)
      assert labels and labels == [label for label in LABELS if label in labels], (
        f'{page.name}: {title}'
      )


def test_the_index_of_decisions_has_every_decision_once() -> None:
  index = (DECISIONS / 'README.md').read_text()
  listed = re.findall(r'^(\d+)\. \[(.*)\]\((\w+\.md)#', index, re.MULTILINE)
  there = []
  for page in DECISIONS.glob('*.md'):
    there += [
      (*title.split('. ', 1), page.name)
      for title in re.findall(r'^## (\d+\. .*)$', page.read_text(), re.M)
    ]
  assert sorted(listed) == sorted(there)


@pytest.mark.slow
def test_the_code_about_meshes_runs() -> None:
  """In a process of its own: it asks for eight virtual devices, and their number is fixed when JAX
  starts."""
  blocks = re.findall(r'```python\n(.*?)```', (ROOT / 'docs' / 'scale.md').read_text(), re.DOTALL)
  command = [sys.executable, '-c', '\n'.join(blocks)]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr[-3000:]
  assert done.stdout.splitlines()[-1].endswith(' 8')


def test_the_version_stands_in_the_package_and_the_citation_is_of_it() -> None:
  assert f'version: {fd.__version__}\n' in (ROOT / 'CITATION.cff').read_text()
  assert 'fastdec.__version__' in (ROOT / 'pyproject.toml').read_text()
