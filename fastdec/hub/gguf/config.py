"""The metadata of a GGUF file in the words of Hugging Face's config.json."""

import dataclasses
from typing import Any

import numpy as np

from fastdec.errors import UserError
from fastdec.fields import Layers, Positive, Share, Size, read, shown
from fastdec.folders.stored import Stored
from fastdec.hub.families import COMPUTES
from fastdec.hub.gguf.header import Header
from fastdec.hub.lm_families import Count
from fastdec.models.rotary import Rope


@dataclasses.dataclass(frozen=True)
class Metadata:
  """Fields about the model, by their names after the architecture's, with _ for dots."""

  block_count: Layers
  context_length: Size
  embedding_length: Size
  feed_forward_length: Size
  attention_head_count: Size
  attention_layer_norm_rms_epsilon: Share
  attention_head_count_kv: Size | None = None
  attention_key_length: Size | None = None
  attention_value_length: Size | None = None
  attention_sliding_window: Count | None = None
  attention_sliding_window_pattern: Size | tuple[bool, ...] | None = None
  attention_scale: Positive | None = None
  attn_logit_softcapping: Positive | None = None
  final_logit_softcapping: Positive | None = None
  embedding_scale: Positive | None = None
  residual_scale: Positive | None = None
  logit_scale: Positive | None = None
  expert_count: Count | None = None
  expert_used_count: Count | None = None
  expert_feed_forward_length: Size | None = None
  rope_dimension_count: Size | None = None
  rope_freq_base: Positive = 1e4
  rope_freq_base_swa: Positive = 1e4
  rope_scaling_type: str = 'none'
  rope_scaling_factor: Positive | None = None
  rope_scaling_attn_factor: Positive | None = None
  rope_scaling_original_context_length: Size | None = None
  rope_scaling_yarn_attn_factor: Positive | None = None
  rope_scaling_yarn_beta_fast: Positive | None = None
  rope_scaling_yarn_beta_slow: Positive | None = None
  rope_scale_linear: Positive | None = None  # in old files

  @property
  def width(self) -> int:
    """The width of a head."""
    return self.attention_key_length or self.embedding_length // self.attention_head_count


@dataclasses.dataclass(frozen=True)
class Architecture:
  """How llama.cpp writes a family: the model_type of config.json, and what its files have."""

  model_type: str
  is_permuted: bool = False  # pairs of rotated rows of queries and keys are neighbours
  adds_one: bool = False  # scales of norms are stored plus 1
  heeds: tuple[str, ...] = ()  # fields that others have to do without


EXPERTS = ('expert_count', 'expert_used_count', 'expert_feed_forward_length')
WINDOWS = ('attention_sliding_window', 'attention_sliding_window_pattern')
GRANITE = ('attention_scale', 'embedding_scale', 'residual_scale', 'logit_scale')
CAPS = ('attn_logit_softcapping', 'final_logit_softcapping', 'attention_scale')
LONG = ('rope_scaling_attn_factor', 'attention_sliding_window')
ARCHITECTURES = {  # by general.architecture
  'llama': Architecture('llama', is_permuted=True, heeds=(*EXPERTS, 'attention_sliding_window')),
  'qwen2': Architecture('qwen2'),
  'qwen3': Architecture('qwen3'),
  'qwen3moe': Architecture('qwen3_moe', heeds=EXPERTS),
  'gpt-oss': Architecture('gpt_oss', heeds=(*EXPERTS, *WINDOWS)),
  'granite': Architecture('granite', is_permuted=True, heeds=GRANITE),
  'smollm3': Architecture('smollm3', is_permuted=True),
  'olmo2': Architecture('olmo2'),
  'phi3': Architecture('phi3', heeds=LONG),
  'gemma2': Architecture('gemma2', adds_one=True, heeds=(*CAPS, *WINDOWS)),
  'gemma3': Architecture(
    'gemma3_text', adds_one=True, heeds=(*CAPS, *WINDOWS, 'rope_freq_base_swa')
  ),
}
SPECIAL = {field for row in ARCHITECTURES.values() for field in row.heeds}
NEUTRAL = {  # values of other fields that say what is computed anyway
  'rope_scaling_finetuned': True, 'rope_scaling_yarn_ext_factor': 1.0, 'expert_gating_func': 1,
  'expert_weights_norm': True, 'expert_group_count': 1, 'expert_group_used_count': 1,
}  # fmt: skip
OF_27B = {'gemma2': 46, 'gemma3': 62}  # layers of the models that scale scores by another width
# Texts of tokens that end an answer. A file names one end; its chat template writes the others.
ENDS_OF_TURNS = (
  '<|im_end|>', '<|eot_id|>', '<end_of_turn>', '<|end|>', '<|return|>', '<|call|>',
)  # fmt: skip
MESSAGE_END, ANSWER_END = '<|end|>', '<|return|>'  # where both are, the first ends no answer


def architecture_of(header: Header) -> Architecture:
  """Returns the row of a file's architecture.

  Raises:
    UserError: an unknown one.
  """
  if header.architecture not in ARCHITECTURES:
    raise UserError(
      f'{header.path} is of architecture {shown(header.architecture)}: known are'
      f' {", ".join(ARCHITECTURES)}'
    )
  return ARCHITECTURES[header.architecture]


def metadata_of(header: Header) -> Metadata:
  """Reads the fields about the model.

  Raises:
    UserError: a field that is missing, of another kind, or changes the result and is not known for
      the architecture.
  """
  row, prefix = architecture_of(header), f'{header.architecture}.'
  known = {field.name: field.default for field in dataclasses.fields(Metadata)}
  values = {}
  for name, value in header.metadata.items():
    if not name.startswith(prefix):
      continue
    field = name.removeprefix(prefix).replace('.', '_')
    if isinstance(value, list) and {*map(type, value)} == {int} and len({*value}) == 1:
      value = value[0]  # the same for each layer
    is_known = field in known and (field not in SPECIAL or field in row.heeds)
    if value and not is_known and COMPUTES.search(field) and NEUTRAL.get(field) != value:
      raise UserError(
        f'{name}={shown(value)} of {header.path} is not known for this architecture: convert it'
        ' again if the model was made without it'
      )
    is_absent = value == 0 and known.get(field) is None  # as llama.cpp reads it
    if is_known and not is_absent:
      values[field] = value
  try:
    return read(Metadata, values, header.architecture)
  except UserError as error:
    reason = str(error)
    for part in ('attention', 'rope_scaling', 'rope'):
      reason = reason.replace(f'{part}_', f'{part.replace("_", ".")}.')
    raise UserError(f'{header.path}: {reason}') from None


def config_of(header: Header) -> dict[str, Any]:
  """Returns what config.json would say of the model in a file.

  Raises:
    UserError: as `architecture_of` and `metadata_of`; a file without the tensors of a model.
  """
  row, fields, tensors = architecture_of(header), metadata_of(header), header.tensors
  if 'token_embd.weight' not in tensors:
    raise UserError(f'{header.path} has no token_embd.weight: give a file of a whole model')
  _check_width(header, row, fields)
  bos, eos = header.number('tokenizer.ggml.bos_token_id'), _ends(header)
  kinds = {tensor.kind.name for tensor in tensors.values() if len(tensor.shape) > 1}
  config = {
    'model_type': row.model_type,
    'vocab_size': tensors['token_embd.weight'].rows,
    'hidden_size': fields.embedding_length,
    'intermediate_size': fields.feed_forward_length,
    'num_hidden_layers': fields.block_count,
    'num_attention_heads': fields.attention_head_count,
    'num_key_value_heads': fields.attention_head_count_kv,
    'head_dim': fields.attention_key_length,
    'rms_norm_eps': fields.attention_layer_norm_rms_epsilon,
    'max_position_embeddings': fields.context_length,
    'attention_bias': 'blk.0.attn_q.bias' in tensors,
    'mlp_bias': 'blk.0.ffn_up.bias' in tensors,
    'tie_word_embeddings': 'output.weight' not in tensors,
    'rope_parameters': _rope(header, fields),
    'bos_token_id': bos,
    'eos_token_id': eos,
    'pad_token_id': header.number('tokenizer.ggml.padding_token_id'),
    'dtype': 'float32' if kinds == {'F32'} else 'bfloat16',
  }
  return config | _of_family(header, row, fields)


def _check_width(header: Header, row: Architecture, fields: Metadata) -> None:
  """Raises UserError for heads without a whole width, or of several widths."""
  width, heads, inputs = fields.width, fields.attention_head_count, fields.embedding_length
  if fields.attention_key_length is None and inputs % (2 * heads):
    raise UserError(
      f'attention.head_count={heads} of {header.path} does not divide embedding_length={inputs}'
      ' into even widths: convert the model again'
    )
  for name in ('attention.key_length', 'attention.value_length', 'rope.dimension_count'):
    value = getattr(fields, name.replace('.', '_'))
    is_part = name.startswith('rope') and row.model_type == 'phi3' and (value or 0) < width
    if value is not None and (value % 2 or (value != width and not is_part)):
      raise UserError(
        f'{name}={value} of {header.path} is not supported: it must be the even width of a head,'
        f' {width}'
      )


def _ends(header: Header) -> list[int]:
  """Returns the ids that end a text: those that the file names, and ends of its chat's turns."""
  named = [header.number(f'tokenizer.ggml.{name}_token_id') for name in ('eos', 'eot', 'eom')]
  ends = [token for token in named if token is not None]
  template = header.text('tokenizer.chat_template') or ''
  texts = [text for text in ENDS_OF_TURNS if text in template]
  if ANSWER_END in texts and MESSAGE_END in texts:
    texts.remove(MESSAGE_END)
  if texts:
    pieces = header.entries('tokenizer.ggml.tokens') or []
    ends += [pieces.index(text) for text in texts if text in pieces]
  return list(dict.fromkeys(ends))


def _rope(header: Header, fields: Metadata) -> dict[str, Any]:
  """Returns what config.json calls rope_parameters.

  Raises:
    UserError: a scaling that is not known.
  """
  rope: dict[str, Any] = {'rope_theta': fields.rope_freq_base}
  if fields.rope_dimension_count not in (None, fields.width):
    rope['partial_rotary_factor'] = fields.rope_dimension_count / fields.width
  kind, factor = fields.rope_scaling_type, fields.rope_scaling_factor
  if kind == 'none' and fields.rope_scale_linear:
    kind, factor = 'linear', fields.rope_scale_linear
  original = fields.rope_scaling_original_context_length
  long, short = (header.tensors.get(f'rope_factors_{name}.weight') for name in ('long', 'short'))
  if 'rope_freqs.weight' in header.tensors:
    return rope | _of_factors(_numbers(header.tensors['rope_freqs.weight']), fields)
  if long is not None and short is not None:
    rope |= {'rope_type': 'longrope', 'short_factor': _numbers(short)}
    return rope | {
      'long_factor': _numbers(long),
      'attention_factor': fields.rope_scaling_attn_factor or 1.0,
      'original_max_position_embeddings': original,
    }
  if kind == 'linear':
    return rope | {'rope_type': 'linear', 'factor': factor}
  if kind == 'yarn':
    return rope | {
      'rope_type': 'yarn',
      'factor': factor,
      'original_max_position_embeddings': original,
      'attention_factor': fields.rope_scaling_yarn_attn_factor,
      'beta_fast': fields.rope_scaling_yarn_beta_fast,
      'beta_slow': fields.rope_scaling_yarn_beta_slow,
      'truncate': header.architecture != 'gpt-oss',
    }
  if kind not in ('none', 'longrope'):
    raise UserError(
      f'rope.scaling.type={shown(kind)} of {header.path} is not supported: known are none, linear,'
      ' yarn, longrope'
    )
  return rope


def _of_factors(factors: list[float], fields: Metadata) -> dict[str, Any]:
  """Returns the rope that divides frequencies by these factors, in texts of every length.

  They are those of Llama 3.1 and later models, or else longrope without a longer text.
  """
  plain = Rope('default', fields.rope_freq_base).frequencies(2 * len(factors))
  llama = Rope('llama3', fields.rope_freq_base, factor=max(factors))
  if np.allclose(plain / factors, llama.frequencies(2 * len(factors)), rtol=1e-4, atol=0):
    return {
      'rope_type': 'llama3',
      'factor': llama.factor,
      'low_freq_factor': llama.low,
      'high_freq_factor': llama.high,
      'original_max_position_embeddings': llama.original,
    }
  return {
    'rope_type': 'longrope',
    'short_factor': factors,
    'long_factor': factors,
    'factor': 1.0,
    'attention_factor': 1.0,
    'original_max_position_embeddings': fields.context_length,
  }


def _numbers(tensor: Any) -> list[float]:
  """Reads a short tensor of floats."""
  if tensor.kind.name != 'F32' or len(tensor.shape) != 1:
    raise UserError(
      f'{tensor.name} of {tensor.file} is not a list of floats: convert the model again'
    )
  return Stored(tensor.file, tensor.offset, np.dtype('<f4'), tensor.shape)[:].tolist()


def _of_family(header: Header, row: Architecture, fields: Metadata) -> dict[str, Any]:
  """Returns the fields of config.json that only some families have."""
  config: dict[str, Any] = {}
  if fields.expert_count:
    layers = range(fields.block_count)
    dense = [i for i in layers if f'blk.{i}.ffn_gate_inp.weight' not in header.tensors]
    config |= {
      'model_type': 'mixtral' if row.model_type == 'llama' else row.model_type,
      'num_local_experts': fields.expert_count,
      'num_experts_per_tok': fields.expert_used_count,
    }
    if row.model_type == 'qwen3_moe':
      config |= {
        'moe_intermediate_size': fields.expert_feed_forward_length,
        'norm_topk_prob': True,
        'mlp_only_layers': dense,
      }
    elif fields.expert_feed_forward_length:
      config['intermediate_size'] = fields.expert_feed_forward_length
  if row.model_type == 'granite':
    config |= {
      'attention_multiplier': fields.attention_scale,
      'embedding_multiplier': fields.embedding_scale,
      'residual_multiplier': fields.residual_scale,
      'logits_scaling': fields.logit_scale,
    }
  if row.model_type == 'phi3':
    config['original_max_position_embeddings'] = fields.rope_scaling_original_context_length
  if row.model_type != 'llama' and 'attention_sliding_window' in row.heeds:
    config['sliding_window'] = fields.attention_sliding_window
  if row.adds_one:
    width = fields.width
    if OF_27B[header.architecture] == fields.block_count:
      width = fields.embedding_length // fields.attention_head_count
    scale = fields.attention_scale
    config |= {
      'query_pre_attn_scalar': width if scale is None else scale**-2,
      'attn_logit_softcapping': fields.attn_logit_softcapping,
      'final_logit_softcapping': fields.final_logit_softcapping,
    }
  if row.model_type == 'gemma3_text':
    config |= {'rope_local_base_freq': fields.rope_freq_base_swa, 'sliding_window_pattern': 6}
  pattern = fields.attention_sliding_window_pattern
  if isinstance(pattern, int):
    every = pattern
    pattern = tuple(bool((i + 1) % every) for i in range(fields.block_count))
  if pattern is not None:
    kinds = {True: 'sliding_attention', False: 'full_attention'}
    config['layer_types'] = [kinds[is_sliding] for is_sliding in pattern]
  return config
