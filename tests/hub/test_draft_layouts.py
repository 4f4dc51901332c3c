"""Every layout in which drafts are published: each tensor is read into the right place; mistakes
are sentences."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict

import fastdec as fd
from fastdec.heads import tower
from fastdec.heads.eagle import EagleNetwork
from fastdec.heads.parallel import ParallelNetwork
from fastdec.models.lm import LM, LMConfig
from fastdec.struct import Bound
from fastdec.text.load import is_draft
from tests.hub.draft_layouts import LAYOUTS, V, tensors_of, write

# Published names, our names, and the part of our parameter.
NAMES = tuple(
  (re.compile(theirs), ours, part)
  for theirs, ours, part in (
    (r'embed_tokens\.weight', 'embedding', None),
    (r'lm_head\.weight', 'output', None),
    (r'markov_head\.markov_w1\.weight', 'before', None),
    (r'markov_head\.markov_w2\.weight', 'after', None),
    (r'markov_head\.gate_proj\.(weight|bias)', r'network/gate/\1', None),
    (r'markov_head\.joint_proj\.(weight|bias)', r'network/joint/\1', None),
    (r'mask_hidden', 'network/mask_hidden', None),
    (
      r'layers\.(\d)\.(attention|mlp)_conv\.base_kernel',
      r'network/tower/layer_\1/\2_conv/base',
      None,
    ),
    (
      r'layers\.(\d)\.(attention|mlp)_conv\.kernel_projection\.weight',
      r'network/tower/layer_\1/\2_conv/taps/kernel',
      None,
    ),
    (r'candidate_selector\.hidden_projection\.weight', 'network/select/kernel', None),
    (r'candidate_selector\.predecessor_codebook', 'before', None),
    (r'candidate_selector\.successor_codebook', 'after', None),
    (r'prefix_gru\.weight_ih_l0', 'network/gru_input/kernel', None),
    (r'prefix_gru\.weight_hh_l0', 'network/gru_state/kernel', None),
    (r'embed_proj\.0\.weight', 'network/squeeze/kernel', None),
    (r'embed_proj\.2\.weight', 'after', None),
    (r'confidence_head\.proj\.(weight|bias)', r'network/confidence/\1', None),
    (r'fc_norm\.(\d)\.weight', r'network/make_features/tap_norm_\1/scale', None),
    (r'input_norm\.weight', 'network/make_features/joined_norm/scale', None),
    (r'hidden_norm\.weight', 'network/make_features/fused_norm/scale', None),
    (r'norm\.weight', 'network/norm/scale', None),
    (r'pre_fc_norm_embedding\.weight', 'network/embedding_norm/scale', None),
    (r'pre_fc_norm_hidden\.weight', 'network/feature_norm/scale', None),
    (r'layers\.(\d)\.self_attn\.q_proj\.(weight|bias)', r'network/tower/layer_\1/q/\2', None),
    (r'layers\.(\d)\.self_attn\.k_proj\.(weight|bias)', r'network/tower/layer_\1/kv/\2', 0),
    (r'layers\.(\d)\.self_attn\.v_proj\.(weight|bias)', r'network/tower/layer_\1/kv/\2', 1),
    (r'layers\.(\d)\.self_attn\.o_proj\.(weight|bias)', r'network/tower/layer_\1/out/\2', None),
    (r'layers\.(\d)\.self_attn\.([qk]_norm)\.weight', r'network/tower/layer_\1/\2/scale', None),
    (r'layers\.(\d)\.mlp\.gate_proj\.weight', r'network/tower/layer_\1/gate_up/weight', 0),
    (r'layers\.(\d)\.mlp\.up_proj\.weight', r'network/tower/layer_\1/gate_up/weight', 1),
    (r'layers\.(\d)\.mlp\.down_proj\.weight', r'network/tower/layer_\1/down/weight', None),
    (
      r'layers\.(\d)\.post_attention_layernorm\.weight',
      r'network/tower/layer_\1/mlp_norm/scale',
      None,
    ),
    (r'layers\.0\.hidden_norm\.weight', 'network/feature_norm/scale', None),
  )
)
LILICORR_NAMES = (
  (r'token_proj\.weight', 'token/kernel'), (r'token_proj\.bias', 'token/bias'),
  (r'pass_hidden_proj\.weight', 'state/kernel'), (r'pass_hidden_proj\.bias', 'state/bias'),
  (r'context_proj\.weight', 'context/kernel'), (r'context_proj\.bias', 'context/bias'),
  (r'feature_mlp\.0\.weight', 'facts_norm/scale'), (r'feature_mlp\.0\.bias', 'facts_norm/bias'),
  (r'feature_mlp\.1\.weight', 'facts_in/kernel'), (r'feature_mlp\.1\.bias', 'facts_in/bias'),
  (r'feature_mlp\.3\.weight', 'facts_out/kernel'), (r'feature_mlp\.3\.bias', 'facts_out/bias'),
  (r'factor_input_proj\.weight', 'factor/kernel'), (r'factor_input_proj\.bias', 'factor/bias'),
  (r'in_head\.weight', 'before_head/kernel'), (r'in_head\.bias', 'before_head/bias'),
  (r'out_head\.weight', 'after_head/kernel'), (r'out_head\.bias', 'after_head/bias'),
  (r'anchor_out_head\.weight', 'root_head/kernel'), (r'anchor_out_head\.bias', 'root_head/bias'),
  (r'output_norm\.weight', 'norm/scale'), (r'anchor_norm\.weight', 'context_norm/scale'),
  (r'slot_embedding', 'slots'), (r'rank_embedding', 'ranks'),
  (r'relative_slot_bias', 'distance'), (r'same_slot_bias', 'same'),
  (r'layers\.(\d)\.attn_norm\.weight', r'attention_norm_\1/scale'),
  (r'layers\.(\d)\.mlp_norm\.weight', r'mlp_norm_\1/scale'),
  (r'layers\.(\d)\.attn\.in_proj_weight', r'qkv_\1/kernel'),
  (r'layers\.(\d)\.attn\.in_proj_bias', r'qkv_\1/bias'),
  (r'layers\.(\d)\.attn\.out_proj\.weight', r'out_\1/kernel'),
  (r'layers\.(\d)\.attn\.out_proj\.bias', r'out_\1/bias'),
  (r'layers\.(\d)\.mlp\.0\.weight', r'up_\1/kernel'),
  (r'layers\.(\d)\.mlp\.0\.bias', r'up_\1/bias'),
  (r'layers\.(\d)\.mlp\.2\.weight', r'down_\1/kernel'),
  (r'layers\.(\d)\.mlp\.2\.bias', r'down_\1/bias'),
)  # fmt: skip
UNREAD = ('d2t', 't2d', 'verifier_norm.weight')


def our_name(theirs, module):
  """Returns the place of a tensor."""
  name = re.sub(r'^(mtp|logit_head|model)\.', '', theirs).replace('midlayer.', 'layers.0.')
  is_eagle3 = isinstance(module, EagleNetwork) and module.entry == 'beside'
  is_eagle3 |= isinstance(module, ParallelNetwork)
  for pattern, ours in LILICORR_NAMES if name.startswith('lilicorr.') else ():
    if match := re.fullmatch(pattern, name.removeprefix('lilicorr.')):
      return f'network/correlator/{match.expand(ours)}', None
  if name.startswith('fc.'):
    into = 'make_features/fuse' if is_eagle3 or not isinstance(module, EagleNetwork) else 'join'
    return f'network/{into}/{name[3:]}'.replace('weight', 'kernel'), None
  if match := re.fullmatch(r'layers\.(\d)\.input_layernorm\.weight', name):
    is_entry = is_eagle3 and match[1] == '0'
    return (
      'network/embedding_norm/scale'
      if is_entry
      else f'network/tower/layer_{match[1]}/attention_norm/scale',
      None,
    )
  ((match, ours, part),) = (
    (m, ours, part) for pattern, ours, part in NAMES if (m := pattern.fullmatch(name))
  )
  return match.expand(ours).replace('weight', 'kernel'), part


def output(module, target, params):
  """Returns a number that depends on every parameter: two rounds of a chain, or a block and its
  correction."""
  width = module.d_target * max(len(module.taps), 1)
  states = jnp.cos(jnp.arange(3.0 * width)).reshape(1, 3, width)
  taps = jnp.split(states, max(len(module.taps), 1), axis=-1)
  features = module.features(params, taps[0], taps)
  cache = module.init_cache(params, None, 1, 16)
  positions, tokens = jnp.arange(3, dtype=jnp.int32)[None], jnp.array([[2, 5, 1]], jnp.int32)
  if isinstance(module, EagleNetwork):
    mask, start = jnp.tri(3, 16, dtype=bool)[None], jnp.zeros(1, jnp.int32)
    embedded = module.embedded(params, target, tokens)
    states, _ = module.read(params, embedded, features, positions, mask, cache, start)
    again, _ = module.read(params, embedded, states, positions, mask, cache, start)
    return jnp.sin(module.logits(params, target, again)).sum()
  rows, cache = module.see(params, target, features, tokens, cache)
  cache = cache.commit(None, jnp.full(1, 3, jnp.int32))
  states = module.read(params, target, tokens[:, 0], rows[:, -1], cache)
  if module.edge_kind == 'correlator':
    ids = jnp.broadcast_to(jnp.arange(module.choices), (1, module.depth, module.choices))
    log_probs = -0.3 - jnp.arange(1.0, 1 + ids.size).reshape(ids.shape)
    links = module.link(params, target, states, rows[:, -1], log_probs, ids)
    return jnp.sin(links[0]).sum() + jnp.sin(2 * links[1]).sum()
  total = jnp.sin(module.logits(params, target, states)).sum()
  carry = module.start_carry(states[:, 0])
  for i in range(2 if module.markov else 0):
    bias, carry = module.bias(params, tokens[:, i], None, states[:, i], carry, target, i)
    total += jnp.sin(bias).sum()
  if module.has_confidence:
    total += jnp.sin(module.confidence(params, states[:, 0], tokens[:, 0])).sum()
  return total


@pytest.mark.parametrize('layout', LAYOUTS)
@pytest.mark.wide('eagle-1*', 'eagle-3 of SpecForge', 'dspark of SpecForge*')
def test_every_tensor_ends_where_it_should_and_is_read(layout, tmp_path):
  tensors = write(tmp_path, layout)
  module, params = fd.load_draft(tmp_path)
  for name, value in LAYOUTS[layout][2].items():
    whole = module.layers if name.startswith('layers.') else module
    assert getattr(whole, name.removeprefix('layers.')) == value, name

  ours = flatten_dict(params, sep='/')
  read = set()
  for theirs, tensor in tensors.items():
    of_model = layout.startswith('mtp') and theirs == 'model.norm.weight'
    if (
      of_model or theirs in UNREAD or (theirs == 'norm.weight' and 'norm' not in params['network'])
    ):
      continue
    name, part = our_name(theirs, module)
    there = ours[name] if part is None else ours[name][part]
    np.testing.assert_array_equal(
      there.reshape(tensor.shape), tensor + (layout.endswith('around zero') and 'norm' in theirs)
    )
    read.add(name)
  assert read == ours.keys() - {'ids'}
  if 'ids' in ours:
    np.testing.assert_array_equal(ours['ids'], [0, 2, 3, 7, 10])

  target = LM(LMConfig(vocab_size=V, d_model=module.d_target, d_ff=4, layers=1, heads=1))
  bound = Bound(target, jax.jit(target.init)(jax.random.key(0)))
  floats = {name: part for name, part in params.items() if name != 'ids'}
  slopes = jax.jit(jax.grad(lambda floats: output(module, bound, params | floats)))(floats)
  unread = [name for name, slope in flatten_dict(slopes, sep='/').items() if not np.any(slope)]
  assert not unread


def sigmoid(x):
  return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize('kind', ['gated', 'recurrent'])
def test_a_markov_bias_is_what_the_published_code_computes(kind, tmp_path):
  """gated: W2 (sigmoid(gate(h, W1 y)) * W1 y). Recurrent: keep, new, out = joint(s, W1 y, h), the
  bias is W2 tanh(out), and s becomes sigmoid(keep) s + (1 - sigmoid(keep)) tanh(new)."""
  layout = 'dspark of SpecForge, gated' if kind == 'gated' else 'dspark of DeepSpec, recurrent'
  t = {
    name.removeprefix('logit_head.').removeprefix('markov_head.'): x
    for name, x in write(tmp_path, layout).items()
  }
  module, params = fd.load_draft(tmp_path)
  states, carry, memory = (
    np.random.default_rng(1).normal(size=(3, 8)).astype(np.float32),
    np.zeros(3),
    jnp.zeros((1, 3)),
  )
  for h, y in zip(states, (4, 0, 7), strict=True):
    seen = t['markov_w1.weight'][y]
    if kind == 'gated':
      latent = seen * sigmoid(
        t['gate_proj.weight'] @ np.concatenate([h, seen]) + t['gate_proj.bias']
      )
    else:
      keep, new, out = np.split(
        t['joint_proj.weight'] @ np.concatenate([carry, seen, h]) + t['joint_proj.bias'], 3
      )
      latent, carry = np.tanh(out), sigmoid(keep) * carry + (1 - sigmoid(keep)) * np.tanh(new)
    bias, memory = module.bias(params, jnp.array([y]), None, jnp.asarray(h)[None], memory)
    np.testing.assert_allclose(bias[0], t['markov_w2.weight'] @ latent, rtol=1e-4, atol=1e-5)


def test_a_draft_that_names_the_words_otherwise(tmp_path):
  layout = 'eagle-3 of speculators'
  tensors = tensors_of(LAYOUTS[layout][1])
  write(
    tmp_path, layout, tensors={'d2t': None, 't2d': None, 'draft_id_to_target_id': tensors['d2t']}
  )
  np.testing.assert_array_equal(fd.load_draft(tmp_path)[1]['ids'], [0, 2, 3, 7, 10])


def test_a_map_of_all_words_to_themselves_is_none(tmp_path):
  write(
    tmp_path,
    'eagle-3 of all words',
    tensors={'d2t': np.zeros(V, np.int64), 't2d': np.ones(V, bool)},
  )
  module, params = fd.load_draft(tmp_path)
  assert module.words is None and params.keys() == {'network', 'output'}


def test_layers_that_the_file_does_not_name_are_set_explicitly(tmp_path):
  write(tmp_path, 'eagle-3 of all words', tensors={'fc.weight': np.ones((8, 16), np.float32)})
  assert fd.load_draft(tmp_path, taps=(1, 2))[0].taps == (1, 2)


def test_a_model_with_an_mtp_head_loads_without_it(tmp_path):
  from safetensors.numpy import load_file, save_file

  layout = 'mtp of Qwen3'
  layer = {
    k.removeprefix('mtp.'): v
    for k, v in tensors_of(LAYOUTS[layout][1]).items()
    if '.layers.0.' in k
  }
  model = {f'model.{name}': value for name, value in layer.items()}
  model['model.embed_tokens.weight'] = np.ones((V, 8), np.float32)
  config = {'num_hidden_layers': 1, 'eos_token_id': 2}
  write(tmp_path, layout, config=config, tensors=model)
  with_head = fd.load(tmp_path)[1]
  assert fd.load_draft(tmp_path)[0].layers.layers == 1
  tensors = load_file(tmp_path / 'model.safetensors')
  save_file(
    {k: v for k, v in tensors.items() if not k.startswith('mtp.')}, tmp_path / 'model.safetensors'
  )
  jax.tree.map(np.testing.assert_array_equal, with_head, fd.load(tmp_path)[1])
  with pytest.raises(fd.UserError, match='this draft is of an unknown kind: give a draft of EAGLE'):
    fd.load_draft(tmp_path)


def ones(*shape):
  return np.ones(shape, np.float32)


E3, SPEC, FLASH, SPARK, DOMINO = (
  'eagle-3 of SpecForge', 'eagle-3 of speculators', 'dflash by its rule',
  'dspark of DeepSpec, recurrent', 'domino',
)  # fmt: skip
PARALLEL, DFLASH2, LILICORR = 'p-eagle of SpecForge', 'dflash 2', 'lilicorr'
DFLASH2_CONFIG = {
  'mask_token_id': 9, 'target_layer_ids': [0, 2, 4], 'selector_rank': 3, 'conv_kernel_size': 2,
  'conv_group_size': 4, 'block_size': 4,
}  # fmt: skip
DOMINO_CONFIG = {'mask_token_id': 9, 'target_layer_ids': [0, 2, 4], 'gru_hidden_dim': 4}
WINDOWS = {
  'use_sliding_window': True, 'sliding_window': 4, 'layer_types': ['sliding_attention'] * 2,
}  # fmt: skip
REFUSED = {
  'a tensor is missing': (E3, {}, {'midlayer.mlp.up_proj.weight': None},
    r'lacks midlayer\.mlp\.up_proj\.weight: its'),
  'a tensor is not understood': (E3, {}, {'midlayer.gate': ones(2)},
    r'has unknown midlayer\.gate: its tensors'),
  'layers fewer than taps': (E3, {'eagle_config': {'eagle_aux_hidden_state_layer_ids': [1, 2]}}, {},
                             r'fc\.weight is of shape \[8, 24\], and config\.json means \[8, 16\]'),
  'norms that config.json does not say': (E3, {'fc_norm': False}, {},
    r'has unknown fc_norm\.0\.weight'),
  'two norms before fc': (E3, {'norm_before_fc': True}, {},
    'norm_before_fc and fc_norm of config.json exclude'),
  'words without map': (E3, {}, {'d2t': None}, 'the draft vocabulary of 5 of 11 words lacks d2t'),
  'a map beyond the words': (E3, {}, {'d2t': np.full(5, 8)},
    'maps the 5 words of the draft to ids from 8 to 12'),
  'an unknown activation': (E3, {'hidden_act': 'mish'}, {},
    "hidden_act='mish' of config.json is not supported"),
  'taps of eagle-1': ('eagle-1 of two layers', {}, {},
    'only reads the last hidden state: leave taps out'),
  'layers of another family': (SPEC, {'transformer_layer_config': {'model_type': 'gpt_oss'}}, {},
    "is of model_type 'gpt_oss'"),
  'P-EAGLE without a mask': (PARALLEL, {'ptd_token_id': 'absent'}, {},
    'config.json lacks mask_token_id: set it to a whole number'),
  'DFlash 2 without candidates': (DFLASH2, {'dflash_config': DFLASH2_CONFIG}, {},
    'config.json lacks selector_top_k: set it to what the draft was trained with'),
  'groups of channels that do not fit': (DFLASH2,
    {'dflash_config': DFLASH2_CONFIG | {'selector_top_k': 4, 'conv_group_size': 3}}, {},
    'conv_group=3 must divide the width of the layers, 8'),
  'LiLiCorr without a scale': (LILICORR, {'dflash_config': {
    name: value for name, value in LAYOUTS[LILICORR][0]['dflash_config'].items()
    if name != 'lilicorr_logit_scale'}}, {},
    'config.json lacks lilicorr_logit_scale: set it to what'),
  'Domino without a width': (FLASH,
    {'dflash_config': {'projector_type': 'domino', 'mask_token_id': 9, 'emb_dim': 3}}, {},
    'config.json lacks gru_hidden_dim: set it to what'),
  'Domino of another width': (DOMINO, {'emb_dim': 4, 'dflash_config': DOMINO_CONFIG}, {},
    r'embed_proj\.0\.weight is of shape \[3, 12\], and config\.json means \[4, 12\]'),
  'no mask': (FLASH, {'dflash_config': {}}, {},
    'config.json lacks mask_token_id: set it to what'),
  'two block sizes': (FLASH, {'dflash_config': {'mask_token_id': 9, 'block_size': 8}}, {},
    'block_size=4 of config.json and block_size=8 of its dflash_config contradict one another'),
  'rows that see later ones, and do not': (
    FLASH, {'is_causal': True, 'dflash_config': {'mask_token_id': 9, 'causal': False}}, {},
    'is_causal=True, causal=False and causal_head=None of config.json contradict one another'),
  'a scaling of DFlash 2': (
    FLASH, {'dflash_config': {'mask_token_id': 9, 'output_multiplier': 0.5}}, {},
    'output_multiplier=0.5 of config.json is not known'),
  'an unknown window': (FLASH, {'dflash_config': {'mask_token_id': 9, 'window_left': 4}}, {},
    'window_left=4 of config.json is not known'),
  'use_swa without a window': (FLASH, {'dflash_config': {'mask_token_id': 9, 'use_swa': True}}, {},
    'config.json lacks swa_window_size'),
  'half of a convolution': (LILICORR, {'dflash_config': {
    name: value for name, value in LAYOUTS[LILICORR][0]['dflash_config'].items()
    if name != 'conv_kernel_size'}}, {}, 'config.json lacks conv_kernel_size'),
  'a wider target without words': (
    FLASH, {'dflash_config': {'mask_token_id': 9, 'target_hidden_size': 10}},
    {'hidden_dim_adapter.proj.weight': ones(8, 10)}, r'lacks .*embed_tokens\.weight'),
  'all words in another order, by the projection of the target': (
    'eagle-3 by the projection of its target', {}, {'d2t': np.r_[10, np.zeros(9), -10].astype(int)},
    r'lacks lm_head\.weight'),
  'a layer before the embeddings': (
    E3, {'eagle_config': {'eagle_aux_hidden_state_layer_ids': [-2, 1, 2]}}, {},
    'give layers of the target, from -1'),
  'the last layer': (SPARK, {'target_layer_ids': [0, 1, 5]}, {},
    'must be at most 4: the target has 6 layers'),
  'a mask beyond the words': (SPARK, {'mask_token_id': 11}, {},
    'unknown_id=11: give an id from 0 to 10'),
  'a gate': ('mtp of Qwen3', {'model_type': 'qwen3_next'}, {}, 'gates what attention gives'),
  'experts': ('mtp of Qwen3', {},
    {'mtp.layers.0.mlp.experts.0.up_proj.weight': ones(2)}, 'mixes experts'),
  'another model': ('mtp of Qwen3', {'model_type': 'mimo'}, {},
    "are of model_type 'mimo', which is not supported"),
}  # fmt: skip


@pytest.mark.parametrize('case', REFUSED)
def test_what_does_not_fit_is_a_sentence(case, tmp_path):
  layout, config, tensors, message = REFUSED[case]
  write(tmp_path, layout, config, tensors)
  with pytest.raises(fd.UserError, match=message) as error:
    fd.load_draft(tmp_path, taps=(1, 2, 3) if case == 'taps of eagle-1' else None)
  assert str(tmp_path) in str(error.value)


FLASH_WINDOWS = WINDOWS | {'layer_types': ['sliding_attention', 'full_attention']}


@pytest.mark.parametrize('config, windows, causal', [
  (FLASH_WINDOWS, (4, 0), 'windows'),
  (FLASH_WINDOWS | {'is_causal': True}, (4, 0), 'all'),
  (FLASH_WINDOWS | {'is_causal': False}, (4, 0), 'none'),
  ({'dflash_config': {'mask_token_id': 3, 'use_swa': True, 'swa_window_size': 5}}, (5, 5), 'none'),
  ({'dflash_config': {'mask_token_id': 3, 'causal_head': True}}, (0, 0), 'all'),
])  # fmt: skip
def test_windows_and_causality_of_blocks_have_many_spellings(config, windows, causal, tmp_path):
  write(tmp_path, FLASH, config)
  module, _ = fd.load_draft(tmp_path)
  assert (tower.windows_of(module.layers), module.causal, module.windows_follow) == (
    windows,
    causal,
    True,
  )


def test_pickles_and_heads_are_refused(tmp_path):
  write(tmp_path, E3)
  (tmp_path / 'model.safetensors').rename(tmp_path / 'pytorch_model.bin')
  with pytest.raises(
    fd.UserError,
    match=r'only as pickle \(pytorch_model\.bin\), which is refused: convert by'
    r' python -c',
  ):
    fd.load_draft(tmp_path)
  with pytest.raises(fd.UserError, match=r'only as pickle .* convert by python -c "import torch,'):
    is_draft(tmp_path)  # and no model is looked for there
  (tmp_path / 'pytorch_model.bin').rename(tmp_path / 'pytorch_model-00001-of-00002.bin')
  assert not is_draft(tmp_path)  # a model in several files has another remedy
  (tmp_path / 'config.json').write_text('{"medusa_num_heads": 3}')
  assert not is_draft(tmp_path)
  with pytest.raises(fd.UserError, match='these are prediction heads: load them with fd'):
    fd.load_draft(tmp_path)


def test_a_draft_of_a_refused_kind_is_a_draft_none_the_less(tmp_path):
  write(tmp_path, E3, {'architectures': ['Gemma4Eagle3Model']})
  assert is_draft(tmp_path)
  with pytest.raises(fd.UserError, match='layers of Gemma, which is not supported'):
    fd.load_draft(tmp_path)
