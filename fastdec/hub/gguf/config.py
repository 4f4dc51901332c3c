"""The metadata of a GGUF file in the words of Hugging Face's config.json."""

from typing import Any

from fastdec.errors import UserError
from fastdec.hub.gguf.header import Header
from fastdec.hub.gguf.metadata import Architecture, Metadata, architecture_of, metadata_of
from fastdec.hub.gguf.ropes import rope_of

OF_27B = {'gemma2': 46, 'gemma3': 62}  # layers of the models that scale scores by another width
# Texts of tokens that end an answer. A file names one end; its chat template writes the others.
ENDS_OF_TURNS = (
  '<|im_end|>', '<|eot_id|>', '<end_of_turn>', '<|end|>', '<|return|>', '<|call|>',
)  # fmt: skip
MESSAGE_END, ANSWER_END = '<|end|>', '<|return|>'  # where both are, the first ends no answer


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
    'rope_parameters': rope_of(header, fields),
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
