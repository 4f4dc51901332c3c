"""The report for a GPU, on a CPU: what fits is measured, what fails is shown, a page is written,
and it all goes on."""

import dataclasses
import gzip
import re

import jax
import pytest

import fastdec as fd
from configs import gpu_report
from experiments.gpu import exact, machine, parity, report, widths
from experiments.gpu.models import model_of
from experiments.gpu.page import RandomPage
from experiments.gpu.parts import Part, parts_of
from experiments.gpu.settings import ReportSettings
from experiments.lab.cells import Cell, read
from experiments.lab.page import Group
from experiments.lab.report import Column, Table
from tests.experiments.conftest import ROOT, with_settings

CONFIG = f'--config={ROOT}/configs/gpu_report.py:scale=smoke'


def settings(**changed):
  return ReportSettings.of(with_settings(gpu_report.get_config('scale=smoke'), changed))


@dataclasses.dataclass(frozen=True)
class FakeCell(Cell):
  word: str
  figure: float | None = None

  @property
  def key(self):
    return self.word

  @property
  def name(self):
    return self.word


class FakePage(RandomPage[FakeCell]):
  """A group a word; `works` does something else for some of them."""

  kind = FakeCell
  words, works = (), {}

  def groups(self):
    return [Group(word, f'doing {word}', (FakeCell(word),)) for word in self.words]

  def models_of(self, plan):
    return None

  def measure(self, group, missing):
    for plan in missing:
      self.works.get(plan.word, lambda: None)()
      yield dataclasses.replace(plan, figure=1.5)

  def summary(self, cell):
    return cell.word


def fake(folder, words, budget=None, paces=None, works=None):
  """A part of these words."""
  page = FakePage(None, folder, budget, {})
  page.words, page.works, page.paces = words, works or {}, paces or {}
  table = Table('', (Column('Word', 'word', names_row=True), Column('Figure', 'figure', '.1f')))
  return Part(
    folder.name.title(),
    f'It is about {" and ".join(words)}.',
    page,
    lambda cells: [table.of(cells)],
  )


def raises(error):
  def work():
    raise error

  return work


def test_what_fits_is_measured_what_fails_is_shown_and_the_rest_goes_on(tmp_path):
  def parts(budget, works):
    return [
      fake(tmp_path / 'one', ['small', 'large'], budget, {'large': 500.0}),
      fake(tmp_path / 'two', ['broken', 'whole'], budget, works=works),
    ]

  file = tmp_path / 'report.md'
  works = {'broken': raises(RuntimeError('RESOURCE_EXHAUSTED: Out of memory'))}
  outcomes = report.fill(parts(60, works), ['* device: a toaster'], file, has_text=False)
  page = file.read_text()
  assert {name: outcome.is_complete for name, outcome in outcomes.items()} == {
    'One': False,
    'Two': True,
  }
  assert page.startswith('# What fastdec does on this machine\n\n* device: a toaster\n')
  assert '| One | 1 of 2 | 0 |\n| Two | 1 of 2 | 1 |' in page
  assert '| small | 1.5 |' in page and '| whole | 1.5 |' in page
  assert '* doing large: not reached within the budget (begins where 500 s of it are left)' in page
  assert '| broken | failed: RuntimeError: RESOURCE_EXHAUSTED: Out of memory |' in page
  assert '* doing broken: failed: RuntimeError: RESOURCE_EXHAUSTED: Out of memory' in page
  assert '--config.data.folder' in page

  outcomes = report.fill(parts(None, {}), [], file, has_text=True)
  assert all(outcome.is_complete and not outcome.failed for outcome in outcomes.values())
  assert '| One | 2 of 2 | 0 |\n| Two | 2 of 2 | 0 |' in file.read_text()
  assert 'Not measured' not in file.read_text() and '--config.data.folder' not in file.read_text()
  measured = [
    cell.word
    for name in ('one', 'two')
    for cell in read(tmp_path / name / 'results.jsonl', FakeCell)
  ]
  # failed, then measured: nothing else twice
  assert measured == ['small', 'large', 'whole', 'broken', 'broken']


def test_a_page_that_is_killed_leaves_what_came_before(tmp_path):
  parts = [
    fake(tmp_path / 'one', ['done']),
    fake(tmp_path / 'two', ['cut'], works={'cut': raises(KeyboardInterrupt())}),
  ]
  with pytest.raises(KeyboardInterrupt):
    report.fill(parts, [], tmp_path / 'report.md', has_text=True)
  page = (tmp_path / 'report.md').read_text()
  assert '| done | 1.5 |' in page and '* doing cut: not reached within the budget\n' in page


def test_parts_come_in_their_order_and_table_1_where_there_is_text(tmp_path):
  names = lambda made: [part.page.workdir.name for part in parts_of(made, tmp_path, None, {})]
  assert names(settings()) == ['parity', 'exact', 'widths']
  assert names(settings(**{'data.folder': str(tmp_path)}))[3:] == ['table1']


def test_every_piece_of_the_paper_scale_says_how_much_of_the_budget_it_wants(tmp_path):
  config = with_settings(gpu_report.get_config('scale=paper'), {'data.folder': str(tmp_path)})
  for part in parts_of(ReportSettings.of(config), tmp_path, None, {}):
    assert all(5 <= node.seconds <= 300 for node in part.page.paced_nodes()), part.title


def test_models_of_the_paper_scale_can_be_made():
  """Nothing is run: shapes are enough."""
  made = ReportSettings.of(gpu_report.get_config('scale=paper'))
  for sizes in (made.parity, made.exact):
    for kind in sizes.models:
      shapes = jax.eval_shape(model_of(kind, sizes).init, jax.random.key(0))
      assert any(leaf.shape[-1:] == (sizes.width,) for leaf in jax.tree.leaves(shapes)), kind


@pytest.mark.parametrize(
  'words, said',
  [
    (
      ['--config=configs/gpu_report.py'],
      ['scale=paper is for a GPU', 'the CPU alone', 'scale=smoke'],
    ),
    ([], ['scale=paper is for a GPU']),  # the default page
    (["--config.widths.shapes=('2b',)"], ['scale=2b is not possible', '110m, smoke, 1b, 7b']),
    ([CONFIG, "--config.widths.dtypes=('int4',)"], ["dtype='int4'"]),
    (
      [CONFIG, "--config.exact.models=('gpt',)"],
      ["config.exact.models[0]='gpt'", 'one of lm, transformer'],
    ),
    ([CONFIG, '--config.parity.width=20'], ['width=20', 'a multiple of it']),
    ([CONFIG, '--config.sead=1'], ["no key 'sead'", 'known are']),
    ([CONFIG, '--budget=ten'], ['--budget=ten is no time']),
    ([CONFIG, '--config.data.folder=nowhere'], ["there is no folder 'nowhere'"]),
  ],
)
def test_a_mistake_is_one_sentence_before_any_work(launch, tmp_path, words, said):
  ended = launch('gpu_report', *words, f'--workdir={tmp_path}/new')
  assert ended.code == 2 and ended.err.count('\n') == 1 and 'Traceback' not in ended.err, ended
  assert all(word in ended.err for word in said), ended.err
  assert not list(tmp_path.rglob('*.jsonl'))


def test_a_workdir_is_of_one_scale_and_device(tmp_path):
  machine.claim(tmp_path, settings())
  machine.claim(tmp_path, settings())
  with pytest.raises(fd.UserError, match='seed is 0 there and 1 here'):
    machine.claim(tmp_path, settings(seed=1))


def test_parity_finds_a_difference(tmp_path, monkeypatch):
  page = parity.ParityPage(settings(**{'parity.models': ('lm',)}), tmp_path, None, {})
  (cell,) = page.measure(page.groups()[0], page.groups()[0].plans)
  assert (cell.largest_difference, cell.same_tokens, cell.parted, cell.rows) == (0, 1, 0, 2)
  assert cell.sides == ('CPU, highest', 'CPU, default')
  (table,) = parity.tables([cell])
  assert 'The only device is the CPU' in table.notes[-1]

  whole = parity.logits_along
  monkeypatch.setattr(
    parity,
    'logits_along',
    lambda case, side, text: whole(case, side, text) + (side[2] == 'default'),
  )
  (cell,) = page.measure(page.groups()[0], page.groups()[0].plans)
  assert cell.largest_difference == pytest.approx(1, abs=1e-4)


def test_a_strategy_that_is_not_exact_fails(tmp_path, monkeypatch):
  relaxed = {'relaxed': lambda kit: fd.Blockwise(kit.heads('stern'), rule=fd.TopN(4))}
  monkeypatch.setattr(exact, 'STRATEGIES', relaxed)
  page = exact.ExactPage(settings(), tmp_path, None, {})
  outcome = page.fill()
  assert 'part from plain greedy decoding' in outcome.failed['exact-lm-relaxed']
  (table,) = exact.tables(page.cells())
  assert table.rows[0][2].ours.startswith('failed: ')


def test_widths_are_those_of_the_benchmark_and_a_shape_that_fails_is_one_line(
  tmp_path, monkeypatch
):
  page = widths.WidthsPage(
    settings(**{'widths.widths': (1,), 'widths.dtypes': ('int8',)}), tmp_path, None, {}
  )
  assert page.fill().is_complete
  (cell,) = page.cells()
  assert (
    cell.key == ('smoke', 'int8', 'greedy')
    and cell.to_greedy == cell.to_chain == 1
    and cell.bare_ms > 0
  )

  device = type('Small', (), {'memory_stats': lambda self: {'bytes_limit': 10**9}})()
  monkeypatch.setattr(widths.jax, 'devices', lambda *_: [device])
  large = settings(**{'widths.shapes': ('7b',), 'widths.dtypes': ('bfloat16',)})
  assert not large.widths.speed('110m', 'int8', 0).packed  # which is for CPUs
  plan = widths.WidthCell('7b', 'bfloat16', 'greedy')
  with pytest.raises(
    fd.UserError,
    match=r'7b in bfloat16 has 13.5 GB of weights, and JAX may use'
    r' 1.0 GB',
  ) as found:
    widths.check_memory(large.widths.speed('7b', 'bfloat16', 0), plan)
  failed = [
    dataclasses.replace(plan, variant=name, error=str(found.value))
    for name in ('greedy', 'width 2', 'width 4')
  ]
  small, seven = widths.tables([cell, *failed])
  assert (len(small.rows), len(seven.rows)) == (1, 1)
  assert [entry.ours for entry in seven.rows[0][:3]] == ['bfloat16', '1', 'greedy']


@pytest.mark.slow
def test_the_whole_report_at_toy_size(launch, tmp_path):
  text = tmp_path / 'text'
  text.mkdir()
  for stem, lines in (('train', 300), ('val', 8), ('test_2016_flickr', 8)):
    for language, words in (
      ('en', 'a dog runs in a park number'),
      ('de', 'ein Hund rennt im Park Nummer'),
    ):
      (text / f'{stem}.{language}.gz').write_bytes(
        gzip.compress('\n'.join(f'{words} {i}' for i in range(lines)).encode())
      )
  changed = {
    'data.folder': text, 'data.cache': tmp_path / 'cache', 'data.vocab_size': 60, 'table1.table.ks': (2,),
    'table1.table.regimes': ('regular',), 'table1.table.rules': ('exact',), 'table1.table.timed': 1,
  }  # fmt: skip
  words = [
    CONFIG,
    *(f'--config.{name}={value}' for name, value in changed.items()),
    f'--workdir={tmp_path}/gpu',
  ]
  ended = launch('gpu_report', *words)
  assert ended.code == 0, ended
  page = (tmp_path / 'gpu' / 'report.md').read_text()
  assert 'Not measured' not in page and 'failed:' not in page
  counts = re.findall(r'\| (\d+) of (\d+) \| 0 \|', page)
  assert len(counts) == 4 and all(done == asked for done, asked in counts)
  for heading in ('## 1. Parity', '### smoke', '## 4. Table 1 of Stern et al. 2018'):
    assert heading in page
  lines = sorted((tmp_path / 'gpu').glob('*/results.jsonl'))
  before = [file.read_text() for file in lines]
  assert len(lines) == 4
  assert launch('gpu_report', *words).code == 0
  assert [file.read_text() for file in lines] == before
