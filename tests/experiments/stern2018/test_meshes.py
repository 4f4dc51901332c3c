"""Tables on eight virtual devices have the rows of one device, also if the command is killed in
every stage and continues on another mesh."""

import itertools
import json
import os
import re
import subprocess
import sys

import pytest

from tests.experiments.conftest import ROOT, SETTINGS

IMAGES = {
  'model.d_model': 16, 'model.d_ff': 16, 'train.steps': 2, 'train.every': 1, 'data.rows': 8,
  'table.ks': (2,), 'table.taus': (2,), 'table.rows': 8, 'table.forecast': (), 'table.repeats': 1,
}  # fmt: skip
TEXT = SETTINGS | {'table.regimes': ('regular', 'both'), 'retrain.steps': 2, 'distill.rows': 16}
FIGURES = {'bleu': 0.5, 'mean_block_size': 0.05, 'psnr': 0.05, 'bits_per_dimension': 0.01}


def start(table, page, settings, workdir, data, model):
  """Starts a command on data x model devices."""
  devices = f'--xla_force_host_platform_device_count={data * model}'
  words = [f'--config.{name}={value}' for name, value in settings.items()]
  words += [f'--config.mesh.data={data}', f'--config.mesh.model={model}', f'--workdir={workdir}']
  command = [sys.executable, '-m', 'experiments', table, f'--config=configs/{page}.py:scale=smoke']
  environment = {**os.environ, 'XLA_FLAGS': devices}
  environment['JAX_COMPILATION_CACHE_DIR'] = f'{ROOT}/.cache/jax'  # each start compiles all again
  return subprocess.Popen(
    [*command, *words], stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
  )


def kill_in_new_stage(process, killed):
  """Kills a command at the first line of a stage, or of rows, in which none was killed before;
  returns its name, or '' if the command ends."""
  for line in process.stdout:
    progress = re.match(r'stage \d+ of \d+, ([\w-]+), |(row) ', line)
    if progress and progress[progress.lastindex] not in killed:
      process.kill()
      process.wait()
      return progress[progress.lastindex]
  assert process.wait() == 0
  return ''


def rows_of(workdir):
  lines = map(json.loads, (workdir / 'results.jsonl').read_text().splitlines())
  return {(row['k'], row['regime'], row['rule']): row for row in lines}


@pytest.mark.slow
@pytest.mark.parametrize(('table', 'page', 'settings'), [
  ('table1', 'wmt14', TEXT),
  ('table2', 'celeba', IMAGES),
])  # fmt: skip
def test_a_table_is_the_same_on_any_mesh(tmp_path, table, page, settings):
  if page == 'wmt14':
    settings = settings | {'data.cache': tmp_path / 'cache'}
  one, eight = tmp_path / 'one', tmp_path / 'eight'
  process = start(table, page, settings, one, 1, 1)
  process.communicate()
  assert process.returncode == 0

  # Kill the command once in each stage; each time it continues on another mesh.
  killed = []
  for mesh in itertools.cycle([(8, 1), (4, 2)]):
    killed.append(kill_in_new_stage(start(table, page, settings, eight, *mesh), killed))
    if not killed[-1]:
      break
  stages = json.loads((eight / 'plan.json').read_text())['stages']
  assert killed == [*stages, 'row', '']

  wanted, rows = rows_of(one), rows_of(eight)
  assert rows.keys() == wanted.keys()
  for key, row in rows.items():
    for name, distance in FIGURES.items():
      assert row.get(name) == pytest.approx(wanted[key].get(name), abs=distance), (key, name)
