"""The metadata of a GGUF file in the words of Hugging Face's config.json."""

from typing import Any

from fastdec.errors import UserError
from fastdec.hub.gguf.header import Header
from fastdec.hub.gguf.metadata import Architecture, Metadata, find_architecture, read_metadata
from fastdec.hub.gguf.ropes import make_rope

OF_27B = {'gemma2': 46, 'gemma3': 62}  # layers of models with their own scale of scores
# Texts of tokens that end an answer. A file names one end; its chat template writes the others.
ENDS_OF_TURNS = (
  '<|im_end|>', '<|eot_id|>', '<end_of_turn>', '<|end|>', '<|return|>', '<|call|>',
)  # fmt: skip
MESSAGE_END, ANSWER_END = '<|end|>', '<|return|>'  # where both are, the first ends no answer


def make_config(header: Header) -> dict[str, Any]:
  """Returns the content of config.json for the model in a file.

  Raises:
    UserError: as in `find_architecture` and `read_metadata`; or the file lacks tensors.
  """
  row, fields, tensors = find_architecture(header), read_metadata(header), header.tensors
  if 'token_embd.weight' not in tensors:
    raise UserError(f'{header.path} has no token_embd.weight: give a file of a whole model')
  _check_width(header, row, fields)
  bos, eos = header.number('tokenizer.ggml.bos_token_id'), find_ends(header)
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
    'rope_parameters': make_rope(header, fields),
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


def find_ends(header: Header) -> list[int]:
  """Returns the ids that end a text: those that the file names, and ends of its chat's turns."""
  ends = [header.number(f'tokenizer.ggml.{name}_token_id') for name in ('eos', 'eot', 'eom')]
  template = header.text('tokenizer.chat_template') or ''
  pieces = header.entries('tokenizer.ggml.tokens') or []
  for text in ENDS_OF_TURNS:
    if text == MESSAGE_END and ANSWER_END in template:
      continue
    if text in template and text in pieces:
      ends.append(pieces.index(text))
  return [token for token in dict.fromkeys(ends) if token is not None]


def _of_family(header: Header, row: Architecture, fields: Metadata) -> dict[str, Any]:
  """Returns the fields of config.json that only some families have."""
  config: dict[str, Any] = {}
  if bool(fields.expert_count) != bool(fields.expert_used_count):
    raise UserError(
      f'{header.path} has expert_count={fields.expert_count} and'
      f' expert_used_count={fields.expert_used_count}, of which both or neither must be 0'
    )
  if fields.expert_count:
    config['num_local_experts'] = fields.expert_count
    config['num_experts_per_tok'] = fields.expert_used_count
    if row.model_type == 'llama':
      config['model_type'] = 'mixtral'
    if row.model_type == 'qwen3_moe':
      layers = range(fields.block_count)
      config |= {
        'moe_intermediate_size': fields.expert_feed_forward_length,
        'norm_topk_prob': True,
        'mlp_only_layers': [
          i for i in layers if f'blk.{i}.ffn_gate_inp.weight' not in header.tensors
        ],
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
  if 'attention_sliding_window' in row.reads:
    config['sliding_window'] = fields.attention_sliding_window
  if row.model_type == 'llama' and fields.attention_sliding_window:
    config.setdefault('model_type', 'mistral')
  if row.adds_one:
    scalar = fields.width
    if OF_27B[header.architecture] == fields.block_count:
      scalar = fields.embedding_length // fields.attention_head_count
    if fields.attention_scale is not None:
      scalar = fields.attention_scale**-2
    config |= {
      'query_pre_attn_scalar': scalar,
      'attn_logit_softcapping': fields.attn_logit_softcapping,
      'final_logit_softcapping': fields.final_logit_softcapping,
    }
  if row.model_type == 'gemma3_text':
    config |= {'rope_local_base_freq': fields.rope_freq_base_swa, 'sliding_window_pattern': 6}
  pattern = fields.attention_sliding_window_pattern
  if isinstance(pattern, int):
    pattern = [bool((i + 1) % pattern) for i in range(fields.block_count)]
  if pattern is not None:
    kinds = {True: 'sliding_attention', False: 'full_attention'}
    config['layer_types'] = [kinds[is_sliding] for is_sliding in pattern]
  return config
