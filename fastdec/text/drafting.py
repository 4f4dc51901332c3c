"""Drafts for a model: read from their folders, and checked against the model."""

import dataclasses
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from fastdec.decoding.description import parse, usual_for
from fastdec.decoding.protocol import Prompt
from fastdec.errors import UserError
from fastdec.fields import shown
from fastdec.folders.folder import PathLike
from fastdec.heads.draft import check_target
from fastdec.kernels.packing import pack_if_faster
from fastdec.models.api import Model, Params
from fastdec.struct import Bound
from fastdec.text.load import is_draft, load_draft, open_fast, tokenizer_of

UNKNOWN = ' ⁇ '  # SentencePiece writes it for an unknown token; other tokenizers write nothing


def draft_of(
  path: PathLike, dtype: Any, mesh: Mesh | None, model: Model, tokenizer: Any
) -> tuple[Any, Params]:
  """Reads the draft network, or the smaller model, of a folder.

  Raises:
    UserError: a network of another model, or a smaller model with another tokenizer.
  """
  if is_draft(path):
    network = load_draft(path, dtype, mesh)
    check_target(Bound(*network), model)
    return pack_if_faster(*network)
  folder = open_fast(path, dtype)
  check_same_ids(tokenizer, tokenizer_of(folder), path)
  return pack_if_faster(folder.model, folder.params(mesh))


def check_same_ids(tokenizer: Any, other: Any, path: PathLike) -> None:
  """Raises UserError where the ids that both tokenizers have do not all mean the same."""
  have_source = hasattr(tokenizer, 'source') and hasattr(other, 'source')
  if have_source and tokenizer.source.words != other.source.words:
    raise UserError(
      f'{path} reads other source words than the model: give one with its dictionaries'
    )
  for token in range(min(tokenizer.vocab_size, other.vocab_size)):
    ours, theirs = tokenizer.decode([token]), other.decode([token])
    if ours == theirs or {ours, theirs} == {'', UNKNOWN}:
      continue
    # One folder's settings may call a token special, which another's don't.
    ours, theirs = (_piece(one, token) for one in (tokenizer, other))
    if ours != theirs:
      raise UserError(
        f'{path} and the model have different vocabularies, of {other.vocab_size:,} and'
        f' {tokenizer.vocab_size:,} tokens (number {token} is {shown(theirs)} and {shown(ours)}):'
        ' give a draft model with the same tokenizer'
      )


def _piece(tokenizer: Any, token: int) -> str:
  """Returns the piece of an id; its text, if the tokenizer has no pieces."""
  has_pieces = callable(getattr(tokenizer, 'pieces', None))
  return tokenizer.pieces([token])[0] if has_pieces else tokenizer.decode([token])


def strategy_of(words: str | None, part: tuple[Any, Params] | None, model: Any) -> Any:
  """Returns the strategy of a description, or the usual one, for heads or a draft of `draft_of`.

  Raises:
    UserError: as `parse` and `check_fits`.
  """
  strategy = usual_for(part) if words is None else parse(words, part)
  if strategy.drafts_by_model:  # `draft_of` has compared the ids
    strategy = dataclasses.replace(strategy, same_ids=True)
  if strategy.part:
    check_fits(model, strategy)
  return strategy


def check_fits(model: Any, strategy: Any) -> None:
  """Raises UserError for heads or a draft of another model, before the model's weights are read.

  It traces the prompt and one call with shapes in place of parameters.
  """
  is_source = model.start_id is not None
  source = np.full((1, 1), model.pad_id, np.int32) if is_source else None
  tokens = np.full((1, 1), model.start_id if is_source else model.pad_id, np.int32)
  one = np.ones(1, np.int32)
  prompt = Prompt(source, tokens, one, np.zeros(1, bool), one)
  strategy.check(model, prompt, 1)
  keys = jax.random.split(jax.random.key(0), 1)

  def call(strategy: Any, params: Params, prompt: Prompt) -> Any:
    target = Bound(model, params)
    return strategy.step(target, strategy.init(target, prompt, 1, keys))

  jax.eval_shape(call, strategy, jax.eval_shape(model.init, jax.random.key(0)), prompt)
