"""Additions to mkdocs: files outside docs/ that pages link to, and signatures of our pytrees.

A page links to fastdec/decoding/loop.py or CONTRIBUTING.md as a reader of the repository would. The
site has a page of its own for each such file, so that every link leads somewhere without a network.
"""

import os
import pathlib
import re

import griffe
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, InclusionLevel

ROOT = pathlib.Path(__file__).parents[2]
DOCS = ROOT / 'docs'
LINK = re.compile(r'\]\((?![a-z]+:|#)([^)#\s]+)')
ELSEWHERE = re.compile(r'<(?:script|img|link|iframe)\b[^>]*(?:src|href)="(https?:[^"]*)"')
LANGUAGES = {'.py': 'python', '.toml': 'toml', '.yaml': 'yaml'}


def on_files(files, config):
  """Adds a page for each file outside docs/ that a page links to."""
  added = {}
  waiting = [ROOT / 'CHANGELOG.md', ROOT / 'CONTRIBUTING.md']
  waiting += [
    outside
    for file in files.documentation_pages()
    for outside in _outside(DOCS / file.src_uri, file.content_string)
  ]
  while waiting:
    path = waiting.pop()
    if path in added:
      continue
    text = path.read_text()
    if path.suffix == '.md':
      waiting += _outside(path, text)
    else:
      language = LANGUAGES.get(path.suffix, 'text')
      text = f'# {path.relative_to(ROOT)}\n\n~~~~{language}\n{text}\n~~~~\n'
    added[path] = File.generated(
      config, _page_of(path), content=text, inclusion=InclusionLevel.NOT_IN_NAV
    )
    files.append(added[path])
  return files


def on_page_markdown(markdown, page, config, files):
  """Turns links to files outside docs/ to their pages."""
  place = page.file.src_uri
  source = ROOT / place.removeprefix('source/').removesuffix('.md')
  here = source if place.startswith('source/') else DOCS / place

  def turned(found):
    path = (here.parent / found[1]).resolve()
    target = str(path.relative_to(DOCS)) if path.is_relative_to(DOCS) else _page_of(path)
    return f']({os.path.relpath(target, os.path.dirname(place))}'

  if place.startswith('source/') and source.suffix != '.md':
    return markdown
  return LINK.sub(turned, markdown)


def on_post_page(output, page, config):
  """Takes our own script for the search of a folder, and refuses whatever else needs a network."""
  place = os.path.relpath('site/worker.js', os.path.dirname(page.file.dest_uri) or '.')
  output = output.replace('https://unpkg.com/iframe-worker/shim', place)
  if found := ELSEWHERE.search(output):
    raise PluginError(f'{page.file.src_uri} loads {found[1]} from elsewhere')
  return output


def _outside(page, text):
  """The files outside docs/ that a page links to."""
  found = []
  for link in LINK.findall(text):
    path = (page.parent / link).resolve()
    if not path.is_file():
      raise PluginError(f'{page} links to {link}, which is not a file')
    if not path.is_relative_to(DOCS) and path != ROOT / 'README.md':
      found.append(path)
  return found


def _page_of(path):
  """The place in the site of a file outside docs/."""
  return 'index.md' if path == ROOT / 'README.md' else f'source/{path.relative_to(ROOT)}.md'


class Pytrees(griffe.Extension):
  """Gives classes under `struct.pytree` the signature of a dataclass, which they are."""

  def on_class_members(self, *, cls, **kwargs):
    for decorator in cls.decorators:
      if decorator.callable_path.endswith('struct.pytree'):
        decorator.value = griffe.ExprName('dataclass', parent='dataclasses')
    for member in cls.members.values():
      value = member.value if member.is_attribute else None
      if isinstance(value, griffe.ExprCall) and value.canonical_path.endswith('struct.static'):
        value.function = griffe.ExprName('field', parent='dataclasses')
