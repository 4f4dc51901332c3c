"""Drafters that guess among few words (FR-Spec, Zhao et al. 2025).

A small network spends most of its time on the product over all words, while nearly all of its right
guesses are among the most frequent words.

  draft = fd.shortlist((model, params), fd.load_draft(path), tokens, words=1000)

Nothing is trained. The target still chooses among all its words, so its output stays the same; a
rare word only ends the draft. The result can be saved, packed and quantized like other drafters.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fastdec.errors import UserError
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.heads.draft import DraftNetwork, check_target
from fastdec.heads.medusa import MedusaHeads
from fastdec.kernels.packed import is_packed
from fastdec.kernels.quantized import is_quantized
from fastdec.models.api import Model, Params, float_type, vocabulary_projection
from fastdec.struct import Bound, bound


def shortlist(
  target: tuple[Model, Params], drafter: tuple[Any, Params], tokens: Any, words: int
) -> tuple[Any, Params]:
  """Returns the drafter, which then guesses only among the most frequent words of a text.

  Args:
    target: the model that it drafts for, and its parameters.
    drafter: prediction heads, or a draft network; it may have a short list already.
    tokens: int[...], the text: the target's outputs for typical inputs, in its own ids. A hundred
      thousand tokens are plenty.
    words: length of the list. It includes the end tokens. If the text has too few words, the list
      is filled up with words of the lowest ids.

  Raises:
    UserError: the drafter is of another kind, in int8, or packed; the target's logits are not a
      product of its hidden state and a matrix; the target does not have these ids or that many
      words.
  """
  model, model_params = bound(target, 'target')
  module, params = bound(drafter, 'drafter')
  _check(model, module, params, words)

  # The words, and their places in the list that the drafter has now.
  chosen = most_frequent(model, tokens, words)
  if 'ids' in params:
    known = np.asarray(params['ids'])
    places = np.flatnonzero(np.isin(known, chosen))
    chosen = known[places]
  else:
    places = chosen
  if not len(chosen):
    raise UserError(
      'the drafter has none of these words: give more words, or a text of its own model'
    )

  # Keep these words' rows of the Markov bias, and of Medusa heads' own projections [v, d].
  short = {**params, 'ids': jnp.asarray(chosen, jnp.int32)}
  if 'after' in params:
    short['after'] = params['after'][places]
  if isinstance(module, MedusaHeads) and module.vocab_size is not None:
    for name, head in params.items():
      if name.startswith('head_'):
        projection = jax.tree.map(lambda x: x[places], head['projection'])
        short[name] = head | {'projection': projection}
    return dataclasses.replace(module, vocab_size=len(chosen), short=len(chosen)), short

  # Other drafters get an output matrix of their own, unless they have one.
  is_network = isinstance(module, DraftNetwork)
  if 'output' in params:
    short['output'] = params['output'][places]
  else:
    d = module.d_target if is_network else module.d_model
    short['output'] = find_output(model, model_params, d)[places].astype(float_type(params))
  if is_network:
    return dataclasses.replace(module, words=len(chosen)), short
  return dataclasses.replace(module, short=len(chosen)), short


def most_frequent(model: Model, tokens: Any, words: int) -> Int[np.ndarray, ' w']:
  """Returns the ids of a text's most frequent words, ascending; end tokens are always among them.

  Raises:
    UserError: the model does not have these ids.
  """
  try:
    flat = np.asarray(tokens).reshape(-1)
  except ValueError as error:  # texts of different lengths
    raise UserError('tokens must be one array: give the ids of all texts in a row') from error
  if not flat.size or not np.issubdtype(flat.dtype, np.integer):
    raise UserError(
      f'tokens must be ids, which are integers, not {flat.size} values of {flat.dtype}'
    )
  if flat.min() < 0 or flat.max() >= model.vocab_size:
    span = f'{flat.min()} to {flat.max()}'
    raise UserError(
      f'tokens has ids from {span}, and this model has 0 to {model.vocab_size - 1}: encode the text'
      " with the model's own tokenizer"
    )
  counts = np.bincount(flat, minlength=model.vocab_size)
  counts[[model.pad_id, *model.suppressed_ids]] = 0  # these are never guessed
  counts[list(model.eos_ids)] = len(flat) + 1
  return np.sort(np.argsort(-counts, kind='stable')[:words]).astype(np.int32)


def find_output(model: Model, params: Params, d: int) -> Float[Array, 'v d']:
  """Returns the matrix of the model's vocabulary projection, by projecting the identity of size d.

  Raises:
    UserError: the projection is not a product with a matrix.
  """
  dtype = np.result_type(np.float32, float_type(params))
  project = vocabulary_projection(model)
  with jax.default_matmul_precision('highest'):  # a product with the identity is then exact
    output = project(params, jnp.eye(d, dtype=dtype)).T
    all_ones = project(params, jnp.full((1, d), 8, dtype))[0]
  # with a tolerance, because products in int8 are rounded
  if not jnp.allclose(all_ones, 8 * output.sum(axis=1), rtol=0.05, atol=0.05):
    raise UserError(
      f'{type(model).__name__} changes its logits after the product: a shortlist needs a model'
      ' whose logits are a product of the hidden state and a matrix'
    )
  return output


def _check(model: Model, module: Any, params: Params, words: int) -> None:
  if not isinstance(module, BlockwiseHeads | MedusaHeads | DraftNetwork):
    raise UserError(
      f'a drafter of type {type(module).__name__} cannot be shortened: give'
      ' prediction heads or a draft network'
    )
  is_whole = isinstance(words, int | np.integer) and not isinstance(words, bool)
  if not (is_whole and 1 <= words <= model.vocab_size):
    raise UserError(f'words={words!r} is not possible: give 1 to {model.vocab_size}')
  if is_packed(params):
    raise UserError('this drafter is packed: shorten it first, and pack the result')
  if is_quantized(params):
    raise UserError('this drafter is in int8: shorten it first, and quantize the result')

  # The drafter's sizes must fit the model.
  if isinstance(module, DraftNetwork):
    check_target(Bound(module, params), model)
    return
  d = getattr(model, 'd_model', module.d_model)
  if module.d_model != d:
    raise UserError(
      f'these heads are for hidden states of {module.d_model}, and this model has {d}: give its own'
    )
  own: Any = None
  if 'ids' not in params and not isinstance(module, BlockwiseHeads):
    own = module.vocab_size
  for wanted in (module.words, own):
    if wanted not in (None, model.vocab_size):
      raise UserError(
        f'these heads are for {wanted} words, and this model has {model.vocab_size}: give its own'
      )
