"""T5 from Hugging Face's tensors equals what `transformers` computed with them;
decoding/beam/test_reference.py has its texts."""

import json
from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec.folders.stored import put
from fastdec.hub import t5
from fastdec.hub.tensors import fit
from fastdec.models import api
from fastdec.models.t5 import T5, T5Config

FOLDER = Path(__file__).parents[3] / 'shared' / 'reference' / 'hf' / 't5_tiny'
needs_reference = pytest.mark.skipif(
  not FOLDER.is_dir(), reason='needs ../shared/reference, which is not here'
)

CONFIG = {
  'model_type': 't5', 'd_model': 12, 'd_kv': 4, 'd_ff': 16, 'num_heads': 2, 'num_layers': 1,
  'num_decoder_layers': 2, 'vocab_size': 17, 'feed_forward_proj': 'gated-gelu',
  'tie_word_embeddings': False, 'pad_token_id': 0, 'eos_token_id': 1, 'decoder_start_token_id': 0,
  'is_encoder_decoder': True, 'dropout_rate': 0.0,
}  # fmt: skip


def params_of(model, tensors):
  """The parameters as `fd.load` makes them, of tensors by their names."""
  stored = t5.params_of(model, tensors)
  fit(stored, jax.eval_shape(model.init, jax.random.key(0)))
  return put(stored, model, None, None)


@pytest.fixture(scope='module')
def loaded():
  from safetensors.numpy import load_file

  read = lambda name: json.loads((FOLDER / name).read_text())
  model = t5.model_of(read('config.json'), read('generation_config.json'), 'float32')
  return (
    model,
    params_of(model, load_file(FOLDER / 'model.safetensors')),
    np.load(FOLDER / 'expected.npz'),
  )


@needs_reference
def test_logits_are_theirs(loaded):
  model, params, expected = loaded

  @jax.jit
  def logits(params, source, target):
    cache = model.init_cache(params, model.encode(params, source), *target.shape)
    return model.unembed(params, model.apply(params, target, api.causal(target.shape[1]), cache)[0])

  ours, theirs = (
    logits(params, jnp.asarray(expected['source']), jnp.asarray(expected['target'])),
    expected['logits'],
  )
  assert abs(ours - theirs).max() < 1e-5 * abs(theirs).max()


def v11_tensors():
  """All tensors that a file of CONFIG's model has, random."""
  d, inner, f, v = 12, 8, 16, 17
  shapes = {'shared.weight': (v, d), 'lm_head.weight': (v, d)}
  for side, layers in (('encoder', 1), ('decoder', 2)):
    shapes[f'{side}.final_layer_norm.weight'] = (d,)
    shapes[f'{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight'] = (32, 2)
    for i in range(layers):
      at = f'{side}.block.{i}.layer'
      attentions = ['0.SelfAttention', '1.EncDecAttention'][: 1 + (side == 'decoder')]
      for name in attentions:
        shapes |= {f'{at}.{name}.{x}.weight': (inner, d) for x in 'qkv'} | {
          f'{at}.{name}.o.weight': (d, inner)
        }
      shapes |= {f'{at}.{j}.layer_norm.weight': (d,) for j in range(len(attentions) + 1)}
      dense = f'{at}.{len(attentions)}.DenseReluDense'
      shapes |= {
        f'{dense}.wi_0.weight': (f, d),
        f'{dense}.wi_1.weight': (f, d),
        f'{dense}.wo.weight': (d, f),
      }
  rng = np.random.default_rng(0)
  return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


class Recorded(Mapping):
  """A mapping that remembers which tensors were read."""

  def __init__(self, tensors):
    self.tensors, self.read = tensors, set()

  def __getitem__(self, name):
    self.read.add(name)
    return self.tensors[name]

  def __iter__(self):
    return iter(self.tensors)

  def __len__(self):
    return len(self.tensors)


@needs_reference
def test_a_pad_within_a_source_is_text_and_after_it_padding():
  """The text is that of `transformers` with the mask of its tokenizer."""
  model, params = fd.load(FOLDER)
  _, mask = model.unpadded(jnp.asarray([[0, 7, 0, 12, 0, 0]]))
  assert mask.tolist() == [[True] * 4 + [False] * 2]
  source = [7, 9, 0, 12, 30, 1]
  for rows in ([source, [5, 6, 1]], np.array([[*source, 0, 0], [5, 6, 1, *[0] * 5]])):
    out = fd.decode(model, params, rows, fd.Greedy(), max_len=5)
    assert out.tokens[0].tolist() == [58, 24, 86, 34, 1]


def test_every_tensor_of_v11_has_its_place():
  """The model is gated and untied and has its own width of heads. Its parameters are those of
  `init`, and no tensor is left over."""
  model, tensors = (
    t5.model_of(CONFIG, {}, 'float32'),
    Recorded({**v11_tensors(), t5.OBSOLETE: np.zeros((32, 2))}),
  )
  params = params_of(model, tensors)
  assert tensors.read == set(tensors)
  shapes = lambda tree: jax.tree.map(lambda x: x.shape, tree)
  assert shapes(params) == shapes(jax.eval_shape(model.init, jax.random.key(0)))
  gate, linear = params['decoder_1']['feed_forward']['gate_w1']['kernel']
  np.testing.assert_array_equal(gate, tensors['decoder.block.1.layer.2.DenseReluDense.wi_0.weight'])
  np.testing.assert_array_equal(
    linear, tensors['decoder.block.1.layer.2.DenseReluDense.wi_1.weight']
  )
  kv = params['decoder_0']['cross']['kv']['kernel']
  np.testing.assert_array_equal(
    kv[1, 1], tensors['decoder.block.0.layer.1.EncDecAttention.v.weight'][4:]
  )


def test_logits_have_the_matrix_that_the_file_has():
  """A copy of the embedding is not stored twice. A different matrix is used even if
  `tie_word_embeddings` is set."""
  tensors = v11_tensors()
  model = t5.model_of({**CONFIG, 'tie_word_embeddings': True}, {}, 'float32')
  assert 'lm_head' in params_of(model, tensors)
  assert 'lm_head' not in params_of(
    model, {**tensors, 'lm_head.weight': tensors['shared.weight'].copy()}
  )
  del tensors['lm_head.weight']
  params = params_of(t5.model_of(CONFIG, {}, 'float32'), tensors)
  hidden = jnp.ones((1, 12))
  np.testing.assert_allclose(
    model.unembed(params, hidden), hidden @ tensors['shared.weight'].T * 12**-0.5, rtol=1e-5
  )


def test_an_embedding_may_have_one_of_three_names_or_all():
  tensors = v11_tensors()
  model, embedding = t5.model_of(CONFIG, {}, 'float32'), tensors.pop('shared.weight')
  for names in (['decoder'], ['encoder', 'decoder']):
    copies = {f'{name}.embed_tokens.weight': embedding for name in names}
    np.testing.assert_array_equal(params_of(model, tensors | copies)['embedding'], embedding)
  copies['encoder.embed_tokens.weight'] = embedding + 1
  with pytest.raises(fd.UserError, match='differ'):
    params_of(model, tensors | copies)
  with pytest.raises(KeyError, match='shared'):
    params_of(model, tensors)


@pytest.mark.parametrize(
  ('change', 'generation', 'expected'),
  [
    (
      {},
      {},
      {
        'is_gated': True,
        'activation': 'gelu',
        'is_tied': False,
        'scales_logits': False,
        'eos_ids': (1,),
      },
    ),
    ({'tie_word_embeddings': True}, {}, {'is_tied': True, 'scales_logits': True}),
    (
      {'tie_word_embeddings': True, 'scale_decoder_outputs': False},
      {},
      {'is_tied': False, 'scales_logits': False},
    ),
    ({'feed_forward_proj': 'relu'}, {}, {'is_gated': False, 'activation': 'relu'}),
    ({'feed_forward_proj': 'gated-silu'}, {}, {'is_gated': True, 'activation': 'swish'}),
    ({'feed_forward_proj': 'gelu'}, {}, {'is_gated': False, 'activation': 'exact_gelu'}),
    (
      {'dense_act_fn': 'silu', 'is_gated_act': False},
      {},
      {'is_gated': False, 'activation': 'swish'},
    ),
    ({}, {'eos_token_id': [1, 5]}, {'eos_ids': (1, 5)}),
    ({}, {'suppress_tokens': [4], 'bad_words_ids': [[0]]}, {'suppressed_ids': (0, 4)}),
    ({'num_decoder_layers': None, 'num_layers': 3}, {}, {'encoder_layers': 3, 'decoder_layers': 3}),
    ({'decoder_start_token_id': None, 'pad_token_id': 2}, {}, {'pad_id': 2, 'start_id': 2}),
    ({}, {'decoder_start_token_id': 7}, {'pad_id': 0, 'start_id': 7}),
    (
      {'dropout_rate': 0.2},
      {},
      {'dropout': 0.2, 'attention_dropout': 0.2, 'activation_dropout': 0.2},
    ),
  ],
)
def test_what_a_config_says(change, generation, expected):
  config = t5.model_of({**CONFIG, **change}, generation, 'bfloat16').config
  assert {name: getattr(config, name) for name in expected} == expected
  assert config.dtype == 'bfloat16' and config.head_width == 4


@pytest.mark.parametrize(('change', 'generation', 'message'), [
  ({'feed_forward_proj': 'gated-tanh'}, {}, 'may be one of swish, silu, relu'),
  ({'feed_forward_proj': 'wide-relu'}, {}, 'or gated- and one'),
  ({'is_encoder_decoder': False}, {}, 'that has a decoder'),
  ({'pad_token_id': None}, {}, 'pad_token_id=null'),
  ({'num_experts': 4}, {}, "num_experts=4 .* not known for model_type 't5'"),
])  # fmt: skip
def test_what_is_not_supported_is_named(change, generation, message):
  with pytest.raises(fd.UserError, match=message):
    t5.model_of({**CONFIG, **change}, generation, 'float32')


@needs_reference
@pytest.mark.parametrize(
  'load', [lambda: fd.load(FOLDER, dtype='float16'), lambda: T5(T5Config(dtype='float16'))]
)
def test_float16_is_refused(load):
  """Feed-forward layers of published T5s exceed its range: values become infinite, then NaN, and
  the model writes the last id for ever."""
  with pytest.raises(
    fd.UserError,
    match=r"dtype='float16' is not possible for T5.*: give bfloat16"
    r' or float32',
  ):
    load()


@needs_reference
@pytest.mark.parametrize('dtype', [None, 'bfloat16'])
def test_a_folder_that_says_float16_is_read_as_float32_unless_a_dtype_is_set(dtype, tmp_path):
  for file in FOLDER.glob('*.*'):
    (tmp_path / file.name).write_bytes(file.read_bytes())
  config = json.loads((FOLDER / 'config.json').read_text())
  (tmp_path / 'config.json').write_text(json.dumps({**config, 'dtype': 'float16'}))
  if dtype is not None:  # a chosen dtype is not warned of (a warning would be an error here)
    assert fd.load(tmp_path, dtype=dtype)[0].config.dtype == dtype
    return
  with pytest.warns(
    fd.UserNote, match="says float16, in which .* is read as float32: give dtype='bfloat16'"
  ):
    model, params = fd.load(tmp_path)
  assert model.config.dtype == 'float32' and params['embedding'].dtype == jnp.float32
