"""The pages that say how to add something: their code runs, and they stay short enough to be
read."""

import re
from pathlib import Path

import pytest

PAGES = sorted((Path(__file__).parent.parent / 'docs' / 'add').glob('*.md'))
LONGEST = 60  # lines


@pytest.mark.parametrize('page', PAGES, ids=[page.stem for page in PAGES])
def test_the_code_of_a_page_runs_in_order(page):
  """Each page defines its thing, and asserts that it decodes as greedy decoding does."""
  text = page.read_text()
  blocks = re.findall(r'^```python\n(.*?)^```', text, flags=re.DOTALL | re.MULTILINE)
  assert any('assert ' in block for block in blocks)
  names = {'__name__': page.stem}
  for block in blocks:
    before = text[: text.index(block)].count('\n')
    # an error names the line of the page
    exec(compile('\n' * before + block, str(page), 'exec'), names)


@pytest.mark.parametrize('page', PAGES, ids=[page.stem for page in PAGES])
def test_a_page_is_short(page):
  assert len(page.read_text().splitlines()) <= LONGEST


def test_there_is_a_page_for_each_part():
  assert [page.stem for page in PAGES] == ['cache', 'drafter', 'experiment', 'model', 'rule']
