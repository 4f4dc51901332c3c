"""Blocks that an image model's linear forecast guesses: the images are those of greedy decoding,
and each guess is the forecast."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec.models.forecast import MOVED, around_all
from fastdec.models.image_transformer import ImageTransformer, ImageTransformerConfig
from tests.models.test_forecast import (
  CHANNELS,
  CONFIG,
  MODEL,
  PICTURES,
  PLACES,
  SIZE,
  SURROUNDINGS,
  forecast_by_definition,
)
from tests.models.test_forecast import params as random_params

pytestmark = pytest.mark.usefixtures('in_float64')

EVERYTHING = fd.Distance(255)  # accepts any intensity


def decoded(strategy, **more):
  return fd.decode(MODEL, random_params(), PICTURES, strategy, **more)


@functools.cache
def fresh():
  """Untrained parameters: the model's own choice is near the forecast."""
  return jax.tree.map(lambda x: x.astype(jnp.float64), jax.jit(MODEL.init)(jax.random.key(0)))


@pytest.mark.slow
@pytest.mark.parametrize(('make', 'k'), [(random_params, 10), (fresh, 6)])
def test_the_image_is_greedy_decoding_s(make, k):
  there = make()
  expected = fd.decode(MODEL, there, PICTURES, fd.Greedy())
  out = fd.decode(MODEL, there, PICTURES, fd.LinearForecast(k))
  np.testing.assert_array_equal(out.tokens, expected.tokens)


@pytest.mark.slow
def test_what_is_forecast_rightly_is_written_in_blocks():
  """A fresh model writes nearly one intensity everywhere, and weights fitted to that guess it."""
  greedy = fd.decode(MODEL, fresh(), PICTURES, fd.Greedy()).tokens
  weights = fd.fit_forecast(
    MODEL, PICTURES, np.asarray(greedy).reshape(-1, SIZE, SIZE, CHANNELS).astype(np.uint8)
  )
  out = fd.decode(MODEL, fresh(), PICTURES, fd.LinearForecast(6, weights=weights))
  np.testing.assert_array_equal(out.tokens, greedy)
  assert out.mean_block_size > 1.2


@pytest.mark.slow
@pytest.mark.parametrize('k', [4, 7])
def test_guesses_are_the_forecast_behind_those_before_them(k):
  """All guesses are accepted, so k - 1 of them follow each of the model's own tokens."""
  out = decoded(fd.LinearForecast(k, EVERYTHING))
  assert (np.asarray(out.block_sizes)[:, :3] == k).all()
  weights = np.asarray(random_params()['forecast']['weights'])
  for tokens, picture in zip(np.asarray(out.tokens), PICTURES, strict=True):
    image = tokens.reshape(SIZE, SIZE, CHANNELS)
    for place in range(1, PLACES):
      forecast = forecast_by_definition(image, picture, place, weights)
      if place % k:  # the others are the model's own
        assert abs(tokens[place] - forecast) <= 0.5 + 1e-3


def test_mistakes():
  with pytest.raises(fd.UserError, match='k=1 is not possible'):
    fd.LinearForecast(1)
  plain = ImageTransformer(ImageTransformerConfig(**{**vars(CONFIG), 'forecast': False}))
  there = jax.jit(plain.init)(jax.random.key(0))
  with pytest.raises(fd.UserError, match='makes no forecasts'):
    fd.decode(plain, there, PICTURES, fd.LinearForecast(4))


def test_weights_are_fitted_by_least_squares():
  """As NumPy fits them, for each channel and place within a source pixel. A penalty on the weights
  of the written intensities acts as if these had noise of variance MOVED in every example."""
  rng = np.random.default_rng(5)
  images = rng.integers(0, 256, (400, SIZE, SIZE, CHANNELS)).astype(np.uint8)
  pictures = rng.integers(0, 256, (400, *PICTURES.shape[1:])).astype(np.uint8)
  around = around_all(SURROUNDINGS, jnp.asarray(images.reshape(400, -1), jnp.int32))
  own, differences = SURROUNDINGS.differences(
    around,
    jnp.arange(PLACES, dtype=jnp.int32)[None],
    jnp.asarray(pictures.reshape(400, -1), jnp.int32),
  )
  fitted = fd.fit_forecast(MODEL, pictures, images)
  wanted = images.reshape(400, -1) - np.asarray(own)
  written = SURROUNDINGS.index.shape[1]
  for phase in range(SURROUNDINGS.phases):
    there = SURROUNDINGS.phase == phase
    x, y = (
      np.asarray(differences)[:, there].reshape(-1, SURROUNDINGS.width),
      wanted[:, there].reshape(-1),
    )
    off = np.ones(SURROUNDINGS.width)
    off[:written] = np.sqrt(MOVED * len(x))
    ridge = np.concatenate([x, np.diag(off)]), np.concatenate([y, np.zeros(SURROUNDINGS.width)])
    np.testing.assert_allclose(fitted[phase], np.linalg.lstsq(*ridge)[0], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_fitted_weights_guess_and_write_the_same_image():
  greedy = fd.decode(MODEL, random_params(), PICTURES, fd.Greedy())
  images = np.asarray(greedy.tokens).reshape(-1, SIZE, SIZE, CHANNELS).astype(np.uint8)
  weights = fd.fit_forecast(MODEL, PICTURES, images)
  out = decoded(fd.LinearForecast(4, weights=weights))
  np.testing.assert_array_equal(out.tokens, greedy.tokens)
  with pytest.raises(fd.UserError, match=r'outputs must be uint8\[3, 4, 4, 3\]'):
    fd.fit_forecast(MODEL, PICTURES, images[:2])
