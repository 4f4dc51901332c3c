"""Trains a draft for a model, on text that the model writes itself.

Example:
  fastdec train-draft --model=folder --prompts=lines.txt --kind=eagle --out=eagle
  fastdec generate --model=folder --draft=eagle --prompt='A man in'

The model goes on from each prompt greedily (or translates it), and the draft learns to guess that;
--as-is takes the lines themselves, for a model that goes on from a text. Kinds:

  eagle    a layer that reads the model's last state and the next token, and then its own (--draft)
  block    a layer that guesses a whole block in one pass (--draft)
  heads    Medusa's heads: residual blocks on the model's last state (--heads)

A twentieth of the texts is held out, to fit the confidences by which trees of a draft grow. Beside
OUT stand, in OUT.training, the text and the checkpoints: the same command goes on. Needs the extra
fastdec[train].
"""

import argparse
import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

import fastdec as fd
from fastdec import folders
from fastdec.cli import opening
from fastdec.cli.flags import Parser, one_of, whole
from fastdec.cli.prompt_file import hashed
from fastdec.data.text.packing import packed_batches
from fastdec.data.text.tokens import Ragged, TokenPairs
from fastdec.errors import UserError
from fastdec.files import place, read_json, read_prompts, write_json
from fastdec.folders.drafts import is_replaceable
from fastdec.heads.block import BlockNetwork
from fastdec.heads.eagle import EagleNetwork
from fastdec.heads.medusa import MedusaHeads
from fastdec.models.api import Params
from fastdec.struct import Bound
from fastdec.text.load import open_folder
from fastdec.training.checkpoint import average_checkpoints, drop_checkpoints
from fastdec.training.drafts.calibration import warmth_of
from fastdec.training.drafts.losses import DraftLoss
from fastdec.training.drafts.start import begin, layers_like
from fastdec.training.drafts.tasks import frozen_draft_task, split
from fastdec.training.loop import LoopConfig, train
from fastdec.training.optimizer import OptimizerConfig
from fastdec.training.progress import Progress
from fastdec.training.state import Task, frozen_heads_task

ANCHORS = 16  # places of each row that guesses are learnt at, drawn anew in each step
GUESSES = 7  # of a draft
HEADS = 4  # Medusa's
RATE = 2e-3  # at its peak
HELD_OUT = 20  # of so many texts one


def main(words: Sequence[str]) -> None:
  parser = Parser('train-draft', __doc__)
  parser.add_argument('--model', required=True, help='folder of a model, or of a finished run')
  parser.add_argument('--prompts', required=True, help='file with a prompt on each line')
  parser.add_argument('--out', required=True, help='folder for the draft')
  kinds = one_of('eagle', 'block', 'heads')
  parser.add_argument('--kind', type=kinds, default='eagle', help='eagle, block or heads (eagle)')
  parser.add_argument('--as-is', action='store_true', help='trains on the lines themselves')
  parser.add_argument('--steps', type=whole(2), default=2000, help='of training (2000)')
  parser.add_argument('--rows', type=whole(1), default=16, help='of a batch (16)')
  parser.add_argument(
    '--seed', type=whole(0, opening.LAST), default=0, help='of fresh layers and batches (0)'
  )
  opening.add_length(parser)
  given = parser.read(words)
  out = place(given.out)
  is_free = not out.exists() if given.kind == 'heads' else is_replaceable(out)
  if not is_free:
    raise UserError(f'--out={out} is there already, and is no draft alone: give a new folder')
  lines, work = read_prompts(pathlib.Path(given.prompts)), out.with_name(f'{out.name}.training')
  generator = _opened(given, lines)
  _check_settings(work, given, lines)
  texts = _texts(work / 'text.json', generator, lines, given)
  held = max(len(texts) // HELD_OUT, 1)
  if len(texts) <= held:
    raise UserError(f'{given.prompts} has {len(texts)} prompts: give more to train on')
  length = int(max(map(len, (side for pair in texts for side in pair))))
  batches, dev = (
    packed_batches(_pairs(part), given.rows, length, given.seed)
    for part in (texts[held:], texts[:held])
  )
  target = Bound(generator.model, generator.params)
  task, save = _drafted(given, target, [dev[0]])
  optimizer = OptimizerConfig(
    generator.model.d_model,
    schedule='linear',
    constant=RATE,
    warmup=max(min(200, given.steps // 10), 1),
    steps=given.steps,
    b2=0.98,
  )
  every = max(given.steps // 20, 1)
  loop = LoopConfig(given.steps, log_every=min(50, every), checkpoint_every=every, keep=2)
  train(task, batches, optimizer, loop, work, jax.random.key(given.seed))
  save(average_checkpoints(work, loop.kept))
  drop_checkpoints(work)
  flag = 'heads' if given.kind == 'heads' else 'draft'
  print(f'{out} is a draft for {given.model}: use it by --{flag}={out}')


def _opened(given: argparse.Namespace, lines: Sequence[str]) -> fd.Generator:
  """Reads the model as it was trained; decoding would cast its parameters."""
  unread = opening.unread(given.model, None, lines, 1 if given.as_is else given.max_len)
  if given.as_is and unread.model.start_id is not None:
    raise UserError(f'--as-is is for a model that goes on from a text, and {given.model} reads one')
  if given.kind != 'heads':
    layers_like(unread.model, 1)  # a model without such layers is told before weights are read
  params = open_folder(given.model).params(as_stored=True)
  return dataclasses.replace(unread, params=params, rows=4 * given.rows)


def _check_settings(work: pathlib.Path, given: argparse.Namespace, lines: Sequence[str]) -> None:
  """Writes what is trained, or raises UserError if something else was begun here."""
  file, record = work / 'settings.json', dict(vars(given))
  record['model'] = folders.content(given.model)
  record['prompts'] = hashed('\n'.join(lines).encode())
  if file.is_file() and read_json(file) != record:
    raise UserError(f'{work} was made with other settings: give another --out, or remove it')
  write_json(file, record)


def _texts(
  file: pathlib.Path, generator: fd.Generator, lines: Sequence[str], given: argparse.Namespace
) -> list[tuple[list[int], list[int]]]:
  """Returns source and target of each text: those in the file, or else written now."""
  if file.is_file():
    return [tuple(pair) for pair in read_json(file)['texts']]
  model, found = generator.model, []
  with Progress(len(lines), 'prompt') as progress:
    for start in range(0, len(lines), 16 * generator.rows):
      some = list(lines[start : start + 16 * generator.rows])
      if given.as_is:
        written = [list(model.eos_ids[:1])] * len(some)
      else:
        written = [one.tokens for one in generator(some, given.max_len)]
      for line, tokens in zip(some, written, strict=True):
        ids, _ = generator.read(line)
        if model.start_id is None:  # the model itself puts its first token before a text
          first = ids[1:] if ids[0] == model.config.bos_id else ids
          found.append((first + tokens, first + tokens))
        else:
          found.append((ids, tokens))
      progress.add(len(some))
  write_json(file, {'texts': found})
  return found


def _pairs(texts: Sequence[tuple[list[int], list[int]]]) -> TokenPairs:
  sources, targets = zip(*texts, strict=True)
  return TokenPairs(Ragged.of(sources), Ragged.of(targets))


def _drafted(
  given: argparse.Namespace, target: Bound, dev: Sequence[Any]
) -> tuple[Task, Callable[[Params], None]]:
  """Returns what is trained, and how the result is saved."""
  model, params = target
  if given.kind == 'heads':
    heads = MedusaHeads(HEADS, model.d_model, vocab_size=model.vocab_size)
    task = frozen_heads_task(model, heads, params, draw='all', decay=0.8, anchors=ANCHORS)
    return task, lambda learnt: fd.save_heads(given.out, (heads, learnt), given.model)
  sizes = {'layers': layers_like(model, 1), 'vocab_size': model.vocab_size}
  sizes['d_target'] = model.d_model
  module: Any = EagleNetwork(**sizes)
  if given.kind == 'block':
    module = BlockNetwork(**sizes, k=GUESSES + 1, markov=64)
  key = jax.random.fold_in(jax.random.key(given.seed), 1)
  begun = Bound(module, begin(module, target, key, 'target', None))
  fixed = split(begun.params)[1]

  def save(learnt: Params) -> None:
    draft = Bound(module, learnt | fixed)
    warmth = warmth_of(draft, target, dev, GUESSES, ANCHORS)
    fd.save_draft(given.out, (module, draft.params | {'warmth': jnp.asarray(warmth)}))

  return frozen_draft_task(target, begun, DraftLoss(anchors=ANCHORS)), save
