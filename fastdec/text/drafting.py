"""Drafts for a model: read from their folders, and checked against the model."""

import dataclasses
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from fastdec.decoding.description import parse, usual_for
from fastdec.decoding.protocol import Prompt
from fastdec.errors import UserError
from fastdec.fields import quote
from fastdec.folders.folder import PathLike
from fastdec.heads.draft import check_target
from fastdec.kernels.packing import pack_if_faster
from fastdec.models.api import Model, Params
from fastdec.struct import Bound
from fastdec.text.load import is_draft, load_draft, load_tokenizer, open_fast

UNKNOWN = ' ⁇ '  # SentencePiece writes it for an unknown token; other tokenizers write nothing


def load_checked_draft(
  path: PathLike, dtype: Any, mesh: Mesh | None, model: Model, tokenizer: Any
) -> tuple[Any, Params]:
  """Reads the draft network, or the smaller model, of a folder.

  Raises:
    UserError: a network for a different model, or a smaller model with a different tokenizer.
  """
  if is_draft(path):
    network = load_draft(path, dtype, mesh)
    check_target(Bound(*network), model)
    return pack_if_faster(*network)
  folder = open_fast(path, dtype)
  check_same_ids(tokenizer, load_tokenizer(folder), path)
  return pack_if_faster(folder.model, folder.params(mesh))


def check_same_ids(tokenizer: Any, other: Any, path: PathLike) -> None:
  """Raises UserError unless all ids that both tokenizers have mean the same."""
  have_source = hasattr(tokenizer, 'source') and hasattr(other, 'source')
  if have_source and tokenizer.source.words != other.source.words:
    raise UserError(
      f'{path} has different source words than the model: give a draft with its dictionaries'
    )
  for token in range(min(tokenizer.vocab_size, other.vocab_size)):
    ours, theirs = tokenizer.decode([token]), other.decode([token])
    if ours == theirs or {ours, theirs} == {'', UNKNOWN}:
      continue
    # A token may be special by the settings of only one folder: compare pieces, if there are some.
    pieces = []
    for one in (tokenizer, other):
      if callable(getattr(one, 'pieces', None)):
        pieces += one.pieces([token])
      else:
        pieces.append(one.decode([token]))
    ours, theirs = pieces
    if ours != theirs:
      raise UserError(
        f'{path} and the model have different vocabularies, of {other.vocab_size:,} and'
        f' {tokenizer.vocab_size:,} tokens (number {token} is {quote(theirs)} and {quote(ours)}):'
        ' give a draft model with the same tokenizer'
      )


def make_strategy(words: str | None, part: tuple[Any, Params] | None, model: Any) -> Any:
  """Returns the strategy in words, or the usual one, for heads or a draft.

  Args:
    words: the strategy; None: the usual one.
    part: heads, or a draft of `load_checked_draft`; None: the strategy needs neither.
    model: the target.

  Raises:
    UserError: as `parse` and `check_fits`.
  """
  if words is None:
    strategy = usual_for(part)
  else:
    strategy = parse(words, part)
  if strategy.drafts_by_model:  # `load_checked_draft` has compared the ids
    strategy = dataclasses.replace(strategy, same_ids=True)
  if strategy.part:
    check_fits(model, strategy)
  return strategy


def check_fits(model: Any, strategy: Any) -> None:
  """Raises UserError if heads or a draft do not fit the model, before its weights are read.

  It traces the prompt and one call with shapes instead of parameters.
  """
  source, tokens = None, np.full((1, 1), model.pad_id, np.int32)
  if model.start_id is not None:
    source, tokens = tokens, np.full((1, 1), model.start_id, np.int32)
  one = np.ones(1, np.int32)
  prompt = Prompt(source, tokens, one, np.zeros(1, bool), one)
  strategy.check(model, prompt, 1)
  keys = jax.random.split(jax.random.key(0), 1)

  def call(strategy: Any, params: Params, prompt: Prompt) -> Any:
    target = Bound(model, params)
    return strategy.step(target, strategy.init(target, prompt, 1, keys))

  jax.eval_shape(call, strategy, jax.eval_shape(model.init, jax.random.key(0)), prompt)
