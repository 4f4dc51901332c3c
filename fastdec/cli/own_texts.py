"""Texts that a model writes itself, for its draft to learn from."""

import argparse
import pathlib
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

import fastdec as fd
from fastdec.cli import opening, prompt_file
from fastdec.cli.prompts import Prompt
from fastdec.errors import UserError
from fastdec.files import parse_json

FIRST = 2  # poolfuls of prompts by which a budget finds out how fast texts are written


class Text(NamedTuple):
  """A text, and what asked for it."""

  source: list[int]  # of a language model: the text itself
  target: list[int]
  prompt: list[int]
  category: str


def as_is(args: argparse.Namespace, generator: fd.Generator, texts: Sequence[Prompt]) -> list[Text]:
  """Returns each text with the model's end."""
  read = []
  for ids in opening.encode_texts(args, generator.tokenizer, texts):
    ids = [*_without_start(generator, ids), *generator.model.eos_ids[:1]]
    read.append(Text(ids, ids, ids[:1], 'text'))
  return read


def written(
  file: pathlib.Path,
  generator: fd.Generator,
  prompts: Sequence[tuple[str, Prompt]],
  asked: Sequence[Prompt],
  record: dict[str, Any],
  seconds: float | None,
  most: int | None,
) -> list[Text]:
  """Returns the texts that the model writes, or has written before, in a mixed order.

  Args:
    file: where they are kept.
    generator: the model.
    prompts: the prompts and their categories.
    asked: the prompts as the model is asked them.
    record: what the texts depend on.
    seconds: the time for writing: a sample of the prompts, as many as fit; None: all.
    most: how many that were, when this began; None: it begins.
  """
  output = prompt_file.Output(file, record, len(prompts), 'give --out another folder')
  order = np.random.default_rng(0).permutation(len(prompts)).tolist()[:most]
  plain = [prompt for _, prompt in prompts]

  def write(places: Sequence[int]) -> None:
    prompt_file.write(output, generator, plain, asked, record['max_len'], ids=True, places=places)

  if set(order) - set(output.done()):
    print(f'texts of {len(prompts):,} prompts are kept in {file}', flush=True)
    if seconds is None or most is not None:
      write(order)
    else:
      # The speed of the first texts that are missing says how many there can be.
      done = output.done()
      missing, begun = [index for index in order if index not in done], time.monotonic()
      first = missing[: FIRST * generator.rows]
      write(first)
      spent = max(time.monotonic() - begun, 1e-3)
      write(missing[: len(first) + int(max(seconds - spent, 0) / spent * len(first))])
  texts, lines = [], output.done()
  for index in order:
    if index not in lines:
      continue
    ids, answer = generator.read(asked[index])[0], parse_json(lines[index]).get('ids')
    words = range(generator.model.vocab_size)
    if not isinstance(answer, list) or not all(token in words for token in answer):
      raise UserError(f'line {index + 1} of {file} has no ids of this model: remove the file')
    category = prompts[index][0]
    if generator.model.start_id is not None:
      texts.append(Text(ids, answer, ids, category))
    else:
      whole = _without_start(generator, ids) + answer
      texts.append(Text(whole, whole, ids, category))
  return texts


def _without_start(generator: fd.Generator, ids: list[int]) -> list[int]:
  """Returns the ids of a text without its first token if the model itself puts it there."""
  return ids[1:] if ids[:1] == [generator.model.config.bos_id] else ids
