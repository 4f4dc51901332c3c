"""Encoder-decoders of Hugging Face: their texts are those of `transformers`, by every method."""

import dataclasses
import functools
import shutil
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec.models.api import causal
from fastdec.text.load import open_folder
from tests.decoding.methods_table import GROWN, METHODS, fresh_kit

REFERENCE = Path(__file__).parents[3] / 'shared' / 'reference' / 'hf'
pytestmark = pytest.mark.skipif(
  not REFERENCE.is_dir(), reason='needs ../shared/reference, which is not here'
)
NAMES = ['m2m100_tiny', 'mbart_tiny', 'bart_tiny', 'marian2_tiny', 'mt5_tiny', 'madlad_tiny']
MORE = {  # another language, or at most 6 tokens, the last of which is forced to be the end
  'm2m100_tiny': '_other', 'mbart_tiny': '_short', 'bart_tiny': '_short', 'marian2_tiny': '_short',
}  # fmt: skip
TEXTS = [
  (name, f'{kind}{more}')
  for name in NAMES
  for kind in ('greedy', 'beam4')
  for more in ('', *([MORE[name]] if name in MORE else []))
]


@functools.cache
def loaded(name, dtype='float32'):
  """Model, parameters, what was computed with them, and their forced tokens."""
  with warnings.catch_warnings():
    warnings.simplefilter('ignore', fd.UserNote)  # of forced tokens
    model, params = fd.load(REFERENCE / name, dtype=dtype)
  processors = fd.Processors.of(REFERENCE / name)
  return model, params, np.load(REFERENCE / name / 'expected.npz'), processors


def sources_of(expected):
  """The sources without padding."""
  rows = zip(expected['source'], expected['source_length'], strict=True)
  return [row[:length].tolist() for row, length in rows]


def texts_of(out):
  return [row[:length].tolist() for row, length in zip(out.tokens, out.lengths, strict=True)]


def check_texts(texts, theirs, model):
  """They are theirs up to each row's end."""
  for ours, row in zip(texts, theirs[:, 1:].tolist(), strict=True):
    assert ours == row[: len(ours)]
    assert ours[-1] in model.eos_ids or len(ours) == len(row)


@functools.partial(jax.jit, static_argnums=0)
def logits_of(model, params, source, target):
  cache = model.init_cache(params, model.encode(params, source), *target.shape)
  hidden = model.apply(params, target, causal(target.shape[1]), cache)[0]
  return model.unembed(params, hidden)


@pytest.mark.parametrize('name', NAMES)
def test_logits_are_theirs(name, tmp_path):
  """And config.json says the same in its older words."""
  model, params, expected, _ = loaded(name)
  shutil.copy(REFERENCE / name / 'config_older.json', tmp_path / 'config.json')
  shutil.copy(REFERENCE / name / 'generation_config.json', tmp_path)
  assert open_folder(tmp_path, dtype='float32').model == model
  logits = logits_of(model, params, *(jnp.asarray(expected[x]) for x in ('source', 'target')))
  np.testing.assert_allclose(logits, expected['logits'], rtol=2e-4, atol=2e-4)


@pytest.mark.wide('m2m100_tiny-beam4*', 'mbart_tiny-greedy_short')
@pytest.mark.parametrize(('name', 'kind'), TEXTS)
def test_texts_are_theirs(name, kind):
  """Of padded sources."""
  model, params, expected, processors = loaded(name)
  if kind.endswith('_other'):
    processors = dataclasses.replace(processors, forced_begin=expected['forced_bos_other'])
  strategy = fd.Greedy()
  if kind.startswith('beam4'):
    strategy = fd.Beam(4, length_penalty=fd.PowerPenalty(0.6))
  max_len = 6 if kind.endswith('_short') else 24
  how = {'strategy': strategy, 'max_len': max_len, 'processors': processors}
  out = fd.decode(model, params, expected['source'], **how)
  check_texts(texts_of(out), expected[kind], model)
  if f'{kind}_scores' in expected:
    np.testing.assert_allclose(out.scores, expected[f'{kind}_scores'], rtol=1e-4)


@functools.cache
def kit(name):
  return fresh_kit(*loaded(name, 'float64')[:2])


@pytest.mark.slow
@pytest.mark.parametrize('method', METHODS | GROWN)
@pytest.mark.parametrize('name', NAMES)
def test_every_method_writes_them(name, method, in_float64):
  """Sources have different lengths, and are decoded together and one by one."""
  model, params, expected, processors = loaded(name, 'float64')
  sources = sources_of(expected)
  how = {'strategy': (METHODS | GROWN)[method](kit(name)), 'max_len': 24, 'processors': processors}
  with jax.numpy_dtype_promotion('standard'):  # draft networks promote
    texts = texts_of(fd.decode(model, params, sources, **how))
    alone = texts_of(fd.decode(model, params, sources[2:3], **how))
  check_texts(texts, expected['greedy'], model)
  assert alone == texts[2:3]


@pytest.mark.slow
@pytest.mark.parametrize('name', NAMES)
def test_streams_int8_and_saved_folders_keep_them(name, tmp_path):
  model, params, expected, processors = loaded(name)
  sources, how = sources_of(expected), {'max_len': 24, 'processors': processors}
  fd.save(model, params, tmp_path / 'own')
  with warnings.catch_warnings():
    warnings.simplefilter('ignore', fd.UserNote)  # of processors, which the copy has too
    again, read = fd.load(tmp_path / 'own')
    in_int8 = fd.load(tmp_path / 'own', dtype='int8')
  assert again == model
  jax.tree.map(np.testing.assert_array_equal, read, params)
  how['processors'] = fd.Processors.of(tmp_path / 'own')
  written = [[] for _ in sources]
  for rows in fd.stream(model, params, sources, fd.Greedy(), **how):
    for row, tokens in zip(written, rows, strict=True):
      row += tokens
  check_texts(written, expected['greedy'], model)
  model, params = in_int8
  greedy, wide = (
    texts_of(fd.decode(model, params, sources, strategy, **how))
    for strategy in (fd.Greedy(), fd.PromptLookup(ngram=1, k=4))
  )
  assert greedy == wide


LANGUAGES = {  # the tokens of some ids, those given to the Generator, and the arrays of the texts
  'm2m100_tiny': ({98: '__en__', 99: '__de__', 100: '__fr__'}, ('en', 'fr'), 'greedy_other'),
  'mbart_tiny': ({100: 'en_XX', 101: 'fr_XX', 102: 'de_DE'}, ('en', 'de'), 'greedy'),
  'madlad_tiny': ({108: '<2de>', 107: '<2fr>'}, (None, 'de'), 'greedy'),
}


def write_tokenizer(folder, special, words):
  """A word an id, without anything around a text."""
  tokenizers = pytest.importorskip('tokenizers')
  vocabulary = {special.get(i, f'w{i}'): i for i in range(words)}
  made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token='w3'))
  made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
  made.add_special_tokens(list(special.values()))
  made.save(str(folder / 'tokenizer.json'))


@pytest.mark.wide('m2m100_tiny')
@pytest.mark.parametrize('name', LANGUAGES)
def test_a_generator_translates_between_languages(name, tmp_path):
  tokens, languages, texts = LANGUAGES[name]
  shutil.copytree(REFERENCE / name, tmp_path, dirs_exist_ok=True)
  model, _, expected, _ = loaded(name)
  write_tokenizer(tmp_path, tokens, model.vocab_size)
  named = dict(zip(('source', 'target'), languages, strict=True))
  g = fd.Generator.load(tmp_path, dtype='float32', **named)
  special = {*tokens, *model.eos_ids}
  plain = [[i for i in ids if i not in special] for ids in sources_of(expected)]
  prompts = [' '.join(f'w{i}' for i in ids) for ids in plain]
  assert [g.read(prompt)[0] for prompt in prompts] == sources_of(expected)
  written = g(prompts, max_new_tokens=24)
  check_texts([one.tokens for one in written], expected[texts], model)
  assert not {*' '.join(one.text for one in written).split()} & {*tokens.values()}
  with pytest.raises(fd.UserError, match=r"no language 'xx': it knows "):
    fd.Generator.load(tmp_path, source='xx')


def test_a_decoder_that_starts_with_a_language_starts_with_the_target():
  """And so does a draft model that began as the model did."""
  model, params, _, _ = loaded('mbart_tiny')

  class Words:
    vocab_size = model.vocab_size
    encode = staticmethod(lambda text, special=True: [int(one) for one in text.split()])
    decode = staticmethod(lambda ids: ' '.join(map(str, ids)))
    pieces = staticmethod(lambda ids: [{100: 'en_XX', 101: 'fr_XX'}.get(i, str(i)) for i in ids])

  strategy = fd.Speculative((model, params), 3)
  g = fd.Generator(model, params, Words(), strategy, source='en_XX', target='fr')
  draft, _ = g.strategy.draft
  assert g.model.start_id == draft.start_id == 101
  assert g.read('95 78')[0] == [95, 78, 2, 100]
