"""The fields of a GGUF file about its model, and the architectures that are read."""

import dataclasses

from fastdec.errors import UserError
from fastdec.fields import Layers, Positive, Share, Size, read, shown
from fastdec.hub.families import COMPUTES
from fastdec.hub.gguf.header import Header
from fastdec.hub.lm_families import Count


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
  reads: tuple[str, ...] = ()  # fields that only some families have


EXPERTS = ('expert_count', 'expert_used_count', 'expert_feed_forward_length')
WINDOWS = ('attention_sliding_window', 'attention_sliding_window_pattern')
GRANITE = ('attention_scale', 'embedding_scale', 'residual_scale', 'logit_scale')
CAPS = ('attn_logit_softcapping', 'final_logit_softcapping', 'attention_scale')
LONG = ('rope_scaling_attn_factor', 'attention_sliding_window')
ARCHITECTURES = {  # by general.architecture
  'llama': Architecture('llama', is_permuted=True, reads=(*EXPERTS, 'attention_sliding_window')),
  'qwen2': Architecture('qwen2'),
  'qwen3': Architecture('qwen3'),
  'qwen3moe': Architecture('qwen3_moe', reads=EXPERTS),
  'gpt-oss': Architecture('gpt_oss', reads=(*EXPERTS, *WINDOWS)),
  'granite': Architecture('granite', is_permuted=True, reads=GRANITE),
  'smollm3': Architecture('smollm3', is_permuted=True),
  'olmo2': Architecture('olmo2'),
  'phi3': Architecture('phi3', reads=LONG),
  'gemma2': Architecture('gemma2', adds_one=True, reads=(*CAPS, *WINDOWS)),
  'gemma3': Architecture(
    'gemma3_text', adds_one=True, reads=(*CAPS, *WINDOWS, 'rope_freq_base_swa')
  ),
}
SPECIAL = {field for row in ARCHITECTURES.values() for field in row.reads}
NEUTRAL = {  # values of other fields that say what is computed anyway
  'rope_scaling_finetuned': True, 'rope_scaling_yarn_ext_factor': 1.0, 'expert_gating_func': 1,
  'expert_weights_norm': True, 'expert_group_count': 1, 'expert_group_used_count': 1,
}  # fmt: skip


def find_architecture(header: Header) -> Architecture:
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


def read_metadata(header: Header) -> Metadata:
  """Reads the fields about the model.

  Raises:
    UserError: a field is missing, has a wrong type, or changes the result and is unknown for the
      architecture.
  """
  row, prefix = find_architecture(header), f'{header.architecture}.'
  known = {field.name: field.default for field in dataclasses.fields(Metadata)}
  values = {}
  for name, value in header.metadata.items():
    if not name.startswith(prefix):
      continue
    field = name.removeprefix(prefix).replace('.', '_')
    if isinstance(value, list) and {*map(type, value)} == {int} and len({*value}) == 1:
      value = value[0]  # the same for each layer
    is_known = field in known and (field not in SPECIAL or field in row.reads)
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
