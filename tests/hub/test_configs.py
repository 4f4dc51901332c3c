"""The config.json of each family, with older and newer names of fields; no weights are needed."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec.hub import bart, families, llama, quantized_formats
from fastdec.hub import generation as decoding
from fastdec.models.transformer import Network
from fastdec.text.load import open_folder

LLAMA = {
  'model_type': 'llama', 'vocab_size': 11, 'hidden_size': 16, 'intermediate_size': 24,
  'num_hidden_layers': 3, 'num_attention_heads': 4,
  'max_position_embeddings': 64, 'eos_token_id': 2,
}  # fmt: skip
MARIAN = {
  'model_type': 'marian', 'vocab_size': 11, 'd_model': 8, 'encoder_layers': 1, 'decoder_layers': 1,
  'encoder_attention_heads': 4, 'decoder_attention_heads': 2, 'encoder_ffn_dim': 12,
  'decoder_ffn_dim': 6, 'max_position_embeddings': 16, 'pad_token_id': 10, 'eos_token_id': 0,
}  # fmt: skip
LLAMA3 = {'rope_type': 'llama3', 'factor': 8.0, 'low_freq_factor': 1.0, 'high_freq_factor': 4.0}


def config_of(generation=(), **changes):
  return llama.model_of({**LLAMA, **changes}, dict(generation), 'float32').config


@pytest.mark.parametrize(
  ('older', 'newer'),
  [
    ({}, {'rope_parameters': {'rope_type': 'default', 'rope_theta': 1e4}}),
    (
      {'rope_theta': 5e5, 'rope_scaling': None},
      {'rope_parameters': {'rope_type': 'default', 'rope_theta': 5e5}},
    ),
    ({'rope_theta': None}, {}),
    (
      {'rope_theta': 99.0, 'rope_scaling': {'type': 'linear', 'factor': 3}},
      {'rope_parameters': {'rope_type': 'linear', 'factor': 3.0, 'rope_theta': 99.0}},
    ),
    # The context of the first training is in the rope's fields, or next to them, or missing. If it
    # is missing, it is the model's context.
    (
      {'rope_scaling': LLAMA3},
      {'rope_parameters': {**LLAMA3, 'original_max_position_embeddings': 64}},
    ),
    (
      {'rope_scaling': LLAMA3, 'original_max_position_embeddings': 16},
      {'rope_parameters': {**LLAMA3, 'original_max_position_embeddings': 16}},
    ),
    # If a config has both, `generate` has always used the older one.
    (
      {
        'rope_scaling': {'type': 'linear', 'factor': 2.0},
        'rope_parameters': {'rope_type': 'default'},
      },
      {'rope_parameters': {'rope_type': 'linear', 'factor': 2.0}},
    ),
  ],
)
def test_rope_means_the_same_in_older_and_newer_words(older, newer):
  assert config_of(**older) == config_of(**newer)


def test_a_linear_stretch_turns_at_s_times_t_as_none_does_at_t():
  stretched = config_of(rope_scaling={'type': 'linear', 'factor': 4.0}).rotary
  at = jnp.arange(8)
  np.testing.assert_allclose(
    stretched.angles(4 * at, 4), config_of().rotary.angles(at, 4), rtol=1e-6
  )


@pytest.mark.parametrize(
  ('changes', 'windows'),
  [
    ({'model_type': 'llama', 'sliding_window': 5}, ()),
    ({'model_type': 'mistral', 'sliding_window': 5}, (5, 5, 5)),
    ({'model_type': 'mistral', 'sliding_window': None}, ()),
    ({'model_type': 'mistral', 'num_attention_heads': 8}, (4096,) * 3),
    ({'model_type': 'qwen2', 'sliding_window': 5}, ()),
    (
      {
        'model_type': 'qwen2', 'sliding_window': 5, 'use_sliding_window': True,
        'max_window_layers': 1,
      },
      (0, 5, 5),
    ),
    ({'model_type': 'qwen3', 'sliding_window': 5, 'use_sliding_window': True}, (0, 0, 0)),
    (
      {
        'model_type': 'qwen3', 'sliding_window': 5, 'use_sliding_window': True,
        'layer_types': ['sliding_attention', 'full_attention', 'sliding_attention'],
      },
      (5, 0, 5),
    ),
    ({'model_type': 'phi3', 'sliding_window': 5}, (5, 5, 5)),
    ({'model_type': 'phi3'}, ()),
    ({'model_type': 'gemma2', 'sliding_window': 5}, (5, 0, 5)),
    ({'model_type': 'gemma3_text'}, (4096, 4096, 4096)),
    ({'model_type': 'mixtral', 'sliding_window': 5}, (5, 5, 5)),
    ({'model_type': 'qwen3_moe', 'sliding_window': 5}, ()),
    ({'model_type': 'qwen3_moe', 'sliding_window': 5, 'use_sliding_window': True}, (5, 5, 5)),
    ({'model_type': 'gpt_oss', 'sliding_window': 5}, (5, 0, 5)),
    ({'model_type': 'gemma3_text', 'sliding_window_pattern': 3}, (4096, 4096, 0)),
    # other families do not read it
    ({'model_type': 'gemma2', 'sliding_window_pattern': 3}, (4096, 0, 4096)),
    ({'model_type': 'qwen2', 'sliding_window': 5, 'sliding_window_pattern': 3}, ()),
  ],
)  # fmt: skip
def test_windows(changes, windows):
  assert config_of(**{'num_key_value_heads': None, **changes}).windows == windows


@pytest.mark.parametrize(('kind', 'options', 'biases', 'norms', 'key_heads', 'width'), [
  ('llama', {'attention_bias': True, 'mlp_bias': True}, (True, True, True), False, 4, 4),
  ('mistral', {'attention_bias': True, 'mlp_bias': True}, (False, False, False), False, 8, 4),
  ('qwen2', {'attention_bias': False, 'mlp_bias': True}, (True, False, False), False, 4, 4),
  ('qwen3', {'attention_bias': True, 'mlp_bias': True}, (True, True, False), True, 4, 128),
])  # fmt: skip
def test_what_each_family_has_of_its_own(kind, options, biases, norms, key_heads, width):
  """The config does not change it: Qwen2 has biases only on q, k and v, Mistral has none. Mistral
  has 8 key heads by default."""
  heads = {'num_attention_heads': 8, 'hidden_size': 32} if kind == 'mistral' else {}
  config = config_of(model_type=kind, **options, **heads)
  assert (config.qkv_bias, config.out_bias, config.mlp_bias) == biases
  assert (config.qk_norm, config.kv_heads, config.width) == (norms, key_heads, width)


def test_layers_without_rope_are_every_fourth_by_default():
  config = config_of(model_type='smollm3', num_hidden_layers=8, num_key_value_heads=None)
  assert config.unrotated == (3, 7)
  sliding = config_of(
    model_type='smollm3', use_sliding_window=True, sliding_window=5, no_rope_layers=[0, 1, 1]
  )
  assert sliding.unrotated == (0,) and sliding.windows == (5, 0, 0)


@pytest.mark.parametrize(('changes', 'generation', 'message'), [
  ({'rope_parameters': {'full_attention': {'rope_type': 'default'}}}, {}, 'differ by layer'),
  ({'rope_parameters': {'rope_type': 'default', 'partial_rotary_factor': 0.5}}, {},
    'partial_rotary_factor=0.5'),
  ({'model_type': 'qwen2', 'use_sliding_window': True, 'layer_types': ['chunked']}, {},
    'one of full_attention, sli'),
  ({'model_type': 'gemma3_text', 'use_bidirectional_attention': True}, {},
    'use_bidirectional_attention=True'),
  ({'rope_scaling': {'type': 'longrope', 'short_factor': [1, 1]}}, {}, "lacks .* 'long_factor'"),
  ({'clip_qkv': 8.0}, {}, "clip_qkv=8.0 .* not known for .* 'llama'"),
  ({'model_type': 'mixtral', 'num_experts_per_tok': 9}, {}, r'experts\.chosen=9'),
  ({'model_type': 'smollm3', 'no_rope_layers': [1]}, {}, r'no_rope_layers=\[1\]'),
  ({}, {'forced_decoder_ids': [[1, 3]]}, r'forced_decoder_ids=\[\[1, 3\]\]'),
])  # fmt: skip
def test_what_is_not_supported_is_named(changes, generation, message):
  with pytest.raises(fd.UserError, match=message):
    config_of(generation, **changes)


def test_what_is_never_emitted():
  """An end token may be emitted even if it is a bad word. Ids outside the vocabulary are
  ignored."""
  words = [[3], [5], [4, 6]]
  generation = {'eos_token_id': [2, 5], 'bad_words_ids': words, 'suppress_tokens': [-1, 7, 99]}
  assert decoding.suppressed_ids(LLAMA, generation) == {3, 7}
  assert decoding.suppressed_ids(LLAMA, {'suppress_tokens': [2]}) == {2}
  older = {**LLAMA, 'bad_words_ids': [[4]]}
  assert decoding.suppressed_ids(older, {}) == {4} and not decoding.suppressed_ids(
    older, {'eos_token_id': 2}
  )


def test_marians_sides_may_differ_in_size():
  model = bart.model_of(MARIAN, {}, 'float32')
  params = jax.eval_shape(model.init, jax.random.key(0))
  shapes = {
    side: params[f'{side}_0']['attention']['qkv']['kernel'].shape for side in ('encoder', 'decoder')
  }
  assert shapes == {'encoder': (3, 4, 2, 8), 'decoder': (3, 2, 4, 8)}
  assert params['decoder_0']['feed_forward']['w1']['kernel'].shape == (6, 8)
  memory = jax.eval_shape(model.encode, params, jnp.ones((1, 3), jnp.int32))
  cache = jax.eval_shape(lambda p, m: model.init_cache(p, m, 1, 4), params, memory)
  assert cache.own.layers[0].k.shape == (1, 2, 4, 4)


def test_marian_scales_its_embedding_where_the_config_says_so():
  """The embedding is not scaled by default, and positions never are."""
  tokens, embedded = jnp.array([[3]]), {}
  for scaled in (None, True):
    model = bart.model_of({**MARIAN, 'scale_embedding': scaled}, {}, 'float32')
    params = model.init(jax.random.key(0))
    args = (tokens, 0 * tokens, 'source', False)
    embedded[scaled] = Network(model.config).apply({'params': params}, *args, method='embed')
    embedded[scaled] -= params['source_positions'][0][None, None]
  np.testing.assert_allclose(embedded[True], embedded[None] * 8**0.5, rtol=1e-4, atol=1e-5)


def test_marian_needs_a_pad():
  with pytest.raises(fd.UserError, match='pad_token_id=null'):
    bart.model_of({**MARIAN, 'pad_token_id': None}, {}, 'float32')


def model_in(folder, generation, **changes):
  (folder / 'config.json').write_text(json.dumps({**LLAMA, **changes}))
  if generation is not None:
    (folder / 'generation_config.json').write_text(json.dumps(generation))
  return open_folder(folder).model


@pytest.mark.parametrize(('generation', 'named'), [
  ({'min_length': 5, 'num_beams': 4, 'length_penalty': 2.0}, 'num_beams=4, length_penalty=2.0'),
  ({'do_sample': True, 'temperature': 0.7, 'typical_p': 0.9},
    'do_sample=True, temperature=0.7, typical_p=0.9'),
  ({'max_length': 512, 'max_new_tokens': 9}, 'max_length=512, max_new_tokens=9'),
])  # fmt: skip
def test_one_warning_names_all_unused_defaults_of_generate(generation, named, tmp_path):
  with pytest.warns(fd.UserNote) as caught:
    model_in(tmp_path, generation)
  (message,) = [str(warning.message) for warning in caught]
  assert message.startswith(
    f'{tmp_path}/generation_config.json has defaults of `generate` that fastdec ignores: {named}.'
  )
  assert message.endswith(
    'The strategy that you give chooses tokens, and only max_len limits them.'
  )


@pytest.mark.parametrize(('settings', 'named'), [
  ({'no_repeat_ngram_size': 3, 'min_length': 5}, 'no_repeat_ngram_size=3, min_length=5'),
  ({'forced_eos_token_id': 2, 'bad_words_ids': [[3, 4]]},
    r'forced_eos_token_id=2, bad_words_ids=\[\[3, 4\]\]'),
])  # fmt: skip
def test_a_warning_names_processors_that_the_caller_must_set(settings, named, tmp_path):
  with pytest.warns(
    fd.UserNote, match=f'has processors of `generate`: {named}. fd.Generator applies'
  ):
    decoding.warn_of_processors(tmp_path, settings)
  decoding.warn_of_processors(tmp_path, {'repetition_penalty': 1.0, 'bad_words_ids': [[3]]})


def test_defaults_that_change_nothing_are_passed_over(tmp_path):
  """Warnings are errors here. Settings of sampling and of beams do nothing where `generate` would
  be greedy."""
  neutral = {
    'repetition_penalty': 1.0,
    'num_beams': 1,
    'min_length': 0,
    'do_sample': False,
    'temperature': 0.6,
  }
  model_in(
    tmp_path,
    {**neutral, 'top_p': 0.9, 'length_penalty': 0.8, 'max_length': 20, 'forced_eos_token_id': None},
  )


def test_harmless_fields_of_published_files_are_ignored():
  """They are about training or for other programs, or their value has no effect."""
  harmless = {
    'pretraining_tp': 1, 'rope_interleaved': False, 'attention_dropout': 0.1, 'use_mrope': False,
    'router_aux_loss_coef': 0.001, 'output_router_logits': True, 'router_jitter_noise': 0.1,
    'logits_scaling': None, 'chunk_size_feed_forward': 0, 'lm_head_bias': False, 'embd_pdrop': 0.1,
    'cache_implementation': 'hybrid', 'is_llama_config': True, 'full_attn_mod': 1, 'mlp_bias': None,
    'sliding_window': 9, 'max_window_layers': 3, 'sliding_window_size': 9, 'temperature': 0.7,
  }  # fmt: skip
  assert config_of(**harmless) == config_of()


def test_fields_and_defaults_differ_between_families():
  """Gemma has another name for its activation. Gemma 3 names a cap of scores that has no effect,
  and may have the rope of only one kind of layer. Phi calls longrope yarn. gpt-oss stretches its
  rope by default."""
  assert config_of(hidden_activation='relu') == config_of()
  gemma = {'model_type': 'gemma3_text', 'num_key_value_heads': None}
  plain = config_of(**gemma)
  assert config_of(**gemma, hidden_act='relu', attn_logit_softcapping=3.0) == plain
  assert config_of(**gemma, hidden_activation='relu').activation == 'relu'
  rope = {'full_attention': {'rope_type': 'default', 'rope_theta': 7.0}}
  gemma3 = config_of(**gemma, rope_parameters=rope, rope_local_base_freq=9.0)
  assert (gemma3.rope_theta, gemma3.local_theta) == (7.0, 9.0)
  factors = {'short_factor': [1.0, 1.0], 'long_factor': [2.0, 3.0]}
  phi = config_of(model_type='phi3', rope_scaling={'type': 'yarn', **factors})
  assert (phi.rope, phi.rope_original, phi.rope_long) == ('longrope', 4096, (2.0, 3.0))
  oss = config_of(model_type='gpt_oss', num_local_experts=4, **EXPERTS)
  assert (oss.rope, oss.rope_factor, oss.rope_original) == ('yarn', 32.0, 4096)


EXPERTS = {'num_experts_per_tok': 2, 'num_key_value_heads': None, 'head_dim': None}


def test_experts_mean_the_same_in_older_and_newer_words():
  for kind in ('mixtral', 'qwen3_moe', 'gpt_oss'):
    newer, older = (
      config_of(model_type=kind, **EXPERTS, **{name: 4})
      for name in ('num_local_experts', 'num_experts')
    )
    assert newer == older and newer.experts.count == 4
  assert config_of(model_type='qwen3_moe', **EXPERTS).experts.count == 128


@pytest.mark.parametrize(('changes', 'sparse'), [
  ({}, (True, True, True)),
  ({'mlp_only_layers': [0, 2]}, (False, True, False)),
  ({'decoder_sparse_step': 2}, (False, True, False)),
  ({'decoder_sparse_step': 2, 'mlp_only_layers': [1]}, (False, False, False)),
  ({'num_experts': 0}, (False, False, False)),
])  # fmt: skip
def test_layers_of_experts(changes, sparse):
  assert config_of(model_type='qwen3_moe', **EXPERTS, **changes).sparse == sparse


def test_the_weights_of_experts():
  """The weights of Mixtral and gpt-oss always sum to 1, those of Qwen3 only if config.json says
  so."""
  normed = lambda **changes: config_of(**EXPERTS, **changes).experts.normed
  assert normed(model_type='mixtral') and normed(model_type='gpt_oss')
  assert not normed(model_type='qwen3_moe')
  assert normed(model_type='qwen3_moe', norm_topk_prob=True)


@pytest.mark.parametrize('module', [families, quantized_formats], ids=['families', 'quantized'])
def test_the_tables_of_folders_are_in_the_documents(module):
  page = (Path(__file__).parents[2] / 'docs' / 'own' / 'folders.md').read_text()
  assert module.table() in page, f'write it into docs/own/folders.md:\n{module.table()}'
