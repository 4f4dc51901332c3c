"""docs/results: each page shows what its JSON lines say."""

import json
import pathlib
import re

import pytest

from experiments import results
from fastdec.errors import UserError

FOLDER = pathlib.Path(__file__).parents[2] / 'docs' / 'results'
PAGES = sorted(FOLDER.glob('*.md'))
EVERY = results.list_pages(FOLDER)
FIGURE = re.compile(r'\d+\.\d+')


@pytest.mark.parametrize('page', EVERY, ids=lambda page: f'{page.parent.name}/{page.stem}')
def test_tables_are_what_the_lines_say(page: pathlib.Path) -> None:
  assert results.draw_page(page) == page.read_text()


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.stem)
def test_all_tables_but_the_index_are_between_marks(page: pathlib.Path) -> None:
  by_hand = results.MARKED.sub('', page.read_text())
  assert ('| --- |' in by_hand) == (page.name == 'README.md')


def test_figures_of_the_index_are_on_the_pages() -> None:
  lines = results.MARKED.sub('', (FOLDER / 'README.md').read_text()).splitlines()
  rows = [
    [entry.strip() for entry in line.strip('|').split('|')]
    for line in lines
    if line.startswith('|')
  ]
  for claim, paper, ours, _, _, page in rows[2:]:
    on_the_page = FIGURE.findall((FOLDER / re.findall(r'\(([^)#]*)', page)[0]).read_text())
    figures = FIGURE.findall(ours) + FIGURE.findall(paper)
    assert [figure for figure in figures if figure not in on_the_page] == [], claim


def test_a_line_that_changes_changes_the_table(tmp_path: pathlib.Path) -> None:
  lines = [json.loads(line) for line in (FOLDER / 'faces32.jsonl').read_text().splitlines()]
  approximate = {'k': 10, 'regime': 'regular', 'rule': 'distance-2'}
  (changed,) = (line for line in lines if approximate.items() <= line.items())
  changed['mean_block_size'] = 9.87
  (tmp_path / 'faces32.jsonl').write_text('\n'.join(map(json.dumps, lines)))
  page = tmp_path / 'page.md'
  page.write_text(
    'before\n<!-- table: stern2018.table2 from faces32.jsonl -->\nold\n<!-- end -->\nafter\n'
  )
  text = results.draw_page(page)
  assert '| 9.87 (1.40) |' in text and 'old' not in text
  assert text.startswith('before\n') and text.endswith('\nafter\n')


def test_a_page_may_show_a_part_of_the_rows_of_several_files(tmp_path: pathlib.Path) -> None:
  row = {'shape': 'small', 'dtype': 'int8', 'spread': None, 'ms_per_call': 1.25}
  (tmp_path / 'one.jsonl').write_text(
    json.dumps({**row, 'variant': 'width 2, packed'}) + '\n' + json.dumps({**row, 'variant': 'x'})
  )
  (tmp_path / 'two.jsonl').write_text(json.dumps({**row, 'variant': 'greedy', 'shape': 'other'}))
  page = tmp_path / 'page.md'
  mark = (
    'benchmarks.calls from one.jsonl,two.jsonl where dtype=int8; variant=width 2, packed|greedy'
  )
  page.write_text(f'<!-- table: {mark} -->\n<!-- end -->\n')
  assert [line for line in results.draw_page(page).splitlines() if line.startswith('|')][2:] == [
    '| small | int8 | width 2, packed | 1.25 |',
    '| other | int8 | greedy | 1.25 |',
  ]


@pytest.mark.parametrize(
  'mark',
  [
    'nothing from faces32.jsonl',
    'stern2018.table2 from nothing.jsonl',
    'methods.nothing from .',
    'methods.eagle from nothing',
    'benchmarks.calls from one.jsonl where batch=nothing',
  ],
)
def test_a_missing_table_file_or_row_is_a_mistake(tmp_path: pathlib.Path, mark: str) -> None:
  (tmp_path / 'one.jsonl').write_text(json.dumps({'batch': 1}))
  page = tmp_path / 'page.md'
  page.write_text(f'<!-- table: {mark} -->\n<!-- end -->\n')
  with pytest.raises(UserError, match='nothing'):
    results.draw_page(page)
