"""Writes drafts that were trained here in published formats, for vLLM, SGLang and others.

  EAGLE-3, P-EAGLE                       as SafeAILab and SpecForge write them
  DFlash, JetSpec, DFlash 2, DSpark,     with `dflash_config`, as `hub.dflash` reads it; they use
  Domino, LiLiCorr                       the target's embeddings and words

The reader of a format says which tensor each parameter is, so a draft is read back as the same
network and parameters. The temperatures of the guesses are lost, since the formats have no place
for them.
"""

from typing import Any

import numpy as np
from flax.traverse_util import flatten_dict

from fastdec.errors import UserError
from fastdec.files import PathLike, place, whole_folder, write_json
from fastdec.folders.stored import Stacked, write
from fastdec.heads.eagle import EagleNetwork
from fastdec.heads.parallel import ParallelNetwork
from fastdec.hub import dflash, eagle
from fastdec.hub.tensors import Place, Places
from fastdec.hub.weight_files import SINGLE
from fastdec.models.api import Params
from fastdec.models.lm import LMConfig
from fastdec.models.taps import number_taps
from fastdec.struct import bound

SCALINGS = {  # ropes with a form in rope_scaling: its fields by ours
  'linear': {'factor': 'rope_factor'},
  'llama3': {
    'factor': 'rope_factor', 'low_freq_factor': 'rope_low', 'high_freq_factor': 'rope_high',
    'original_max_position_embeddings': 'rope_original',
  },
}  # fmt: skip
FREE = (  # of layers: what has no place in config.json of a draft, or several forms
  'key_heads', 'head_width', 'windows', 'tied', 'max_positions', 'bos_id', 'eos_ids',
  'pad_id', 'suppressed_ids', 'dropout', 'dtype',
)  # fmt: skip
CONFIDENCE, SEES_GUESS = 'has_confidence', 'confidence_sees_guess'
FREE_OF_NETWORK = ('layers', 'taps', 'd_embed', 'd_source', 'words')
BIASED = 'vanilla', 'gated', 'joint'  # edges of DSpark


def publish_draft(folder: PathLike, draft: tuple[Any, Params], target_layers: int) -> None:
  """Writes a draft as its kind is published.

  Args:
    folder: a new one.
    draft: an `EagleNetwork` with an entry 'beside' and its own words, a `ParallelNetwork`, or a
      `BlockNetwork` with entry='masks' and the target's words, with layers of Llama or Qwen3.
    target_layers: number of layers of the model that it drafts for.

  Raises:
    UserError: the draft has no published form, or the folder exists.
  """
  path = place(folder)
  module: Any
  module, params = bound(draft, 'draft')
  if path.exists():
    raise UserError(f'{path} is there already: give a new folder')
  is_eagle = isinstance(module, EagleNetwork | ParallelNetwork)
  lacks = None
  if isinstance(module, EagleNetwork) and module.entry != 'beside':
    lacks = 'only fastdec has such a network: train it with --kind=eagle3'
  elif isinstance(module, EagleNetwork) and 'output' not in params:
    lacks = 'EAGLE-3 has words of its own: train it with --words'
  elif not is_eagle and ('output' in params or (module.drops_first and module.edge_kind in BIASED)):
    lacks = 'DFlash has no words of its own, and no Markov bias: train it with --words=0'
  elif not isinstance(module.layers, LMConfig):
    lacks = 'its layers are not those of Llama (EAGLE-3) or Qwen3 (DFlash)'
  if lacks is not None:
    raise UserError(f'this draft has no published form: {lacks}')
  if is_eagle:
    config, read = _eagle_config(module, target_layers), eagle.eagle3
    if isinstance(module, ParallelNetwork):
      read = eagle.flat_eagle3
  else:
    config, read = _block_config(module, target_layers), dflash.dflash

  # What a reader would make of config.json must be this network.
  tensors = _vocabulary(module, params)
  places = Places(tensors)
  written, tree = read(config, places, str(module.layers.dtype), None)
  changed = [name for name in vars(module.layers) if name not in FREE]
  for name in (*changed, 'layer_windows'):
    value = getattr(module.layers, name)
    if value != getattr(written.layers, name):
      raise UserError(f'this draft has no published form: its layers have {name}={value!r}')
  for name, value in vars(module).items():
    is_free = name in FREE_OF_NETWORK or (name == SEES_GUESS and not vars(module)[CONFIDENCE])
    if not is_free and value != getattr(written, name, None):
      raise UserError(
        'this draft has no published form: only fastdec has such a network: train it with'
        f' --kind=eagle3 or --kind=dflash, without {name}={value!r}'
      )

  values = flatten_dict(params)
  for names, asked in flatten_dict(tree).items():
    parts, value = (asked,), np.asarray(values[names])[None]
    if isinstance(asked, Stacked):
      parts, value = asked.parts, value[0]
    for part, one in zip(parts, value, strict=True):
      if isinstance(part, Place):
        tensors[part.name] = np.asarray(one, np.float32).reshape(part.shape)
  with whole_folder(path) as partial:
    write(partial / SINGLE, tensors)
    write_json(partial / 'config.json', config)


def _vocabulary(module: Any, params: Params) -> Params:
  """Returns the tensors of a draft vocabulary, and places for others that a file may lack."""
  tensors: Params = {}
  for ours, theirs in (('embedding', 'embed_tokens.weight'), ('output', 'lm_head.weight')):
    if ours in params:
      tensors[theirs] = Place(theirs)
  if isinstance(module, ParallelNetwork):
    tensors['mask_hidden'] = Place('mask_hidden')
  if 'ids' in params:
    ids = np.asarray(params['ids'], np.int64)
    has_word = np.zeros(module.vocab_size, bool)
    has_word[ids] = True
    tensors |= {'d2t': ids - np.arange(len(ids)), 't2d': has_word}
  return tensors


def _eagle_config(module: Any, layers: int) -> dict[str, Any]:
  """Returns config.json of EAGLE-3 and P-EAGLE."""
  config = _layers_config(module.layers) | {
    'architectures': ['LlamaForCausalLMEagle3'],
    'model_type': 'llama',
    'draft_vocab_size': module.words or module.vocab_size,
    'norm_before_residual': module.keeps_normed,
    'norm_before_fc': module.norms_joined,
    'fc_norm': module.norms_taps,
    'target_hidden_size': module.d_target,
  }
  if isinstance(module, ParallelNetwork):
    config |= {'architectures': ['PEagleDraftModel'], 'parallel_drafting': True}
    config |= {'mask_token_id': module.unknown_id, 'num_depths': module.k - 1}
    config['ptd_token_id'] = module.unknown_id
  else:
    config['norm_output'] = module.norms_last
  taps = number_taps(module.taps, layers)
  if taps != (2, layers // 2, layers - 3):  # `RULE`, which needs no name
    ids = [tap - 1 for tap in taps]
    config['eagle_config'] = {'eagle_aux_hidden_state_layer_ids': ids}
  return config


def _block_config(module: Any, layers: int) -> dict[str, Any]:
  """Returns config.json of the kinds of DFlash."""
  c, kind = module.layers, module.edge_kind
  inner = {
    'mask_token_id': module.unknown_id,
    'target_layer_ids': [tap - 1 for tap in number_taps(module.taps, layers)],
  }
  config: dict[str, Any] = {'architectures': ['DFlashDraftModel'], 'model_type': 'qwen3'}
  if module.conv:
    inner |= {'conv_kernel_size': module.conv, 'conv_group_size': module.conv_group}
  for projector, keys in dflash.KEYS.items():
    is_this = kind in BIASED if projector == 'dspark' else kind == dflash.EDGES[projector]
    if is_this:
      inner |= {'projector_type': projector, 'block_size': module.rows}
      inner |= {key: getattr(module, name) for key, name in keys.items()}
      config['architectures'] = [dflash.CLASSES[projector]]
  if kind == 'rnn':
    config['emb_dim'] = module.markov
  if kind == 'correlator':
    own = module.correlator
    inner |= {key: getattr(own, name) for key, name in dflash.CORRELATOR.items()}
    inner |= {'lilicorr_enabled': True, 'lilicorr_hidden_size': own.width}
    inner['lilicorr_mlp_ratio'] = own.d_ff / own.width
  if module.causal != 'windows':  # as SpecForge's layers are without a key
    config['is_causal'] = module.causal == 'all'
    inner |= {'causal': config['is_causal'], 'causal_head': config['is_causal']}
  config |= {'num_target_layers': layers, 'block_size': module.rows, 'dflash_config': inner}
  return _layers_config(c) | config


def _layers_config(c: LMConfig) -> dict[str, Any]:
  """Returns the fields of config.json that layers of Llama and Qwen3 share."""
  kinds = ['sliding_attention' if window else 'full_attention' for window in c.layer_windows]
  config: dict[str, Any] = {
    'vocab_size': c.vocab_size,
    'hidden_size': c.d_model,
    'intermediate_size': c.d_ff,
    'num_attention_heads': c.heads,
    'num_key_value_heads': c.kv_heads,
    'head_dim': c.width,
    'hidden_act': c.activation,
    'rms_norm_eps': c.norm_epsilon,
    'rope_theta': c.rope_theta,
    'rope_scaling': None,
    'attention_bias': False,
    'mlp_bias': False,
    'tie_word_embeddings': False,
    'max_position_embeddings': c.max_positions or 32_768,
    'torch_dtype': 'float32',
    'num_hidden_layers': c.layers,
    'layer_types': kinds,
    'sliding_window': max(c.layer_windows) or None,
    'use_sliding_window': any(c.layer_windows),
  }
  if c.rope in SCALINGS:
    fields = {theirs: getattr(c, ours) for theirs, ours in SCALINGS[c.rope].items()}
    config['rope_scaling'] = {'rope_type': c.rope, **fields}
  return config
