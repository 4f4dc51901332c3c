"""The fields of a GGUF file about its model, and the architectures that are read.

Each field is read, or in a table of values that change nothing, or refused by its name.
"""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

from fastdec.errors import UserError
from fastdec.fields import Between, Layers, Positive, Share, Size, quote, read
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
  expert_count: Annotated[int, Between(1, 1024)] | None = None
  expert_used_count: Count | None = None
  expert_feed_forward_length: Size | None = None
  rope_dimension_count: Size | None = None
  rope_freq_base: Positive = 1e4
  rope_freq_base_swa: Positive = 1e4
  rope_scaling_type: str = 'linear'  # without a factor it scales nothing
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
  needs: tuple[str, ...] = ()  # those of them that a file must have
  absent: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # what others mean if absent


EXPERTS = ('expert_count', 'expert_used_count', 'expert_feed_forward_length')
WINDOWS = ('attention_sliding_window', 'attention_sliding_window_pattern')
GRANITE = ('attention_scale', 'embedding_scale', 'residual_scale', 'logit_scale')
CAPS = ('attn_logit_softcapping', 'final_logit_softcapping', 'attention_scale')
LONG = ('rope_scaling_attn_factor', 'attention_sliding_window')
ARCHITECTURES = {  # by general.architecture
  'llama': Architecture('llama', is_permuted=True, reads=(*EXPERTS, 'attention_sliding_window')),
  'qwen2': Architecture('qwen2'),
  'qwen3': Architecture('qwen3'),
  'qwen3moe': Architecture('qwen3_moe', reads=EXPERTS, needs=EXPERTS[:2]),
  'gpt-oss': Architecture(
    'gpt_oss', reads=(*EXPERTS, *WINDOWS), needs=(*EXPERTS[:2], WINDOWS[0])
  ),
  'granite': Architecture('granite', is_permuted=True, reads=GRANITE, needs=GRANITE),
  'smollm3': Architecture('smollm3', is_permuted=True),
  'olmo2': Architecture('olmo2'),
  'phi3': Architecture('phi3', reads=LONG),
  'gemma2': Architecture(
    'gemma2', adds_one=True, reads=(*CAPS, *WINDOWS),
    absent={'attention_sliding_window': 4096, 'attn_logit_softcapping': 50.0,
            'final_logit_softcapping': 30.0},
  ),
  'gemma3': Architecture(
    'gemma3_text', adds_one=True, reads=(*CAPS[1:], *WINDOWS, 'rope_freq_base_swa'),
    needs=WINDOWS[:1],
  ),
}  # fmt: skip
SPECIAL = {field for row in ARCHITECTURES.values() for field in row.reads}
# Values with which fields change nothing where they are not read; (): all values. Fields that are
# neither here nor read may only be 0, false or empty.
NEUTRAL: dict[str, tuple[Any, ...]] = {
  'vocab_size': (), 'tensor_data_layout': (), 'rope_scaling_finetuned': (),
  'attention_causal': (True,), 'expert_weights_norm': (True,), 'expert_weights_scale': (0, 1),
  'expert_gating_func': (0, 1), 'expert_group_count': (0, 1), 'expert_group_used_count': (0, 1),
  'embedding_scale': (0, 1), 'residual_scale': (0, 1), 'logit_scale': (0, 1),
  'rope_scaling_attn_factor': (0, 1),
}  # fmt: skip


# Files of other content, by general.type or general.architecture, and what to do with them.
_PROJECTOR = (
  'the part of a model that reads pictures or sounds: give the file of its language model'
)
OTHERS = {
  'adapter': 'a LoRA adapter: merge it into its model by llama-export-lora, and give that file',
  'mmproj': _PROJECTOR, 'clip': _PROJECTOR,
  'controlvector': 'a control vector, which is not supported: give the file of its model',
  'imatrix': 'a matrix of importances for quantization: give the file of its model',
}  # fmt: skip


def find_architecture(header: Header) -> Architecture:
  """Returns the row of a file's architecture.

  Raises:
    UserError: an unknown one, or a file without a model.
  """
  content = header.text('general.type') or 'model'
  for kind in (content, header.architecture):
    if kind in OTHERS:
      raise UserError(f'{header.path} is {OTHERS[kind]}')
  if content != 'model':
    raise UserError(f'{header.path} is of general.type {quote(content)}: give the file of a model')
  if header.architecture not in ARCHITECTURES:
    raise UserError(
      f'{header.path} is of architecture {quote(header.architecture)}: known are'
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
  values, others = dict(row.absent), {}
  for name, value in header.metadata.items():
    field = name.removeprefix(prefix).replace('.', '_')
    if field == 'attention_sliding_window_pattern' and isinstance(value, list):
      value = list(map(bool, value))
    elif isinstance(value, list) and {*map(type, value)} == {int} and len({*value}) == 1:
      value = value[0]  # the same for each layer
    if not name.startswith(prefix):
      continue
    if field not in known or (field in SPECIAL and field not in row.reads):
      others[name] = field, value
    elif value == 0 and known[field] is None and not field.endswith('pattern'):
      values[field] = None  # as llama.cpp reads it
    else:
      values[field] = value

  # Refuse fields that would change the result. Some only repeat what others say.
  neutral = NEUTRAL | {
    'attention_layer_norm_epsilon': (0, values.get('attention_layer_norm_rms_epsilon')),
    'rope_freq_base_swa': (0, values.get('rope_freq_base')),
    'rope_scaling_yarn_ext_factor': (float(values.get('rope_scaling_type') == 'yarn'),),
  }
  for name, (field, value) in others.items():
    allowed = neutral.get(field)
    if value not in allowed if allowed else value and allowed is None:
      raise UserError(
        f'{name}={quote(value)} of {header.path} is not known for this architecture: convert it'
        ' again if the model was made without it'
      )
  for field in row.needs:
    if field not in values:
      raise UserError(f'{header.path} lacks a field of its architecture, {field}: convert it again')
  try:
    return read(Metadata, values, header.architecture)
  except UserError as error:
    reason = str(error)
    for part in ('attention', 'rope_scaling', 'rope'):
      reason = reason.replace(f'{part}_', f'{part.replace("_", ".")}.')
    raise UserError(f'{header.path}: {reason}') from None
