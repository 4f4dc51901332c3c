"""Tiny drafts in the layout of each family: config.json, the shapes of the tensors, and the
expected network."""

import copy
import json

import numpy as np

from fastdec.heads.correlator import CorrelatorConfig

V, D, FF = 11, 8, 12
LLAMA = {
  'architectures': ['LlamaForCausalLM'], 'model_type': 'llama', 'vocab_size': V, 'hidden_size': D,
  'rms_norm_eps': 1e-5, 'intermediate_size': FF, 'num_hidden_layers': 1, 'num_attention_heads': 2,
  'num_key_value_heads': 1, 'hidden_act': 'silu', 'torch_dtype': 'float32',
}  # fmt: skip
QWEN3 = LLAMA | {'model_type': 'qwen3', 'head_dim': 6, 'rope_theta': 1e6, 'attention_bias': False}


def layer(
  prefix, reads=D, kv=1, width=4, has_bias=False, has_qk_norm=False, is_normed=True, in_bias=False
):
  """The shapes of a layer's tensors; two heads."""
  sizes = {
    'q': (2 * width, reads),
    'k': (kv * width, reads),
    'v': (kv * width, reads),
    'o': (D, 2 * width),
  }
  shapes = {f'{prefix}self_attn.{name}_proj.weight': size for name, size in sizes.items()}
  biased = sizes if has_bias else ('q', 'k', 'v') if in_bias else ()
  shapes |= {f'{prefix}self_attn.{name}_proj.bias': sizes[name][:1] for name in biased}
  if has_qk_norm:
    shapes |= {f'{prefix}self_attn.{name}_norm.weight': (width,) for name in 'qk'}
  if is_normed:
    shapes[f'{prefix}input_layernorm.weight'] = (D,)
  mlp = {
    f'{prefix}mlp.{name}_proj.weight': size
    for name, size in {'gate': (FF, D), 'up': (FF, D), 'down': (D, FF)}.items()
  }
  return shapes | mlp | {f'{prefix}post_attention_layernorm.weight': (D,)}


def first(prefix, **sizes):
  """The first layer of EAGLE-3, which reads the embedding and the feature."""
  return layer(prefix, reads=2 * D, **sizes) | {f'{prefix}hidden_norm.weight': (D,)}


def qwen3(count, prefix='layers.'):
  return {
    name: size
    for i in range(count)
    for name, size in layer(f'{prefix}{i}.', width=6, has_qk_norm=True).items()
  }


FINAL, HEAD, EMBEDDED = (
  {'norm.weight': (D,)}, {'lm_head.weight': (V, D)}, {'embed_tokens.weight': (V, D)},
)  # fmt: skip
SMALL = {'lm_head.weight': (5, D), 'd2t': (5,), 't2d': (V,)}  # 5 words
BLOCK = {'fc.weight': (D, 3 * D), 'hidden_norm.weight': (D,)} | FINAL
MARKOV = {'markov_w1.weight': (V, 3), 'markov_w2.weight': (V, 3)}
GRU = {
  'prefix_gru.weight_ih_l0': (12, D), 'prefix_gru.weight_hh_l0': (12, 4),
  'embed_proj.0.weight': (3, D + 4), 'embed_proj.2.weight': (V, 3),
}  # fmt: skip
SELECTOR = {
  'candidate_selector.predecessor_codebook': (V, 3),
  'candidate_selector.successor_codebook': (V, 3),
  'candidate_selector.hidden_projection.weight': (3, D),
}  # fmt: skip
SPECULATORS = {
  'architectures': ['Eagle3DraftModel'], 'speculators_model_type': 'eagle3', 'draft_vocab_size': 5,
  'eagle_aux_hidden_state_layer_ids': [0, 2, 3, 5], 'norm_before_residual': True,
  'norm_output': True, 'dtype': 'float32',
  'transformer_layer_config': QWEN3 | {'num_hidden_layers': 2, 'attention_bias': True},
}  # fmt: skip
DSPARK = {
  'block_size': 4, 'num_target_layers': 6, 'mask_token_id': 9, 'target_layer_ids': [-1, 1, 3],
  'markov_rank': 3, 'enable_confidence_head': True,
}  # fmt: skip
AUTOMODEL = QWEN3 | {
  'architectures': ['LlamaEagle3DraftModel'], 'num_hidden_layers': 36, 'draft_vocab_size': 5,
  'target_hidden_size': D, 'layer_types': ['sliding_attention'] * 2, 'sliding_window': 3,
  'use_sliding_window': True, 'max_window_layers': 2, 'attn_implementation': 'eager',
}  # fmt: skip
MTP = {
  'mtp.fc.weight': (D, 2 * D), 'mtp.pre_fc_norm_embedding.weight': (D,),
  'mtp.pre_fc_norm_hidden.weight': (D,), 'mtp.norm.weight': (D,), 'model.norm.weight': (D,),
  **qwen3(1, 'mtp.layers.'),
}  # fmt: skip


def convolutions(layers, kernel, group):
  """Shapes around the sublayers of DFlash 2."""
  shapes = {}
  for i in range(layers):
    for name in ('attention_conv', 'mlp_conv'):
      shapes[f'layers.{i}.{name}.base_kernel'] = (2, kernel, D)
      projection = (2 * kernel * D // group, D)
      shapes[f'layers.{i}.{name}.kernel_projection.weight'] = projection
  return shapes


def lilicorr(slots, ranks, w, inner, rank):
  """Shapes of LiLiCorr's transformer of one layer, with two heads."""
  sizes = {
    'token_proj': (w, D), 'pass_hidden_proj': (w, D), 'context_proj': (w, D),
    'feature_mlp.1': (w, 5), 'feature_mlp.3': (w, w), 'factor_input_proj': (w, 3 * w),
    'in_head': (rank, w), 'out_head': (rank, w), 'anchor_out_head': (rank, w),
    'layers.0.attn.out_proj': (w, w), 'layers.0.mlp.0': (inner, w), 'layers.0.mlp.2': (w, inner),
  }  # fmt: skip
  shapes = {f'{name}.weight': size for name, size in sizes.items()}
  shapes |= {f'{name}.bias': size[:1] for name, size in sizes.items()}
  for name in ('anchor_norm', 'output_norm', 'layers.0.attn_norm', 'layers.0.mlp_norm'):
    shapes[f'{name}.weight'] = (w,)
  shapes |= {'feature_mlp.0.weight': (5,), 'feature_mlp.0.bias': (5,)}
  shapes |= {'layers.0.attn.in_proj_weight': (3 * w, w), 'layers.0.attn.in_proj_bias': (3 * w,)}
  shapes |= {'slot_embedding': (1, 1, slots, 1, w), 'rank_embedding': (1, 1, 1, ranks, w)}
  shapes |= {'relative_slot_bias': (2, 2 * slots + 1), 'same_slot_bias': (2,)}
  return prefixed('lilicorr.', shapes)


def prefixed(prefix, shapes):
  return {prefix + name: size for name, size in shapes.items()}


def under(**settings):
  """DFlash's config.json, its settings where they are nested."""
  return QWEN3 | {
    'num_hidden_layers': 2,
    'block_size': 4,
    'num_target_layers': 6,
    'dflash_config': settings,
  }


# config.json, shapes, and what the network's fields must be; those of its layers begin with
# 'layers.'.
LAYOUTS = {
  'eagle-1 of two layers': (
    LLAMA | {'num_hidden_layers': 2, 'bias': False, 'qkv_bias': True, 'rope_theta': 3e4},
    {'fc.weight': (D, 2 * D)} | EMBEDDED
    | layer('layers.0.', in_bias=True, is_normed=False) | layer('layers.1.', in_bias=True),
    {'taps': (), 'join_bias': False, 'norms_last': False, 'layers.qkv_bias': True,
     'layers.out_bias': False, 'layers.rope_theta': 3e4},
  ),
  'eagle-1 with its old bias': (
    LLAMA, {'fc.weight': (D, 2 * D), 'fc.bias': (D,)} | layer('layers.0.', is_normed=False),
    {'join_bias': True, 'norms_entry': False, 'norms_first': False, 'layers.rope_theta': 1e4},
  ),
  'eagle-1 of Automodel': (
    AUTOMODEL | {'architectures': ['LlamaEagleDraftModel'], 'draft_num_hidden_layers': 2,
                 'attention_bias': True, 'fc_bias': True},
    {'fc.weight': (D, 2 * D), 'fc.bias': (D,)} | EMBEDDED | FINAL
    | layer('layers.0.', width=6, has_bias=True) | layer('layers.1.', width=6, has_bias=True),
    {'entry': 'joined', 'join_bias': True, 'norms_entry': False, 'norms_first': True,
     'norms_last': True, 'recycles_normed': True, 'layers.layers': 2, 'layers.windows': (),
     'layers.qk_norm': False, 'layers.out_bias': True, 'layers.width': 6},
  ),
  'eagle-1 of Automodel, with biases of queries, keys and values': (
    AUTOMODEL | {'architectures': ['LlamaEagleDraftModel'], 'draft_num_hidden_layers': 1,
                 'qkv_bias': True},
    {'fc.weight': (D, 2 * D)} | EMBEDDED | FINAL | layer('layers.0.', width=6, in_bias=True),
    {'join_bias': False, 'layers.qkv_bias': True, 'layers.out_bias': False},
  ),
  'eagle-3 of all words': (
    LLAMA | {'draft_vocab_size': V, 'attention_bias': True},
    {'fc.weight': (D, 3 * D)} | FINAL | HEAD | first('midlayer.'),
    {'taps': ('low', 'middle', 'high'), 'words': None, 'recycles_normed': False,
     'keeps_normed': False, 'layers.qkv_bias': False},
  ),
  'eagle-3 by the projection of its target': (
    LLAMA | {'draft_vocab_size': None}, {'fc.weight': (D, 3 * D)} | FINAL | first('midlayer.'),
    {'words': None},
  ),
  'eagle-3 whose head_dim means nothing': (
    LLAMA | {'head_dim': 6, 'draft_vocab_size': 5, 'rope_theta': 5e5,
             'rope_scaling': {'type': 'linear', 'factor': 2.0}},
    {'fc.weight': (D, 3 * D)} | FINAL | SMALL | first('midlayer.'),
    {'layers.width': 4, 'layers.rope': 'linear', 'layers.rope_factor': 2.0,
     'layers.rope_theta': 1e4},
  ),
  'eagle-3 of SpecForge': (
    LLAMA | {'architectures': ['LlamaForCausalLMEagle3'], 'head_dim': 6, 'draft_vocab_size': 5,
             'fc_norm': True, 'norm_output': False,
             'eagle_config': {'eagle_aux_hidden_state_layer_ids': [0, 2, 4]}},
    {'fc.weight': (D, 3 * D)} | FINAL | SMALL | first('midlayer.', width=6)
    | {f'fc_norm.{i}.weight': (D,) for i in range(3)},
    {'taps': (1, 3, 5), 'norms_taps': True, 'norms_last': False, 'layers.width': 6, 'words': 5},
  ),
  'eagle-3 of a wider target': (
    LLAMA | {'target_hidden_size': 10, 'draft_vocab_size': 5, 'norm_before_fc': True},
    {'fc.weight': (D, 30), 'input_norm.weight': (30,)} | EMBEDDED | FINAL | SMALL
    | first('midlayer.'),
    {'d_target': 10, 'd_embed': D, 'norms_joined': True},
  ),
  'eagle-3 of speculators': (
    SPECULATORS,
    {'fc.weight': (D, 4 * D), 'verifier_norm.weight': (D,)} | EMBEDDED | FINAL | SMALL
    | first('layers.0.', width=6, has_bias=True, has_qk_norm=True)
    | layer('layers.1.', width=6, has_bias=True, has_qk_norm=True),
    {'taps': (0, 2, 3, 5), 'keeps_normed': True, 'recycles_normed': True, 'words': 5,
     'layers.qk_norm': True, 'layers.out_bias': True, 'layers.rope_theta': 1e6},
  ),
  'eagle-3 of DeepSpec': (
    QWEN3 | {'architectures': ['Qwen3Eagle3Model'], 'target_layer_ids': [0, 1, 2, 3, 4],
             'num_target_layers': 6},
    {'fc.weight': (D, 5 * D)} | EMBEDDED | FINAL | HEAD
    | first('layers.0.', width=6, has_qk_norm=True),
    {'taps': (1, 2, 3, 4, 5), 'entry': 'beside', 'recycles_normed': False},
  ),
  'dflash by its rule': (
    under(mask_token_id=9) | {'num_target_layers': 9}, BLOCK | {'fc.weight': (D, 2 * D)} | qwen3(2),
    {'taps': (2, 7), 'k': 4, 'rows': 4, 'depth': 3, 'drops_first': True, 'markov': 0,
     'unknown_id': 9},
  ),
  'dflash 2': (
    QWEN3 | {'num_hidden_layers': 2, 'num_target_layers': 6, 'is_causal': False,
             'architectures': ['DFlash2DraftModel'], 'dflash_config': {
      'mask_token_id': 9, 'target_layer_ids': [0, 2, 4], 'selector_rank': 3, 'selector_top_k': 4,
      'conv_kernel_size': 3, 'conv_group_size': 4, 'block_size': 4, 'output_multiplier': 0.5,
      'final_logit_softcapping': 20, 'input_embedding_scale': 2}},
    BLOCK | qwen3(2) | SELECTOR | convolutions(2, 3, 4),
    {'k': 4, 'edge': 'selector', 'markov': 3, 'candidates': 4, 'conv': 3, 'conv_group': 4,
     'logit_scale': 0.5, 'logit_cap': 20.0, 'embedding_scale': 2.0, 'causal': 'none'},
  ),
  'lilicorr': (
    under(mask_token_id=9, target_layer_ids=[0, 2, 4], causal=False, projector_type='lilicorr',
          lilicorr_candidate_topk=4, lilicorr_hidden_size=6, lilicorr_num_layers=1,
          lilicorr_num_heads=2, lilicorr_mlp_ratio=1.5, lilicorr_factor_dim=3,
          lilicorr_vector_eps=1e-6, lilicorr_logit_scale=7.0, conv_kernel_size=2,
          conv_group_size=2),
    BLOCK | qwen3(2) | convolutions(2, 2, 2) | lilicorr(3, 4, 6, 9, 3),
    {'k': 4, 'edge': 'correlator', 'markov': 3, 'candidates': 4, 'conv': 2,
     'correlator': CorrelatorConfig(6, 1, 2, 9, 7.0, 1e-6)},
  ),
  'p-eagle of SpecForge': (
    LLAMA | {'architectures': ['PEagleDraftModel'], 'num_hidden_layers': 2, 'draft_vocab_size': 5,
             'ptd_token_id': 7, 'norm_before_residual': True,
             'eagle_config': {'eagle_aux_hidden_state_layer_ids': [0, 2]}},
    {'fc.weight': (D, 2 * D), 'mask_hidden': (1, 1, 2 * D)} | EMBEDDED | FINAL | SMALL
    | first('layers.0.') | layer('layers.1.'),
    {'taps': (1, 3), 'unknown_id': 7, 'k': 8, 'keeps_normed': True, 'words': 5},
  ),
  'p-eagle of speculators': (
    SPECULATORS | {'architectures': ['PEagleDraftModel'], 'speculators_model_type': 'peagle',
                   'mask_token_id': 4, 'norm_before_fc': True,
                   'speculators_config': {'proposal_methods': [{'speculative_tokens': 3}]}},
    {'fc.weight': (D, 4 * D), 'mask_hidden': (1, 1, 4 * D), 'input_norm.weight': (4 * D,)}
    | EMBEDDED | FINAL | SMALL | first('layers.0.', width=6, has_bias=True, has_qk_norm=True)
    | layer('layers.1.', width=6, has_bias=True, has_qk_norm=True),
    {'taps': (0, 2, 3, 5), 'unknown_id': 4, 'k': 4, 'rows': 2, 'norms_joined': True},
  ),
  # config.json is that of the target, a Qwen3, with more fields
  'eagle-3 of Automodel': (
    AUTOMODEL | {'norm_output': True, 'fc_norm': True, 'parallel_drafting': False},
    {'model.fc.weight': (D, 3 * D)} | SMALL | prefixed('model.', EMBEDDED | FINAL
    | first('layers.0.', width=6)) | {f'model.fc_norm.{i}.weight': (D,) for i in range(3)},
    {'taps': ('low', 'middle', 'high'), 'recycles_normed': True, 'keeps_normed': False,
     'norms_last': True, 'norms_taps': True, 'words': 5, 'layers.layers': 1,
     'layers.qk_norm': False, 'layers.width': 6, 'layers.windows': ()},
  ),
  'p-eagle of Automodel': (
    AUTOMODEL | {'norm_output': False, 'fc_norm': False, 'parallel_drafting': True,
                 'mask_token_id': 7, 'num_depths': 5, 'num_hidden_layers': 2,
                 'down_sample_ratio': 0.7, 'down_sample_ratio_min': 0.2},
    {'model.fc.weight': (D, 3 * D), 'mask_hidden': (1, 1, 3 * D)} | SMALL
    | prefixed('model.', EMBEDDED | FINAL | first('layers.0.', width=6)
               | layer('layers.1.', width=6)),
    {'unknown_id': 7, 'k': 6, 'keeps_normed': False, 'words': 5, 'layers.layers': 2},
  ),
  'domino': (
    under(mask_token_id=9, target_layer_ids=[0, 2, 4], gru_hidden_dim=4, shift_label=True,
          pure_draft_prefix_len=1)
    | {'architectures': ['DominoDraftModel'], 'emb_dim': 3}, BLOCK | qwen3(2) | GRU,
    {'k': 4, 'rows': 4, 'depth': 3, 'drops_first': False, 'drops_last': True, 'edge': 'rnn',
     'bare': 1, 'gru': 4, 'markov': 3, 'causal': 'windows'},
  ),
  'domino whose rows predict their own positions': (
    under(mask_token_id=9, target_layer_ids=[0, 2, 4], gru_hidden_dim=4, emb_dim=3,
          projector_type='domino', causal=False), BLOCK | qwen3(2) | GRU,
    {'k': 4, 'rows': 4, 'drops_first': True, 'drops_last': False, 'bare': 0, 'causal': 'none'},
  ),
  'dspark of SpecForge, gated': (
    under(mask_token_id=9, target_layer_ids=[0, 2, 4], projector_type='dspark', markov_rank=3,
          markov_head_type='gated', confidence_head_alpha=1.0),
    BLOCK | qwen3(2)
    | prefixed('logit_head.markov_head.',
               MARKOV | {'gate_proj.weight': (3, D + 3), 'gate_proj.bias': (3,)})
    | prefixed('logit_head.confidence_head.', {'proj.weight': (1, D), 'proj.bias': (1,)}),
    {'taps': (1, 3, 5), 'k': 5, 'depth': 4, 'drops_first': False, 'markov_kind': 'gated',
     'confidence_sees_guess': False},
  ),
  'dspark of Model-Optimizer, recurrent': (
    under(mask_token_id=9, target_layer_ids=[0, 2, 4], projector_type='dspark', markov_rank=3,
          markov_head_type='rnn', use_confidence_head=True, shift_label=True),
    BLOCK | qwen3(2) | MARKOV | {'joint_proj.weight': (9, D + 6), 'joint_proj.bias': (9,)}
    | {'confidence_proj.weight': (1, D + 3), 'confidence_proj.bias': (1,)},
    {'k': 5, 'markov_kind': 'rnn', 'has_confidence': True, 'confidence_sees_guess': True},
  ),
  'dspark of DeepSpec, recurrent': (
    QWEN3 | DSPARK | {'architectures': ['Qwen3DSparkModel'], 'markov_head_type': 'rnn',
                      'confidence_head_with_markov': True},
    BLOCK | qwen3(1) | EMBEDDED | HEAD
    | prefixed('markov_head.', MARKOV | {'joint_proj.weight': (9, D + 6), 'joint_proj.bias': (9,)})
    | {'confidence_head.proj.weight': (1, D + 3), 'confidence_head.proj.bias': (1,)},
    {'taps': (0, 2, 4), 'k': 5, 'markov_kind': 'rnn', 'has_confidence': True, 'candidates': None},
  ),
  'what DeepSpec calls dflash': (
    QWEN3 | DSPARK | {'architectures': ['Qwen3DSparkModel'], 'markov_rank': 0,
                      'enable_confidence_head': False},
    BLOCK | qwen3(1) | EMBEDDED | HEAD,
    {'k': 5, 'drops_first': False, 'markov': 0, 'has_confidence': False},
  ),
  'dspark of speculators': (
    {'speculators_model_type': 'dspark', 'transformer_layer_config': QWEN3, 'draft_vocab_size': 5,
     'block_size': 4, 'mask_token_id': 9, 'aux_hidden_state_layer_ids': [1, 2, 4],
     'markov_rank': 3},
    BLOCK | qwen3(1) | EMBEDDED | SMALL
    | prefixed('markov_head.', {'markov_w1.weight': (V, 3), 'markov_w2.weight': (5, 3)})
    | {'confidence_head.proj.weight': (1, D + 3), 'confidence_head.proj.bias': (1,)},
    {'taps': (1, 2, 4), 'k': 5, 'words': 5, 'has_confidence': True},
  ),
  'dflash of speculators': (
    {'speculators_model_type': 'dflash', 'transformer_layer_config': QWEN3, 'draft_vocab_size': V,
     'block_size': 4, 'mask_token_id': 9, 'aux_hidden_state_layer_ids': [1, 2, 4]},
    BLOCK | qwen3(1) | EMBEDDED | HEAD,
    {'taps': (1, 2, 4), 'k': 4, 'drops_first': True, 'has_confidence': False},
  ),
  'mtp of Qwen3': (
    QWEN3 | {'num_hidden_layers': 5, 'tie_word_embeddings': True}, MTP,
    {'taps': (), 'recycles_normed': True, 'norms_first': True, 'layers.layers': 1},
  ),
  'mtp with norms around zero': (
    {'model_type': 'qwen3_5', 'dtype': 'float32', 'text_config': QWEN3 | {
      'model_type': 'qwen3_5_text', 'attn_output_gate': False, 'rope_parameters': {
        'rope_type': 'default', 'rope_theta': 2e6, 'partial_rotary_factor': 1.0}}},
    MTP, {'layers.rope_theta': 2e6},
  ),
}  # fmt: skip


def tensors_of(shapes):
  """Random tensors of these shapes, by their names; d2t maps the 5 words to ids that are not their
  own."""
  rng = np.random.default_rng(0)
  tensors = {}
  for name, shape in shapes.items():
    tensors[name] = rng.normal(size=shape).astype(np.float32)
  if 'd2t' in tensors:
    ids = np.array([0, 2, 3, 7, 10])
    tensors |= {'d2t': ids - np.arange(5), 't2d': np.isin(np.arange(V), ids)}
  return tensors


def write(folder, layout, config=None, tensors=None):
  """Writes a folder of this layout, some of its fields and of its tensors changed; None leaves one
  out."""
  from safetensors.numpy import save_file

  base, shapes, _ = LAYOUTS[layout]
  fields = copy.deepcopy(base) | (config or {})
  named = tensors_of(shapes) | (tensors or {})
  folder.mkdir(parents=True, exist_ok=True)
  (folder / 'config.json').write_text(
    json.dumps({k: v for k, v in fields.items() if v != 'absent'})
  )
  save_file({k: v for k, v in named.items() if v is not None}, folder / 'model.safetensors')
  return named
