"""What incremental decoding saves: the three ways write the same, operations are counted, and all
of it at toy size."""

import csv
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from configs import incremental
from experiments.lab.cells import latest, read
from experiments.papers.incremental.cells import SavingCell
from experiments.papers.incremental.measure import CacheMeasuring, agreement, counted
from experiments.papers.incremental.operations import launches, primitives
from experiments.papers.incremental.page import IncrementalPage
from experiments.papers.incremental.settings import IncrementalExperiment
from experiments.papers.incremental.ways import rewritten, step_by_step
from fastdec.struct import Bound
from tests.experiments.conftest import ROOT, run, with_settings

MODELS = ('transformer', 'fconv')
CONFIG = f'--config={ROOT}/configs/incremental.py:scale=smoke'


def changed(**settings):
  return with_settings(incremental.get_config('scale=smoke'), settings)


@pytest.fixture
def in_float64():
  with jax.enable_x64():
    yield


def target_of(name, dtype='float64'):
  model = IncrementalExperiment.of(changed()).model('growth', name, dtype)
  # larger: it repeats itself less
  params = jax.tree.map(lambda x: 4 * x.astype(dtype), model.init(jax.random.key(1)))
  return Bound(model, params)


SOURCE = np.random.default_rng(0).integers(2, 60, (3, 5), np.int32)


@pytest.mark.parametrize('name', MODELS)
def test_all_three_ways_write_the_same(in_float64, name):
  target = target_of(name)
  text = fd.decode(*target, SOURCE, fd.Greedy(), max_len=7)
  assert (text.lengths == 7).all() and len(set(np.asarray(text.tokens).ravel().tolist())) > 3
  by_host = step_by_step(target, fd.Greedy(), SOURCE, 7)
  jax.tree.map(np.testing.assert_array_equal, by_host, text)
  from_nothing = rewritten(target, SOURCE, jnp.zeros_like(text.tokens), 7)
  np.testing.assert_array_equal(from_nothing, text.tokens)
  assert agreement(target, SOURCE, text, [text, by_host]) == {'parted': 0, 'largest_gap': None}


def test_beams_from_the_host_are_those_of_the_whole_loop(in_float64):
  target = target_of('transformer')
  by_host = step_by_step(target, fd.Beam(3, n_best=2), SOURCE, 5)
  jax.tree.map(
    np.testing.assert_array_equal,
    by_host,
    fd.decode(*target, SOURCE, fd.Beam(3, n_best=2), max_len=5),
  )


def test_fewer_steps_write_fewer_tokens_evenly_spread(in_float64):
  target = target_of('transformer')
  text = fd.decode(*target, SOURCE, fd.Greedy(), max_len=7).tokens
  wrong = text.at[:, 2:].set(0)  # 0 is never written
  found = np.asarray(rewritten(target, SOURCE, wrong, 3))  # at 0, 2 and 4
  np.testing.assert_array_equal(found[:, :3], text[:, :3])
  assert (found[:, [3, 5, 6]] == 0).all() and (found[:, 4] != 0).all()


HLO = """HloModule jit_f, is_scheduled=true, entry_computation_layout={(f32[4]{0})->f32[4]{0}}

%add_computation (lhs: f32[], rhs: f32[]) -> f32[] {
  %lhs = f32[] parameter(0)
  %rhs = f32[] parameter(1)
  ROOT %add = f32[] add(%lhs, %rhs)
}

%fused (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  %exp = f32[4]{0} exponential(%p)
  ROOT %neg = f32[4]{0} negate(%exp)
}

%body (arg: (s32[], f32[4])) -> (s32[], f32[4]) {
  %arg = (s32[], f32[4]{0}) parameter(0)
  %i = s32[] get-tuple-element(%arg), index=0
  %x = f32[4]{0} get-tuple-element(%arg), index=1
  %inside = f32[4]{0} fusion(%x), kind=kLoop, calls=%fused, metadata={op_name="jit(f)/while/body/neg (one)"}
  %next = s32[] custom-call(%i), custom_call_target="next"
  ROOT %both = (s32[], /*index=1*/f32[4]{0}) tuple(%next, %inside)
}

%condition (arg.1: (s32[], f32[4])) -> pred[] {
  %arg.1 = (s32[], f32[4]{0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%arg.1), index=0
  %most = s32[] constant(3)
  ROOT %less = pred[] compare(%i.1, %most), direction=LT
}

%branch (p.1: f32[4]) -> f32[4] {
  %p.1 = f32[4]{0} parameter(0)
  ROOT %copied = f32[4]{0} copy(%p.1)
}

ENTRY %main (x.1: f32[4]) -> f32[4] {
  %x.1 = f32[4]{0} parameter(0)
  %zero = s32[] constant(0)
  %start = (s32[], f32[4]{0}) tuple(%zero, %x.1)
  %while.1 = (s32[], f32[4]{0}) while(%start), condition=%condition, body=%body
  %result = f32[4]{0} get-tuple-element(%while.1), index=1
  %which = s32[] get-tuple-element(%while.1), index=0
  %chosen = f32[4]{0} conditional(%which, %result, %result), branch_computations={%branch, %branch}
  %called = f32[4]{0} call(%chosen), to_apply=%branch
  %sum = f32[] reduce(%called, %zero), dimensions={0}, to_apply=%add_computation
  ROOT %end = f32[4]{0} broadcast(%sum), dimensions={}
}
"""


def test_what_a_program_launches_is_counted_by_hand():
  # The body two, the condition one, two branches, the call one, reduce, broadcast; fusion and
  # reducer are not entered.
  assert launches(HLO) == 2 + 1 + 2 + 1 + 1 + 1


def test_operations_of_a_tiny_program():
  two = lambda x, w: jnp.tanh(jnp.tanh(x @ w) @ w)
  x = jnp.ones((8, 8))
  assert (
    primitives(jax.make_jaxpr(two)(x, x).jaxpr)
    == primitives(jax.make_jaxpr(jax.jit(two))(x, x).jaxpr)
    == 4
  )
  one = launches(jax.jit(lambda x, w: jnp.tanh(x @ w)).lower(x, x).compile().as_text())
  assert 0 < one < launches(jax.jit(two).lower(x, x).compile().as_text()) <= 2 * one


@pytest.mark.parametrize('name', MODELS)
def test_a_layer_more_launches_more(name):
  experiment = IncrementalExperiment.of(changed())
  step, eager = counted(experiment.model('launches', name), 1, 4)
  deep_step, deep_eager = counted(experiment.model('launches', name, is_deeper=True), 1, 4)
  assert 5 < deep_step - step < deep_eager - eager < eager


@pytest.mark.parametrize('setting, message', [
  ({'growth.lengths': (32, 0)}, r'config.growth.lengths\[1\]=0 is not possible: give 1 or more'),
  ({'growth.lengths': ()}, r'config.growth.lengths=\(\) is not possible: give one or more, each'
                           r' once'),
  ({'growth.batches': (1, 1)}, 'give one or more, each once'),
  ({'growth.models': ('transformer', 'lstm')}, "'lstm', which is no model: known are transformer,"
                                               " fconv"),
  ({'growth.lengths': (8, 2048)}, "lengths has 2048 tokens, and the model 'transformer' 1024"
                                  " positions: give fewer"),
  ({'growth.source': 2000}, "growth.source has 2000 tokens, and the model 'transformer' 1024"
                            " positions"),
  ({'growth.steps': 0}, 'config.growth.steps=0 is not possible'),
  ({'layout.float32': ((1, 32, 4),)}, r'layout.float32 has the row \(1, 32, 4\): give pairs'),
  ({'layout.bfloat16': ((1, 1025),)}, "layout.bfloat16 has 1025 tokens, and the model"
                                      " 'layout.model' 1024"),
  ({'layout.beams': 0}, 'config.layout.beams=0 is not possible'),
  ({'encoder.batches': (0,)}, r'config.encoder.batches\[0\]=0 is not possible'),
])  # fmt: skip
def test_settings_that_make_no_sense_are_refused(setting, message):
  with pytest.raises(fd.UserError, match=message):
    IncrementalExperiment.of(changed(**setting))


def test_a_mistake_is_a_sentence_before_any_work(launch, tmp_path):
  ended = launch(
    'incremental', CONFIG, "--config.growth.models=('lstm',)", f'--workdir={tmp_path / "new"}'
  )
  assert (
    ended.code == 2 and ended.err.count('\n') == 1 and 'known are transformer, fconv' in ended.err
  )
  assert not (tmp_path / 'new').exists()


def test_lengths_are_measured_together_and_other_sizes_are_other_cells(tmp_path):
  page = IncrementalPage(IncrementalExperiment.of(changed()), tmp_path, None, {})
  names = [node.name for node in page.nodes()]
  assert (
    names.count('growth-transformer-float32-b2') == 1
    and 'layout-transformer-bfloat16-b1-4' in names
  )
  assert len({plan.key for plan in page.plans()}) == len(page.plans()) == 2 + 4 + 8 + 3
  hashes = {
    page.models_of(plan)
    for plan in page.plans()
    if plan.model == 'transformer' and plan.part == 'growth'
  }
  wider = IncrementalPage(
    IncrementalExperiment.of(changed(**{'models.transformer.d_model': 32})), tmp_path, None, {}
  )
  assert len(hashes) == 1 and wider.models_of(wider.plans()[0]) not in hashes


QUICK = ["--config.growth.models=('transformer',)", '--config.growth.batches=(1,)', '--config.layout.float32=()',
         '--config.layout.bfloat16=()', '--config.encoder.batches=(1,)']  # fmt: skip


def test_what_is_done_is_not_done_again_and_what_failed_is(launch, tmp_path, monkeypatch):
  def no_memory(self, plans):
    raise fd.UserError('no memory is left')

  def encoder(self, plans):
    times = {'jitted': 1.0, 'eager': 5.0}
    return [self._filled(plan, milliseconds=times, to_fastest={'eager': 5.0}) for plan in plans]

  def launched(self, plans):
    return [
      self._filled(plan, counts={'step': 9, 'layer': 3, 'eager_step': 99, 'eager_layer': 33})
      for plan in plans
    ]

  words = (CONFIG, *QUICK, f'--workdir={tmp_path}')
  monkeypatch.setattr(CacheMeasuring, 'launches', no_memory)
  monkeypatch.setattr(CacheMeasuring, 'encoder', encoder)
  ended = launch('incremental', *words)
  assert (
    ended.code == 1 and 'failed: no memory is left' in (tmp_path / 'incremental.md').read_text()
  )
  found = latest(read(tmp_path / 'results.jsonl', SavingCell))
  assert [key[0] for key in found] == ['encoder', 'growth', 'growth', 'launches']
  short, long = (found['growth', 'transformer', 'float32', 1, length] for length in (4, 8))
  assert (
    short.error is None and {'commit', 'device', 'config', 'processor'} <= short.conditions.keys()
  )
  assert (
    short.to_shortest == {'uncached': 1, 'host': 1, 'device': 1}
    and short.parted == long.parted == 0
  )
  assert long.to_shortest['host'] == pytest.approx(
    long.milliseconds['host'] / short.milliseconds['host']
  )
  assert long.to_fastest['uncached'] == pytest.approx(
    long.milliseconds['uncached'] / long.milliseconds['device']
  )

  before = (tmp_path / 'results.jsonl').read_text()
  monkeypatch.setattr(CacheMeasuring, 'launches', launched)
  ended = launch('incremental', *words)
  assert (ended.code, ended.err) == (0, '') and '| Transformer | 9 | 3 | 99 | 33 |' in ended.out
  after = (tmp_path / 'results.jsonl').read_text()
  assert after.startswith(before) and after.count('\n') == before.count('\n') + 1
  assert (
    launch('incremental', *words).code == 0 and (tmp_path / 'results.jsonl').read_text() == after
  )
  other = launch('incremental', *words, '--config.growth.rounds=2')
  assert (
    other.code == 2 and 'was measured with rounds=1, and this config means rounds=2' in other.err
  )


@pytest.mark.slow
def test_all_of_it_at_toy_size(tmp_path):
  assert run('incremental', CONFIG, f'--workdir={tmp_path}') == 0
  found = latest(read(tmp_path / 'results.jsonl', SavingCell)).values()
  assert len(found) == 2 + 4 + 8 + 3 and all(cell.error is None for cell in found)
  assert all(
    cell.parted == 0
    for cell in found
    if cell.part in ('growth', 'layout') and cell.dtype == 'float32'
  )
  page = (tmp_path / 'incremental.md').read_text()
  for heading in ('against length, batch 1', 'against length, batch 2', "FasterTransformer's tables",
                  'What a step launches', 'The encoder alone'):  # fmt: skip
    assert heading in page
  assert (tmp_path / 'incremental.png').read_bytes().startswith(b'\x89PNG')
  with open(tmp_path / 'incremental.csv') as file:
    rows = list(csv.DictReader(file))
  lines = [json.loads(line) for line in (tmp_path / 'results.jsonl').read_text().splitlines()]
  assert len(rows) == len(lines) == len(found)
  assert float(rows[-1]['milliseconds_device']) == lines[-1]['milliseconds']['device']
