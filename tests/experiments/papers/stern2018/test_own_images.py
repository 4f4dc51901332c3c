"""What a base writes itself of the small training images, and heads that learn from it."""

import dataclasses
import json
import pathlib
import shutil

import jax
import numpy as np
import pytest

import fastdec as fd
from configs import celeba
from experiments.lab.run import Run
from experiments.papers.stern2018 import image_distillation, image_page, image_tables, own_images
from experiments.papers.stern2018.image_measure import ImageMeasuring
from experiments.papers.stern2018.images import ImageExperiment
from fastdec import folders
from fastdec.data.images.corpus import shrink
from tests.experiments.conftest import with_settings

SETTINGS = {
  'data.max_train': 3,
  'data.side': 16,
  'data.mirrored': True,
  'model.size': 16,
  'model.d_model': 32,  # less has no waves to tell intensities apart
  'model.d_ff': 8,
  'model.heads': 1,
  'heads.d_ff': 8,
  'table.ks': (2,),
  'table.taus': (),
  'table.forecast': (),
  'table.images': 1,
  'table.repeats': 1,
  **{
    f'{name}.{part}': 1 for name in ('train', 'freeze', 'finetune') for part in ('steps', 'every')
  },
}


def experiment_of(cache, **changed):
  config = with_settings(
    celeba.get_config('scale=smoke'), SETTINGS | {'data.cache': str(cache)} | changed
  )
  return ImageExperiment.of(config)


def write(experiment, base, folder, budget=None):
  return image_distillation.write(experiment, base, folder, budget)


@pytest.fixture(scope='module')
def made(tmp_path_factory):
  """A base, in base/, and what it has written, in own/."""
  folder = tmp_path_factory.mktemp('own')
  experiment = experiment_of(folder / 'cache')
  assert Run(experiment, 1, 'regular', None, folder / 'base').train()
  assert write(experiment, folder / 'base', folder / 'own')
  return folder


def test_it_is_what_greedy_decoding_writes_of_each_image_and_of_its_mirror(made):
  own = own_images.open_own(made / 'own')
  originals = experiment_of(made / 'cache').open().images.array('train')
  np.testing.assert_array_equal(own.source, [*shrink(originals), *shrink(originals[:, :, ::-1])])
  model, params = folders.load(made / 'base')
  greedy = fd.decode(model, params, own.source, fd.Greedy()).checked().tokens
  np.testing.assert_array_equal(own.written.reshape(6, -1), greedy)
  assert own.written.std() > 0 and sorted(path.name for path in (made / 'own').iterdir()) == [
    'config.json', 'images.npz', 'parts',
  ]  # fmt: skip


def test_it_may_be_of_some_images_evenly_spaced(made, tmp_path):
  experiment = experiment_of(made / 'cache', **{'distill.images': 3})
  assert write(experiment, made / 'base', tmp_path / 'own')
  some, every = (own_images.open_own(folder / 'own') for folder in (tmp_path, made))
  np.testing.assert_array_equal(some.source, every.source[[0, 2, 5]])
  np.testing.assert_array_equal(some.written, every.written[[0, 2, 5]])
  with pytest.raises(fd.UserError, match='was made by another config'):
    write(experiment_of(made / 'cache'), made / 'base', tmp_path / 'own')
  # than there are: all of them, which are there
  more = experiment_of(made / 'cache', **{'distill.images': 7})
  assert write(more, made / 'base', made / 'own')


def test_a_finished_folder_stays_as_it_is_and_serves_no_other_config(made):
  before = (made / 'own' / 'images.npz').stat()
  assert write(experiment_of(made / 'cache'), made / 'base', made / 'own')
  assert (made / 'own' / 'images.npz').stat() == before
  with pytest.raises(fd.UserError, match='was made by another config'):
    write(experiment_of(made / 'cache', **{'data.mirrored': False}), made / 'base', made / 'own')


def test_what_is_cut_off_goes_on(made, tmp_path, monkeypatch):
  monkeypatch.setattr(image_distillation, 'SHARD_SIZE', 4)
  experiment = experiment_of(made / 'cache')
  assert not write(experiment, made / 'base', tmp_path / 'own', budget=0.0)
  with pytest.raises(
    fd.UserError,
    match=r'holds no images that a base has'
    r' written.*experiments.distill',
  ):
    own_images.open_own(tmp_path / 'own')
  assert write(experiment, made / 'base', tmp_path / 'own')
  assert own_images.key_of(tmp_path / 'own') == own_images.key_of(made / 'own')


def test_heads_learn_from_it_and_their_record_knows_it_by_its_hash(made, tmp_path):
  experiment = experiment_of(made / 'cache', **{'data.own': str(made / 'own')})
  batch = experiment.open().train_batches()[0]
  own = own_images.open_own(made / 'own')
  pairs = {
    (small.tobytes(), large.astype(np.int32).tobytes())
    for small, large in zip(own.source, own.written, strict=True)
  }
  rows = zip(batch['source'], batch['target'], strict=True)
  assert all((source.tobytes(), target.tobytes()) in pairs for source, target in rows)
  run = Run(experiment, 2, 'regular', made / 'base', tmp_path / 'heads')
  assert run.train() and run.is_current
  data = json.loads((tmp_path / 'heads' / 'config.json').read_text())['data']
  assert (data['own'], data['distilled']) == ("the base's", own.key)
  plain = Run(experiment_of(made / 'cache'), 2, 'regular', made / 'base', tmp_path / 'heads')
  with pytest.raises(fd.UserError, match=r'data\.own'):
    plain.check()


def test_what_is_measured_says_what_heads_have_learnt_from_and_how_often_they_are_right(
  made, tmp_path
):
  experiment = experiment_of(made / 'cache', **{'data.own': str(made / 'own')})
  run = Run(experiment, 2, 'regular', made / 'base', tmp_path / 'heads')
  assert run.train()
  measuring = ImageMeasuring(experiment, experiment.open(), 'dev', tmp_path / 'images', {})
  (cell,) = measuring.cells(run.workdir, 2, 'regular', ['exact'])
  assert cell.conditions['heads_text'] == 'own' and cell.error is None
  # p1 names what it chose itself, near ties aside
  assert cell.own_accuracy[0] > 0.99 > cell.head_accuracy[0]
  assert all(
    image_tables.OWN_NOTE in table([cell]).notes
    for table in (image_tables.table2, image_tables.quality_table, image_tables.heads_table)
  )


def test_an_image_that_parts_from_greedy_decoding_s_is_an_error_unless_rounding_explains_it(
  made, tmp_path
):
  experiment = experiment_of(made / 'cache')
  measuring = ImageMeasuring(experiment, experiment.open(), 'dev', tmp_path / 'images', {})
  model, params = folders.load(made / 'base' / 'model')
  greedy = jax.device_get(fd.decode(model, params, measuring.inputs, fd.Greedy()))
  measuring._check_same(model, params, greedy, greedy)
  wrong = np.array(greedy.tokens)
  wrong[0, 5] = 255 - wrong[0, 5]
  with pytest.raises(fd.UserError, match=r"1 of 1 outputs part from plain greedy decoding's"):
    measuring._check_same(model, params, dataclasses.replace(greedy, tokens=wrong), greedy)


def test_a_base_begins_with_the_forecast_of_its_photographs(made):
  experiment = experiment_of(made / 'cache')
  pictures = experiment.open()
  images = pictures.images.array('train')
  begun = pictures.init(jax.random.key(0))['forecast']['weights']
  np.testing.assert_array_equal(begun, fd.fit_forecast(pictures.model, shrink(images), images))
  plain = experiment_of(made / 'cache', **{'model.forecast': False, 'table.forecast': ()}).open()
  assert 'forecast' not in plain.init(jax.random.key(0))


def test_the_base_of_a_table_learns_from_photographs_and_its_heads_do_not(made):
  experiment = experiment_of(made / 'cache', **{'data.own': str(made / 'own')})
  page = image_page.ImagePage(
    experiment, pathlib.Path('out'), None, {}, image_page.table2_cells(experiment)
  )
  assert {run.workdir.name: run.experiment.own for run in page.runs()} == {
    'base': '', 'k2-regular': str(made / 'own'), 'k2-finetune': str(made / 'own'),
  }  # fmt: skip


def test_mistakes_are_a_sentence(made, tmp_path):
  with_own = {'data.own': str(made / 'own')}
  with pytest.raises(fd.UserError, match=r'data\.own=.* is for heads'):
    Run(experiment_of(made / 'cache', **with_own), 1, 'regular', None, tmp_path / 'base').train()
  other = experiment_of(made / 'cache', seed=1)
  assert Run(other, 1, 'regular', None, tmp_path / 'other').train()
  with pytest.raises(fd.UserError, match=r'were written by another model than .*other'):
    Run(
      experiment_of(made / 'cache', **with_own),
      2,
      'regular',
      tmp_path / 'other',
      tmp_path / 'heads',
    ).train()
  with pytest.raises(fd.UserError, match='another model than this config means'):
    write(experiment_of(made / 'cache', **{'model.d_ff': 16}), made / 'base', tmp_path / 'own')
  with pytest.raises(fd.UserError, match='base was trained on other images than this config means'):
    write(experiment_of(made / 'cache', **{'data.max_train': 2}), made / 'base', tmp_path / 'own')
  unmirrored = experiment_of(made / 'cache', **with_own, **{'data.mirrored': False})
  with pytest.raises(fd.UserError, match='were written of other images than this config means'):
    Run(unmirrored, 2, 'regular', made / 'base', tmp_path / 'heads').train()
  damaged = shutil.copytree(made / 'own', tmp_path / 'damaged')
  (damaged / 'images.npz').write_bytes((made / 'own' / 'images.npz').read_bytes()[:-100])
  with pytest.raises(fd.UserError, match=r'images.npz cannot be read'):
    own_images.open_own(damaged)
  shutil.copy(made / 'own' / 'images.npz', damaged)
  (damaged / 'config.json').write_text(
    (made / 'own' / 'config.json').read_text().replace('"content": "', '"content": "0')
  )
  with pytest.raises(fd.UserError, match=r'is not what .*config.json says'):
    own_images.open_own(damaged)
