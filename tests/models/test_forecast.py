"""The linear forecast that an image model may be told: by the definition, in plain loops; and over
a cache."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec.models.api import Capacity, Nodes, causal
from fastdec.models.forecast import (
  CHANNELS,
  SMALL,
  Forecast,
  Surroundings,
  around_all,
  near_offsets,
)
from fastdec.models.image_transformer import ImageTransformer, ImageTransformerConfig

pytestmark = pytest.mark.usefixtures('in_float64')

SIZE, SOURCE, ROWS = 4, 2, 3
PLACES = SIZE * SIZE * CHANNELS
CONFIG = ImageTransformerConfig(
  d_model=16, d_ff=24, heads=2, encoder_layers=1, decoder_layers=1, dropout=0.0, source_size=SOURCE,
  size=SIZE, block_length=8, grid=True, forecast=True, dtype='float64',
)  # fmt: skip
MODEL = ImageTransformer(CONFIG)
RNG = np.random.default_rng(0)
PICTURES = RNG.integers(0, 256, (ROWS, SOURCE, SOURCE, CHANNELS)).astype(np.uint8)
SOURCES = jnp.asarray(PICTURES)
IMAGES = RNG.integers(0, 256, (ROWS, SIZE, SIZE, CHANNELS)).astype(np.int32)
TOKENS = IMAGES.reshape(ROWS, PLACES)
SURROUNDINGS = Surroundings.of(SIZE, SOURCE)
WEIGHTS = RNG.normal(scale=0.1, size=(SURROUNDINGS.phases, SURROUNDINGS.width)).astype(np.float32)


def forecast_by_definition(image, picture, place, weights):
  """What is forecast at one place of one image, by the words of the module's docstring."""
  pixel, channel = divmod(place, CHANNELS)
  row, column = divmod(pixel, SIZE)
  ratio = SIZE // SOURCE
  covering = picture[row // ratio, column // ratio].astype(float)
  differences = []
  for down, along in near_offsets(ratio):
    at = row + down, column + along
    is_inside = at[0] >= 0 and 0 <= at[1] < SIZE
    differences += [
      image[at][other] - covering[other] if is_inside else 0 for other in range(CHANNELS)
    ]
  differences += [
    image[row, column][other] - covering[other] if other < channel else 0 for other in (0, 1)
  ]
  for down, along in SMALL:
    small = picture[
      min(max(row // ratio + down, 0), SOURCE - 1), min(max(column // ratio + along, 0), SOURCE - 1)
    ]
    differences += [float(small[other]) - covering[other] for other in range(CHANNELS)]
  phase = (row % ratio * ratio + column % ratio) * CHANNELS + channel
  return min(max(covering[channel] + weights[phase] @ np.array(differences), 0), 255)


def test_the_forecast_is_a_weighted_sum_of_the_differences_around():
  module = Forecast(SIZE, SOURCE, 8, 'float32')
  around, small = (
    around_all(SURROUNDINGS, jnp.asarray(TOKENS)),
    jnp.asarray(PICTURES, jnp.int32).reshape(ROWS, -1),
  )
  places = jnp.arange(PLACES, dtype=jnp.int32)[None]

  @jax.jit
  def forecast_of(*inputs):
    params = module.init(jax.random.key(0), *inputs)['params']
    return module.apply({'params': {**params, 'weights': WEIGHTS}}, *inputs)[0]

  forecast = forecast_of(around, places, small)
  expected = [
    [forecast_by_definition(image, picture, place, WEIGHTS) for place in range(PLACES)]
    for image, picture in zip(IMAGES, PICTURES, strict=True)
  ]
  np.testing.assert_allclose(forecast, expected, rtol=1e-4, atol=1e-3)
  beyond = np.isin(expected, (0, 255)).mean()
  assert 0.05 < beyond < 0.6  # some are cut off, most are not


def test_it_reads_nothing_that_is_not_written_yet():
  assert (SURROUNDINGS.index < np.arange(PLACES)[:, None]).all()


def test_all_that_a_small_pixel_covers_is_near():
  """The last of 4 x 4 has the other 15 around it."""
  assert {(down, along) for down in range(-3, 1) for along in range(-3, 1)} - {(0, 0)} <= set(
    near_offsets(4)
  )
  assert near_offsets(2) == near_offsets(3)  # two pixels away, at least
  assert all(place < (0, 0) for place in near_offsets(4))


def test_it_reaches_back_as_far_as_it_says():
  """Over two rows and two pixels, to their red."""
  assert SURROUNDINGS.reach == max(place - min(index[index >= 0], default=place)
                                   for place, index in enumerate(SURROUNDINGS.index))  # fmt: skip
  assert Surroundings.of(32, 8).reach == (3 * 32 + 3) * CHANNELS + 2


@functools.cache
def params():
  """Not as they start, so that every weight counts."""
  rng = np.random.default_rng(1)
  fresh = jax.jit(MODEL.init)(jax.random.key(0))
  noisy = lambda x: jnp.asarray(np.float64(x) + rng.normal(scale=0.02, size=x.shape))
  return jax.tree.map(noisy, fresh)


@functools.cache
def expected():
  """Hidden states of the images, all places at once."""
  return np.asarray(hidden_of(params(), {'source': SOURCES, 'target': jnp.asarray(TOKENS)}))


hidden_of = jax.jit(MODEL.hidden)


def test_it_changes_what_is_predicted():
  there = params()
  without = {**there, 'forecast': jax.tree.map(jnp.zeros_like, there['forecast'])}
  hidden = hidden_of(without, {'source': SOURCES, 'target': jnp.asarray(TOKENS)})
  assert np.abs(np.asarray(hidden) - expected()).max() > 0.1


def test_over_a_cache_it_is_what_it_is_in_training():
  """Rows advance by different numbers of tokens, and past the end of the ring."""
  shifted = np.pad(TOKENS, ((0, 0), (1, 4)))
  cache = MODEL.init_cache(params(), MODEL.encode(params(), SOURCES), ROWS, Capacity(PLACES + 4, 4))
  step = jax.jit(lambda tokens, cache: MODEL.apply(params(), tokens, causal(4), cache))
  done, rng = np.zeros(ROWS, np.int32), np.random.default_rng(2)
  while (done + 4 <= PLACES).all():
    tokens = np.stack([row[at : at + 4] for row, at in zip(shifted, done, strict=True)])
    hidden, _, cache = step(jnp.asarray(tokens), cache)
    for row, at in enumerate(done):
      np.testing.assert_allclose(hidden[row], expected()[row, at : at + 4], rtol=1e-9, atol=1e-9)
    count = rng.integers(1, 5, ROWS).astype(np.int32)
    cache, done = cache.commit(None, jnp.asarray(count)), done + count


def test_a_node_of_a_tree_sees_its_own_ancestors():
  """After 20 tokens a node has two children, and each has a child. Each path gets what it would get
  without the other."""
  begun, paths = 20, ((1, 3), (2, 4))
  nodes = Nodes(
    parents=np.array([-1, 0, 0, 1, 2], np.int32),
    depths=np.array([0, 1, 1, 2, 2], np.int32),
    mask=np.array(
      [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 0, 1, 0, 0], [1, 1, 0, 1, 0], [1, 0, 1, 0, 1]], bool
    ),
  )
  shifted = np.pad(TOKENS, ((0, 0), (1, 0)))

  @jax.jit
  def states(params, before, tokens):
    memory = MODEL.encode(params, SOURCES)
    cache = MODEL.init_cache(params, memory, ROWS, Capacity(PLACES, begun))
    cache = MODEL.apply(params, before, causal(begun), cache)[2]
    cache = cache.commit(None, jnp.full(ROWS, begun, jnp.int32))
    return MODEL.apply(params, tokens, nodes, cache)[0]

  tokens = np.concatenate(
    [shifted[:, begun : begun + 1], RNG.integers(0, 256, (ROWS, 4))], axis=1
  ).astype(np.int32)
  hidden = states(params(), shifted[:, :begun], tokens)
  for path in paths:
    text = np.concatenate(
      [shifted[:, 1 : begun + 1], tokens[:, path], np.zeros((ROWS, 1), np.int32)], axis=1
    )
    alone = hidden_of(params(), {'source': SOURCES, 'target': jnp.asarray(text)})
    np.testing.assert_allclose(
      hidden[:, (0, *path)], alone[:, begun : begun + 3], rtol=1e-9, atol=1e-9
    )


def test_programs_of_one_and_of_several_images_agree():
  """XLA's CPU backend once mixed up the rows of a batch here, where weights were looked up by
  phase."""
  for row in range(ROWS):
    alone = hidden_of(
      params(), {'source': SOURCES[row : row + 1], 'target': jnp.asarray(TOKENS[row : row + 1])}
    )
    np.testing.assert_allclose(expected()[row], alone[0], rtol=1e-9, atol=1e-9)


def test_sizes_that_allow_no_forecast_are_named():
  with pytest.raises(fd.UserError, match='grid=False is not possible'):
    ImageTransformerConfig(**{**vars(CONFIG), 'grid': False})
