"""Published DFlash, DFlash 2, DSpark, Domino, LiLiCorr (2026): one-pass drafts of Qwen3's layers.

  config.json                                     rows predict        kind
  dflash_config                                   their own position  DFlash: z-lab, SpecForge
  dflash_config with projector_type 'dspark'      the next one        SpecForge, Model-Optimizer
  ... 'domino'                                    shift_label: next   Domino of SpecForge
  ... 'dflash2'                                   their own position  DFlash 2: NeMo Automodel, vLLM
  ... 'lilicorr'                                  their own position  LiLiCorr of Model-Optimizer
  target_layer_ids, markov_rank, ... not nested   the next one        DSpark and DFlash of DeepSpec
  speculators_model_type 'dflash' or 'dspark'     sample_from_anchor: the next one

A layer id k names the output of the target's layer k, -1 its embeddings; for speculators the input
of layer k. Configs mean what their code reads: z-lab/dflash at 44947fb, DeepSpec at afdfa7c,
SpecForge at a6b6b02, speculators at c05b95b, Model-Optimizer at a2fbac7. (SpecForge's own loop
reads DSpark's rows one too late; we follow its trainer, which does not.)
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Literal

from fastdec.errors import UserError
from fastdec.fields import Layers, Positive, Size, Token, Zero
from fastdec.heads.block import BlockNetwork
from fastdec.heads.correlator import FACTS, CorrelatorConfig
from fastdec.hub.draft_parts import draft_layers, read_architectures, taps_after, vocabulary
from fastdec.hub.eagle import nested_layers
from fastdec.hub.families import check_options, read_fields
from fastdec.hub.lm_tensors import layer_params
from fastdec.hub.tensors import dense, norm, shaped
from fastdec.models.api import Params
from fastdec.models.lm import LMConfig
from fastdec.models.taps import RULE, Taps, number_taps

UnreadDraft = tuple[BlockNetwork, Params]  # network and parameters
# at the top of config.json or in `dflash_config`
AT_THE_TOP = (
  'block_size', 'num_target_layers', 'is_causal', 'mask_token_id', 'emb_dim', 'sliding_window',
)  # fmt: skip
CLASSES = {  # of values of `projector_type`
  'dspark': 'DSparkDraftModel', 'domino': 'DominoDraftModel', 'dflash2': 'DFlash2DraftModel',
  'lilicorr': 'LiLiCorrDraftModel',
}  # fmt: skip
EDGES = {'domino': 'rnn', 'dflash2': 'selector', 'lilicorr': 'correlator'}
SCALINGS = {
  'input_embedding_scale': 'embedding_scale', 'output_multiplier': 'logit_scale',
  'final_logit_softcapping': 'logit_cap',
}  # fmt: skip
KEYS = {  # of dflash_config: the network's fields
  'dspark': {
    'markov_rank': 'markov', 'markov_head_type': 'markov_kind',
    'enable_confidence_head': 'has_confidence',
    'confidence_head_with_markov': 'confidence_sees_guess',
  },
  'domino': {
    'emb_dim': 'markov', 'gru_hidden_dim': 'gru', 'shift_label': 'drops_last',
    'pure_draft_prefix_len': 'bare',
  },
  'dflash2': {'selector_rank': 'markov', 'selector_top_k': 'candidates', **SCALINGS},
  'lilicorr': {'lilicorr_factor_dim': 'markov', 'lilicorr_candidate_topk': 'candidates'},
}  # fmt: skip
NEEDED = 'markov', 'gru', 'candidates'
CORRELATOR = {  # the fields of `CorrelatorConfig`
  'lilicorr_num_layers': 'layers', 'lilicorr_num_heads': 'heads', 'lilicorr_logit_scale': 'scale',
  'lilicorr_vector_eps': 'epsilon',
}  # fmt: skip
OLD = 'logit_head.'  # prefix of the names of heads in early files
DSPARK_DEFAULTS = {  # of speculators
  'markov_rank': 256, 'enable_confidence_head': True, 'confidence_head_with_markov': True,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class BlockFields:
  """Fields of config.json that do not describe layers, at its top or in `dflash_config`."""

  block_size: Size | None = None
  mask_token_id: Token | None = None
  target_layer_ids: tuple[int, ...] | None = None
  aux_hidden_state_layer_ids: tuple[int, ...] | None = None  # speculators
  num_target_layers: Size | None = None
  # which rows of a block see later ones; absent: layers with a window are causal (SpecForge)
  is_causal: bool | None = None
  causal: bool | None = None
  causal_head: bool | None = None  # JetSpec
  sliding_window_non_causal: bool | None = None  # speculators
  use_swa: bool | None = None  # Model-Optimizer: a window in all layers, of this size or that of
  swa_window_size: Size | None = None
  sliding_window: Zero | None = None
  target_hidden_size: Size | None = None  # JetSpec
  projector_type: Literal['dflash', 'dspark', 'domino', 'dflash2', 'lilicorr'] | None = None
  sample_from_anchor: bool | None = None
  markov_rank: int | None = 0
  markov_head_type: Literal['vanilla', 'gated', 'rnn'] | None = 'vanilla'
  enable_confidence_head: bool | None = None
  confidence_head_alpha: float | None = 0.0
  confidence_head_with_markov: bool | None = False
  use_confidence_head: bool | None = None  # Model-Optimizer: the head reads the Markov vector too
  # Domino
  emb_dim: Size | None = None
  gru_hidden_dim: Size | None = None
  shift_label: bool | None = False
  pure_draft_prefix_len: Zero | None = 0
  # DFlash 2
  conv_kernel_size: Zero | None = None
  conv_group_size: Zero | None = None
  selector_rank: Size | None = None
  selector_top_k: Size | None = None
  input_embedding_scale: Positive | None = None
  output_multiplier: Positive | None = None
  final_logit_softcapping: Positive | None = None
  # LiLiCorr
  lilicorr_candidate_topk: Size | None = None
  lilicorr_hidden_size: Zero | None = None
  lilicorr_num_layers: Layers | None = None
  lilicorr_num_heads: Size | None = None
  lilicorr_mlp_ratio: Positive | None = None
  lilicorr_factor_dim: Size | None = None
  lilicorr_vector_eps: Positive | None = None
  lilicorr_logit_scale: Positive | None = None


def dflash(
  config: Mapping[str, Any], tensors: Mapping[str, Any], dtype: str, taps: Taps | None
) -> UnreadDraft:
  """Reads all kinds with `dflash_config`."""
  inner = config.get('dflash_config')
  if not isinstance(inner, Mapping):
    raise UserError(f'dflash_config={inner!r} of config.json is not possible: give an object')
  flat = dict(inner)
  for name in AT_THE_TOP:
    outer, nested = config.get(name), inner.get(name)
    if nested is None:
      flat[name] = outer
    elif outer not in (None, nested):
      raise UserError(
        f'{name}={outer!r} of config.json and {name}={nested!r} of its dflash_config contradict'
        ' one another: remove the wrong one'
      )
  fields = read_fields(BlockFields, flat)
  projector, own_classes = fields.projector_type, ' '.join(read_architectures(config))
  for name, own_class in CLASSES.items():
    if projector is None and own_class in own_classes:  # Automodel's is Qwen3DFlash2DraftModel
      projector = name
  known = {field.name for field in dataclasses.fields(BlockFields)}
  if projector != 'dflash2':
    known -= SCALINGS.keys()
  check_options({'model_type': projector, **inner}, known)

  # Find what each kind has besides the layers.
  layers = draft_layers('qwen3', config, dtype)
  if fields.use_swa or fields.swa_window_size:
    windows, window = [], _needed(fields, 'swa_window_size', fields.sliding_window)
    for own in layers.layer_windows:
      windows.append(window if own or fields.use_swa else 0)
    layers = dataclasses.replace(layers, windows=tuple(windows))
  if taps is None:
    outputs = fields.target_layer_ids or _default_layers(fields, layers.layers)
    taps = taps_after(outputs, fields.num_target_layers)
  options: dict[str, Any] = {'drops_first': projector != 'dspark'}
  options['d_target'] = fields.target_hidden_size or layers.d_model
  needed = functools.partial(_needed, fields)
  if fields.conv_kernel_size or fields.conv_group_size or projector == 'dflash2':
    options |= {'conv': needed('conv_kernel_size'), 'conv_group': needed('conv_group_size')}
  if projector in EDGES:
    options['edge'] = EDGES[projector]
    for key, name in KEYS[projector].items():
      value = needed(key) if name in NEEDED else getattr(fields, key)
      if value is not None:
        options[name] = value
    options['drops_first'] = not options.get('drops_last')
  if projector == 'lilicorr':
    width = fields.lilicorr_hidden_size or layers.d_model
    sizes: dict[str, Any] = {name: needed(key) for key, name in CORRELATOR.items()}
    sizes |= {'width': width, 'd_ff': int(width * needed('lilicorr_mlp_ratio'))}
    options['correlator'] = CorrelatorConfig(**sizes)
  return _network(config, fields, layers, tensors, taps, **options)


def deepspec(
  config: Mapping[str, Any], tensors: Mapping[str, Any], dtype: str, taps: Taps | None
) -> UnreadDraft:
  """Reads DSpark of DeepSpec."""
  fields = read_fields(BlockFields, config)
  if taps is None:
    taps = taps_after(fields.target_layer_ids or (), fields.num_target_layers)
  layers = draft_layers('qwen3', config, dtype)
  return _network(config, fields, layers, tensors, taps)


def speculators_block(
  config: Mapping[str, Any], tensors: Mapping[str, Any], dtype: str, taps: Taps | None
) -> UnreadDraft:
  """Reads DFlash and DSpark of speculators."""
  is_dspark = config.get('speculators_model_type') == 'dspark'
  defaults = {}
  if is_dspark:
    defaults = DSPARK_DEFAULTS
  fields = read_fields(BlockFields, {**defaults, **config})
  layers = nested_layers(config, dtype, ('qwen3',))
  predicts_next = fields.sample_from_anchor
  if predicts_next is None:
    predicts_next = is_dspark
  taps = taps or fields.aux_hidden_state_layer_ids or RULE
  return _network(config, fields, layers, tensors, taps, drops_first=not predicts_next)


def _default_layers(fields: BlockFields, count: int) -> tuple[int, ...]:
  """Returns DFlash's default: as many layers as the draft has, from 1 to the third from the end."""
  layers = fields.num_target_layers
  if layers is None:
    raise UserError(
      'dflash_config of config.json lacks target_layer_ids, and config.json lacks'
      ' num_target_layers: give one'
    )
  if count == 1:
    return (layers // 2,)
  return tuple(round(1 + i * (layers - 4) / (count - 1)) for i in range(count))


def _network(
  config: Mapping[str, Any],
  fields: BlockFields,
  layers: LMConfig,
  tensors: Mapping[str, Any],
  taps: Taps,
  **options: Any,
) -> UnreadDraft:
  """Reads what all kinds of files share; options are fields of the network in which they differ."""
  if fields.num_target_layers is not None:
    taps = number_taps(taps, fields.num_target_layers)
  rows, rank = _needed(fields, 'block_size'), options.pop('markov', fields.markov_rank or 0)
  drops = options.get('drops_first') or options.get('drops_last')
  d_target = options.pop('d_target', layers.d_model)
  is_wider = d_target != layers.d_model
  words, params = vocabulary(tensors, config, layers, embeds=is_wider)
  has_confidence = fields.enable_confidence_head
  if has_confidence is None:
    has_confidence = bool(fields.confidence_head_alpha or fields.use_confidence_head)
  sees_guess = bool(fields.confidence_head_with_markov or fields.use_confidence_head)
  if has_confidence and sees_guess and not rank:
    raise UserError(
      'confidence_head_with_markov of config.json needs a markov_rank above 0: set either'
    )
  network = BlockNetwork(
    layers=layers,
    vocab_size=layers.vocab_size,
    d_target=d_target,
    d_embed=layers.d_model if is_wider else None,
    words=words,
    taps=taps,
    adapts=is_wider,
    fuses=True,
    k=rows + (not drops),  # if all rows predict, there is one guess more
    entry='masks',
    unknown_id=_needed(fields, 'mask_token_id'),
    markov=rank,
    markov_kind=fields.markov_head_type or 'vanilla',
    has_confidence=has_confidence,
    confidence_sees_guess=sees_guess,
    causal=_causality(fields),
    windows_follow='speculators_model_type' not in config,  # there a window ends at the root
    **options,
  )
  return network, params | _params(network, layers, tensors)


def _causality(fields: BlockFields) -> str:
  """Returns the layers whose rows do not see later ones; see `BlockNetwork.causal`.

  Raises:
    UserError: two fields contradict one another.
  """
  said = {fields.causal, fields.causal_head} - {None}
  if fields.is_causal or not said:  # Automodel puts is_causal=False at the top of JetSpec too
    said |= {fields.is_causal} - {None}
  if len(said) > 1:
    raise UserError(
      f'is_causal={fields.is_causal}, causal={fields.causal} and causal_head={fields.causal_head}'
      ' of config.json contradict one another: remove the wrong ones'
    )
  if said:
    return 'all' if said.pop() else 'none'
  is_open = fields.sliding_window_non_causal or fields.use_swa
  return 'none' if is_open else 'windows'


def _needed(fields: BlockFields, name: str, default: Any = None) -> Any:
  """Returns a field that must be there, or have a default."""
  value = getattr(fields, name)
  if value is None:
    value = default
  if value is None:
    raise UserError(f'config.json lacks {name}: set it to what the draft was trained with')
  return value


def _params(network: BlockNetwork, layers: LMConfig, tensors: Mapping[str, Any]) -> Params:
  """Returns the tensors under our names, without the vocabulary."""
  d, rank, taps = layers.d_model, network.markov, network.taps
  params: Params = {}
  features = {
    'fuse': dense(tensors, 'fc', d, len(taps) * d),
    'fused_norm': norm(tensors, 'hidden_norm', d),
  }
  if network.adapts:
    features['adapt'] = dense(tensors, 'hidden_dim_adapter.proj', d, network.d_target)
  inner: Params = {'make_features': features, 'tower': {}, 'norm': norm(tensors, 'norm', d)}
  for i in range(layers.layers):
    layer = inner['tower'][f'layer_{i}'] = layer_params(layers, tensors, f'layers.{i}.')
    for name in ('attention_conv', 'mlp_conv') if network.conv else ():
      prefix, kernel = f'layers.{i}.{name}', network.conv
      outputs = 2 * kernel * d // network.conv_group
      layer[name] = {
        'base': shaped(tensors, f'{prefix}.base_kernel', 2, kernel, d),
        'taps': dense(tensors, f'{prefix}.kernel_projection', outputs, d),
      }
  head = ''
  if any(name.startswith(OLD) for name in tensors):
    head = OLD
  markov, confidence = f'{head}markov_head.', f'{head}confidence_head.proj'
  if 'markov_w1.weight' in tensors:  # Model-Optimizer
    markov, confidence = '', 'confidence_proj'
  kind, words = network.edge_kind, layers.vocab_size
  before, after = f'{markov}markov_w1.weight', f'{markov}markov_w2.weight'
  if kind == 'rnn':
    width = network.gru
    for ours, name, inputs in (('gru_input', 'ih', d), ('gru_state', 'hh', width)):
      kernel = shaped(tensors, f'{head}prefix_gru.weight_{name}_l0', 3 * width, inputs)
      inner[ours] = {'kernel': kernel}
    inner['squeeze'] = dense(tensors, f'{head}embed_proj.0', rank, d + width)
    after = f'{head}embed_proj.2.weight'
  elif kind == 'selector':
    before, after = (f'candidate_selector.{name}_codebook' for name in ('predecessor', 'successor'))
    inner['select'] = dense(tensors, 'candidate_selector.hidden_projection', rank, d)
  if kind == 'correlator':
    inner['correlator'] = _correlator(network, tensors)
    return params | {'network': inner}
  if rank and kind != 'rnn':
    params['before'] = shaped(tensors, before, words, rank)
  if rank:
    params['after'] = shaped(tensors, after, network.words or words, rank)
  if kind == 'gated':
    inner['gate'] = dense(tensors, f'{markov}gate_proj', rank, d + rank, has_bias=True)
  if kind == 'joint':
    inner['joint'] = dense(tensors, f'{markov}joint_proj', 3 * rank, 2 * rank + d, has_bias=True)
  if network.has_confidence:
    inputs = d + rank * network.confidence_sees_guess
    inner['confidence'] = dense(tensors, confidence, 1, inputs, has_bias=True)
  return params | {'network': inner}


def _correlator(network: BlockNetwork, tensors: Mapping[str, Any]) -> Params:
  """Returns the tensors of LiLiCorr's transformer under our names."""
  c, place = network.correlator, 'lilicorr.'
  assert c is not None
  w, h, rank, depth = c.width, network.layers.d_model, network.markov, network.depth
  each: Any = {
    'state': ('pass_hidden_proj', w, h), 'context': ('context_proj', w, h),
    'facts_in': ('feature_mlp.1', w, FACTS), 'facts_out': ('feature_mlp.3', w, w),
    'factor': ('factor_input_proj', w, 3 * w), 'after_head': ('out_head', rank, w),
    'before_head': ('in_head', rank, w), 'root_head': ('anchor_out_head', rank, w),
  }  # fmt: skip
  if w != h:
    each['token'] = ('token_proj', w, h)
  norms = {'norm': 'output_norm', 'context_norm': 'anchor_norm'}
  for i in range(c.layers):
    layer = f'layers.{i}.'
    each[f'out_{i}'] = (f'{layer}attn.out_proj', w, w)
    each[f'up_{i}'], each[f'down_{i}'] = (f'{layer}mlp.0', c.d_ff, w), (f'{layer}mlp.2', w, c.d_ff)
    norms |= {f'attention_norm_{i}': f'{layer}attn_norm', f'mlp_norm_{i}': f'{layer}mlp_norm'}
  params = {ours: norm(tensors, place + theirs, w) for ours, theirs in norms.items()}
  for ours, (theirs, outputs, inputs) in each.items():
    params[ours] = dense(tensors, place + theirs, outputs, inputs, has_bias=True)
  for i in range(c.layers):
    packed = f'{place}layers.{i}.attn.in_proj_'
    params[f'qkv_{i}'] = {
      'kernel': shaped(tensors, f'{packed}weight', 3 * w, w),
      'bias': shaped(tensors, f'{packed}bias', 3 * w),
    }
  return params | {
    'facts_norm': norm(tensors, f'{place}feature_mlp.0', FACTS, has_bias=True),
    'slots': shaped(tensors, f'{place}slot_embedding', 1, 1, depth, 1, w),
    'ranks': shaped(tensors, f'{place}rank_embedding', 1, 1, 1, network.choices, w),
    'distance': shaped(tensors, f'{place}relative_slot_bias', c.heads, 2 * depth + 1),
    'same': shaped(tensors, f'{place}same_slot_bias', c.heads),
  }
