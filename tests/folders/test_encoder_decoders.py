"""Encoder-decoders of Hugging Face: their texts are those of `transformers`, by every method."""

import functools
import json
import shutil
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec import folders
from fastdec.heads.block import BlockNetwork
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.heads.eagle import EagleNetwork
from fastdec.heads.medusa import MedusaHeads
from fastdec.models.api import causal
from fastdec.models.stacks import StackConfig
from tests.decoding.methods_table import GROWN, METHODS, Kit

REFERENCE = Path(__file__).parents[3] / 'shared' / 'reference' / 'hf'
pytestmark = pytest.mark.skipif(
  not REFERENCE.is_dir(), reason='needs ../shared/reference, which is not here'
)
NEW = ['m2m100_tiny', 'mbart_tiny', 'mt5_tiny']
LIKE_THEM = ['bart_tiny', 'marian2_tiny', 'madlad_tiny']
NAMES = NEW + LIKE_THEM


@functools.cache
def loaded(name, dtype='float32'):
  """Model, parameters, what was computed with them, and the token that every text begins with."""
  with warnings.catch_warnings():
    warnings.simplefilter('ignore', fd.UserNote)  # of forced tokens
    model, params = fd.load(REFERENCE / name, dtype=dtype)
  said = json.loads((REFERENCE / name / 'generation_config.json').read_text())
  return model, params, np.load(REFERENCE / name / 'expected.npz'), said.get('forced_bos_token_id')


def sources_of(expected):
  """The sources without padding."""
  rows = zip(expected['source'], expected['source_length'], strict=True)
  return [row[:length].tolist() for row, length in rows]


def prefix_of(forced, rows):
  return None if forced is None else [[forced]] * rows


def decoded(model, params, sources, strategy, forced, max_len=23):
  """The texts, with the token that is forced."""
  prefix, room = prefix_of(forced, len(sources)), max_len - (forced is not None)
  out = fd.decode(model, params, sources, strategy, prefix=prefix, max_len=room)
  texts = [row[:length].tolist() for row, length in zip(out.tokens, out.lengths, strict=True)]
  return [text if forced is None else [int(forced), *text] for text in texts]


def check_texts(texts, theirs, model):
  """They are theirs up to each row's end."""
  for ours, row in zip(texts, theirs[:, 1:].tolist(), strict=True):
    assert ours == row[: len(ours)]
    assert ours[-1] in model.eos_ids or len(ours) >= len(row) - 1


@functools.partial(jax.jit, static_argnums=0)
def logits_of(model, params, source, target):
  cache = model.init_cache(params, model.encode(params, source), *target.shape)
  hidden = model.apply(params, target, causal(target.shape[1]), cache)[0]
  return model.unembed(params, hidden)


@pytest.mark.parametrize(
  'name', [*NEW, *(pytest.param(name, marks=pytest.mark.slow) for name in LIKE_THEM)]
)
def test_logits_and_texts_are_theirs(name, tmp_path):
  """The padded sources; and config.json says the same in its older words."""
  model, params, expected, forced = loaded(name)
  shutil.copy(REFERENCE / name / 'config_older.json', tmp_path / 'config.json')
  shutil.copy(REFERENCE / name / 'generation_config.json', tmp_path)
  with warnings.catch_warnings():
    warnings.simplefilter('ignore', fd.UserNote)
    assert folders.open(tmp_path, dtype='float32').model == model
  logits = logits_of(model, params, *(jnp.asarray(expected[x]) for x in ('source', 'target')))
  np.testing.assert_allclose(logits, expected['logits'], rtol=2e-4, atol=2e-4)
  texts = decoded(model, params, expected['source'], fd.Greedy(), forced)
  check_texts(texts, expected['greedy'], model)


@functools.cache
def kit(name):
  """Heads and draft networks that nobody has trained, and a draft model that is often right."""
  model, params, _, _ = loaded(name, 'float64')
  d, words = model.d_model, model.vocab_size
  rng = np.random.default_rng(0)
  noisy = jax.tree.map(lambda x: x * rng.normal(1, 0.05, x.shape), params)
  layers = StackConfig(d, 32, heads=2, decoder_layers=1, dtype='float64')
  seeing = {'layers': layers, 'vocab_size': words, 'd_target': d, 'd_embed': d}
  modules = {
    'separate': BlockwiseHeads(k=7, d_model=d, d_ff=16),
    'medusa': MedusaHeads(depth=3, d_model=d, vocab_size=words),
    'eagle': EagleNetwork(**seeing, taps=(0, 1), fuses=True),
    'block': BlockNetwork(**seeing, k=4, markov=5),
  }

  @functools.cache
  def made(kind):
    fresh = modules[kind].init(jax.random.key(0))
    return modules[kind], jax.tree.map(lambda x: 3 * x.astype(jnp.float64), fresh)

  return Kit(heads=made, draft=(model, noisy), network=made, words=words)


@pytest.mark.slow
@pytest.mark.parametrize('method', METHODS | GROWN)
@pytest.mark.parametrize('name', NAMES)
def test_every_method_writes_them(name, method, in_float64):
  """Of ragged sources, together and alone."""
  model, params, expected, forced = loaded(name, 'float64')
  sources, strategy = sources_of(expected), (METHODS | GROWN)[method](kit(name))
  with jax.numpy_dtype_promotion('standard'):  # draft networks promote
    texts = decoded(model, params, sources, strategy, forced)
    check_texts(texts, expected['greedy'], model)
    assert decoded(model, params, sources[2:3], strategy, forced) == texts[2:3]


@pytest.mark.slow
@pytest.mark.parametrize('name', NAMES)
def test_streams_int8_and_saved_folders_keep_them(name, tmp_path):
  model, params, expected, forced = loaded(name)
  sources = sources_of(expected)
  texts = decoded(model, params, sources, fd.Greedy(), forced)
  fd.save(model, params, tmp_path / 'own')
  again, read = fd.load(tmp_path / 'own')
  assert again == model
  jax.tree.map(np.testing.assert_array_equal, read, params)
  blocks = fd.stream(
    model,
    params,
    sources,
    fd.Greedy(),
    prefix=prefix_of(forced, 4),
    max_len=23 - (forced is not None),
  )
  written = [[] for _ in sources]
  for rows in blocks:
    for row, tokens in zip(written, rows, strict=True):
      row += tokens
  assert written == [text[forced is not None :] for text in texts]
  model, params = fd.load(tmp_path / 'own', dtype='int8')
  greedy, wide = (
    decoded(model, params, sources, strategy, forced)
    for strategy in (fd.Greedy(), fd.PromptLookup(ngram=1, k=4))
  )
  assert greedy == wide
