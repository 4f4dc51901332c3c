"""fairseq's FConv and Transformer from state dicts and dictionaries: the common part.

Sizes come from the shapes. Other settings come from the options in a checkpoint, or are fairseq's
defaults. Every target begins with </s>, and never has a pad.
"""

import pathlib
import re
from typing import Any

import jax

from fastdec.errors import UserError
from fastdec.hub.fairseq import fconv as fairseq_fconv
from fastdec.hub.fairseq import state_dict
from fastdec.hub.fairseq import transformer as fairseq_transformer
from fastdec.hub.fairseq.state_dict import StateDict
from fastdec.hub.tensors import are_equal, fit, shaped
from fastdec.models.api import Params

SOURCE, TARGET = 'encoder.embed_tokens.weight', 'decoder.embed_tokens.weight'
FAMILIES = {'encoder.convolutions.': fairseq_fconv, 'encoder.layers.': fairseq_transformer}
UNSUPPORTED = {  # tensors' names
  r'adaptive_softmax': 'an adaptive softmax',
  r'quant_noise|\.centroids|\.assignments': 'quantization',
  r'\.project_(in|out)_dim': 'a decoder whose width differs from its embeddings',
  r'\.bias_[kv]$': 'a key or value beyond the text',
}
REFUSED = (  # options that change the computation, and leave no trace in the shapes
  'adaptive_softmax_cutoff', 'adaptive_input', 'cross_self_attention', 'no_cross_attention',
  'no_token_positional_embeddings', 'encoder_layers_to_keep', 'decoder_layers_to_keep',
)  # fmt: skip


def load(
  file: pathlib.Path, words: tuple[int, int], is_joined: bool, heads: int | None = None
) -> tuple[Any, Params]:
  """Reads the model of a checkpoint, and its parameters.

  Args:
    file: .safetensors of the state dict, or a .pt checkpoint.
    words: sizes of the source's and the target's dictionary.
    is_joined: both have the same words; equal embeddings then become one.
    heads: attention heads of a Transformer, if the file has no options.

  Raises:
    UserError: the model is not supported, tensors are missing, unknown or of other shapes, the
      dictionaries do not fit, or the number of heads is unknown.
  """
  tensors = state_dict.load(file)
  _check_supported(tensors)
  families = []
  for prefix, family in FAMILIES.items():
    if any(name.startswith(prefix) for name in tensors):
      families.append(family)
  if len(families) != 1:
    raise UserError(
      f'{file} has neither encoder.convolutions nor encoder.layers: {tensors.advice} of fairseq'
    )
  embeddings = _embeddings(tensors, words, is_joined)
  model, params = families[0].read(tensors, embeddings, heads)
  tensors.check()
  fit(params, jax.eval_shape(model.init, jax.random.key(0)))
  return model, params


def _check_supported(tensors: StateDict) -> None:
  for pattern, feature in UNSUPPORTED.items():
    for name in tensors:
      if re.search(pattern, name):
        raise UserError(
          f'{tensors.where} has {feature} ({name}), which is not supported: give a model without it'
        )
  for name in REFUSED:
    value = tensors.options.get(name)
    if value:
      raise UserError(
        f'{tensors.where} was trained with {name}={value}, which is not supported:'
        ' give another model'
      )


def _embeddings(tensors: StateDict, words: tuple[int, int], is_joined: bool) -> Params:
  """Returns the target's embedding, and the source's if it differs."""
  for name, side, count in zip((SOURCE, TARGET), ('source', 'target'), words, strict=True):
    rows = tensors.sizes(name, 'words, width')[0]
    if rows != count:
      raise UserError(
        f'the {side} dictionary has {count} words, the 4 special ones included, and {name} has'
        f' {rows}: give the dictionaries that the model was trained with'
      )
  target = tensors[TARGET]
  source = shaped(tensors, SOURCE, words[0], target.shape[1])
  if is_joined and are_equal(source, target):
    return {'embedding': target}
  return {'embedding': target, 'source_embedding': source}
