"""Text that a model has written and another is trained on: lines to read, and beside them the ids
as they were written.

  folder/train.<source>, train.<target>   lines that translate each other
  folder/train.npy                        their ids (see `TokenPairs`)
  folder/dev.<source>, dev.<target>, dev.npy, dev.json
                                          the same of the dev sources, if the model wrote greedily:
                                          held out, to watch heads and drafts
  folder/config.json                      written last: what made them, whose ids they are

A line that is decoded and encoded again may have other ids than the model wrote (one line in forty,
of small models), and heads are to guess what it writes. So the ids are trained on, where they are
of these lines and this tokenizer; else the lines.
"""

import hashlib
import os
import pathlib
from typing import Any

import jax
import numpy as np

from fastdec import folders
from fastdec.data.text.tokens import TokenPairs
from fastdec.errors import UserError
from fastdec.files import read_json
from fastdec.heads.transformed import Transformed
from fastdec.models.api import Model, Params
from fastdec.tokenizers.sentencepiece import EOS_ID, PAD_ID, Tokenizer

RECORDS = {'train': 'config.json', 'dev': 'dev.json'}
WRITE_OWN = (
  'write it by experiments.distill --teacher=BASE --config.distill.beam=1, BASE being'
  ' the'
  ' folder of the base'
)


def record_of(folder: pathlib.Path, split: str = 'train') -> dict[str, Any]:
  """Reads config.json (of dev: dev.json); {} where there is none.

  Raises:
    UserError: it cannot be read.
  """
  path = folder / RECORDS[split]
  if not os.path.lexists(path):
    return {}
  try:
    return read_json(path)
  except UserError as error:
    raise UserError(f'{error}; or remove {folder}, and let it be made again') from None


def author_of(model: Model, params: Params, tokenizer: Tokenizer | None = None) -> str:
  """A hash of what a model writes by: its settings, its parameters, its pieces (None: it writes
  images)."""
  pieces = b'' if tokenizer is None else tokenizer.model_proto
  digest = hashlib.sha256(repr(model).encode() + pieces)
  for path, leaf in jax.tree.leaves_with_path(params):
    digest.update(repr((path, leaf.dtype)).encode() + np.asarray(leaf).tobytes())
  return digest.hexdigest()[:16]


def without_heads(model: Model, params: Params) -> tuple[Model, Params]:
  """The model that heads were trained on, where its p1 goes through them (`Transformed`)."""
  return (model.model, params['model']) if isinstance(model, Transformed) else (model, params)


def check_written(folder: pathlib.Path) -> None:
  """Raises UserError where a folder has no finished text that says which model has written it."""
  if 'teacher' not in record_of(folder):
    raise UserError(f'{folder} is no finished text of experiments.distill: {WRITE_OWN}')


def check_greedy(folder: pathlib.Path) -> None:
  """Raises UserError where a folder has no finished text that a model has written without a
  search."""
  check_written(folder)
  record = record_of(folder)
  # a language model goes on greedily
  beam = record['distill'].get('beam') if 'distill' in record else 1
  if beam != 1:
    raise UserError(
      f'the text in {folder} was written by a search with beam={beam}, not greedily: {WRITE_OWN}'
    )


def check_author(folder: pathlib.Path, base: pathlib.Path, tokenizer: Tokenizer) -> None:
  """Raises UserError where the text in a folder was not written by the run in `base`, its heads
  aside."""
  model, params = without_heads(*folders.load(base))
  if record_of(folder).get('teacher') != author_of(model, params, tokenizer):
    raise UserError(f'the text in {folder} was written by another model than {base}: {WRITE_OWN}')


def ended(ids: list[int]) -> list[int]:
  """The ids of an output up to its end, which is added where the output was cut; without
  padding."""
  written = ids[: ids.index(EOS_ID)] if EOS_ID in ids else ids
  return [*(token for token in written if token != PAD_ID), EOS_ID]


def save_ids(
  folder: pathlib.Path, pairs: TokenPairs, tokenizer: Tokenizer, lines: str, split: str = 'train'
) -> dict[str, str]:
  """Writes the ids; returns what the split's record is to say of them.

  Args:
    pairs: the ids, pair by pair as the lines stand.
    lines: the key of the lines (`Corpus.key`).
  """
  pairs.save(folder / f'{split}.npy')
  return {'tokenizer': _sha256(tokenizer.model_proto), 'lines': lines, 'content': _content(pairs)}


def ids_of(
  folder: pathlib.Path, tokenizer: Tokenizer, lines: str, split: str = 'train'
) -> TokenPairs | None:
  """The ids of lines with this key, mapped into memory; None where they are another tokenizer's, or
  of other lines."""
  said = _said(folder, lines, split)
  if said.get('tokenizer') != _sha256(tokenizer.model_proto):
    return None
  pairs = TokenPairs.load(folder / f'{split}.npy')
  return pairs if pairs is not None and _content(pairs) == said.get('content') else None


def key_of(folder: pathlib.Path, lines: str, split: str = 'train') -> str:
  """A hash of what there is to train on: the lines, by their key, and the ids where these are
  theirs."""
  content = _said(folder, lines, split).get('content')
  return lines[:16] if content is None else _sha256(f'{lines} {content}'.encode())


def _said(folder: pathlib.Path, lines: str, split: str = 'train') -> dict[str, str]:
  """Entry of the split's record about the ids, if they are of these lines."""
  said = record_of(folder, split).get('ids')
  return said if isinstance(said, dict) and said.get('lines') == lines else {}


def _content(pairs: TokenPairs) -> str:
  digest = hashlib.sha256()
  for side in (pairs.source, pairs.target):
    digest.update(np.ascontiguousarray(side.lengths, '<i8').data)
    digest.update(np.ascontiguousarray(side.tokens, '<i4').data)
  return digest.hexdigest()[:16]


def _sha256(content: bytes) -> str:
  return hashlib.sha256(content).hexdigest()[:16]
