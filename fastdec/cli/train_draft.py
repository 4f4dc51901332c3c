"""Trains a draft for a model, on text that the model writes itself.

Example:
  fastdec train-draft --model=folder --prompts=lines.txt --kind=eagle --out=eagle
  fastdec generate --model=folder --draft=eagle --prompt='A man in'

The model continues each prompt greedily (or translates it), and the draft learns to guess that;
--as-is takes the lines themselves, for a model that continues a text. Kinds:

  eagle    a layer that reads the model's last state and the next token, and then its own (--draft)
  block    a layer that guesses a whole block in one pass (--draft)
  heads    Medusa's heads: residual blocks on the model's last state (--heads)

A twentieth of the texts is held out, to fit the confidences by which trees of a draft grow. Beside
OUT stand, in OUT.training, the text and the checkpoints: the same command resumes. Needs the extra
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
from fastdec.cli.prompts import read_prompts
from fastdec.data.text.packing import packed_batches
from fastdec.data.text.tokens import Ragged, TokenPairs
from fastdec.errors import UserError
from fastdec.files import place, read_json, write_json
from fastdec.folders.drafts import is_replaceable
from fastdec.heads.block import BlockNetwork
from fastdec.heads.eagle import EagleNetwork
from fastdec.heads.medusa import MedusaHeads
from fastdec.models.api import Params
from fastdec.struct import Bound
from fastdec.text import programs
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
HELD_OUT = 20  # one of 20 texts is held out


def main(words: Sequence[str]) -> None:
  parser = Parser('train-draft', __doc__)
  opening.add_model(parser)
  opening.add_prompts(parser)
  parser.add_argument('--out', required=True, help='folder for the draft')
  kinds = one_of('eagle', 'block', 'heads')
  parser.add_argument('--kind', type=kinds, default='eagle', help='eagle, block or heads (eagle)')
  parser.add_argument('--as-is', action='store_true', help='trains on the lines themselves')
  parser.add_argument('--steps', type=whole(2), default=2000, help='of training (2000)')
  parser.add_argument('--rows', type=whole(1), default=16, help='of a batch (16)')
  parser.add_argument(
    '--seed', type=whole(0, opening.LAST_SEED), default=0, help='of fresh layers and batches (0)'
  )
  opening.add_length(parser)
  opening.add_no_cache(parser)
  args = parser.read(words)
  programs.keep()
  out = place(args.out)
  is_free = not out.exists() if args.kind == 'heads' else is_replaceable(out)
  if not is_free:
    raise UserError(f'--out={out} is there already, and is no draft alone: give a new folder')
  lines, work = read_prompts(pathlib.Path(args.prompts)), out.with_name(f'{out.name}.training')
  generator = _opened(args, lines)
  _check_settings(work, args, lines)

  # Let the model write its texts, and hold some of them out.
  texts = _texts(work / 'text.json', generator, lines, args)
  held_out = max(len(texts) // HELD_OUT, 1)
  if len(texts) <= held_out:
    raise UserError(f'{args.prompts} has {len(texts)} prompts: give more to train on')
  longest = 0
  for source, target in texts:
    longest = max(longest, len(source), len(target))
  dev = packed_batches(_pairs(texts[:held_out]), args.rows, longest, args.seed)
  batches = packed_batches(_pairs(texts[held_out:]), args.rows, longest, args.seed)

  # Train the draft, and save the average of its last checkpoints.
  task, save = _task(args, Bound(generator.model, generator.params), [dev[0]])
  optimizer = OptimizerConfig(
    generator.model.d_model,
    schedule='linear',
    constant=RATE,
    warmup=max(min(200, args.steps // 10), 1),
    steps=args.steps,
    b2=0.98,
  )
  every = max(args.steps // 20, 1)
  loop = LoopConfig(args.steps, log_every=min(50, every), checkpoint_every=every, keep=2)
  train(task, batches, optimizer, loop, work, jax.random.key(args.seed))
  save(average_checkpoints(work, loop.kept))
  drop_checkpoints(work)
  flag = 'heads' if args.kind == 'heads' else 'draft'
  print(f'{out} is a draft for {args.model}: use it by --{flag}={out}')


def _opened(args: argparse.Namespace, lines: Sequence[str]) -> fd.Generator:
  """Reads the model as it was trained; decoding would cast its parameters."""
  max_len = 1 if args.as_is else args.max_len
  generator = opening.open_without_weights(args.model, None, lines, max_len)
  if args.as_is and generator.model.start_id is not None:
    raise UserError(f'--as-is is for a model that continues a text, and {args.model} reads one')
  if args.kind != 'heads':
    layers_like(generator.model, 1)  # refuses a model without such layers, before weights are read
  params = open_folder(args.model).params(as_stored=True)
  return dataclasses.replace(generator, params=params, rows=4 * args.rows)


def _check_settings(work: pathlib.Path, args: argparse.Namespace, lines: Sequence[str]) -> None:
  """Writes the settings of the training, or raises UserError if others were written here before."""
  file, record = work / 'settings.json', dict(vars(args))
  record['model'] = folders.content(args.model)
  record['prompts'] = hashed('\n'.join(lines).encode())
  if file.is_file() and read_json(file) != record:
    raise UserError(f'{work} was made with other settings: give another --out, or remove it')
  write_json(file, record)


def _texts(
  file: pathlib.Path, generator: fd.Generator, lines: Sequence[str], args: argparse.Namespace
) -> list[tuple[list[int], list[int]]]:
  """Returns source and target of each text: those in the file, or else written now."""
  if file.is_file():
    return [tuple(pair) for pair in read_json(file)['texts']]
  model, texts = generator.model, []
  with Progress(len(lines), 'prompt') as progress:
    for start in range(0, len(lines), 16 * generator.rows):
      prompts = list(lines[start : start + 16 * generator.rows])
      if args.as_is:
        outputs = [list(model.eos_ids[:1])] * len(prompts)
      else:
        outputs = [text.tokens for text in generator(prompts, args.max_len)]
      for prompt, tokens in zip(prompts, outputs, strict=True):
        ids, _ = generator.read(prompt)
        if model.start_id is not None:
          texts.append((ids, tokens))
          continue
        # The model itself puts its first token before a text.
        if ids[0] == model.config.bos_id:
          ids = ids[1:]
        texts.append((ids + tokens, ids + tokens))
      progress.add(len(prompts))
  write_json(file, {'texts': texts})
  return texts


def _pairs(texts: Sequence[tuple[list[int], list[int]]]) -> TokenPairs:
  sources, targets = zip(*texts, strict=True)
  return TokenPairs(Ragged.of(sources), Ragged.of(targets))


def _task(
  args: argparse.Namespace, target: Bound, dev: Sequence[Any]
) -> tuple[Task, Callable[[Params], None]]:
  """Returns the task of a kind of draft, and a function that saves the result."""
  model, params = target
  if args.kind == 'heads':
    heads = MedusaHeads(HEADS, model.d_model, vocab_size=model.vocab_size)
    task = frozen_heads_task(model, heads, params, draw='all', decay=0.8, anchors=ANCHORS)
    return task, lambda learnt: fd.save_heads(args.out, (heads, learnt), args.model)
  sizes = {
    'layers': layers_like(model, 1),
    'vocab_size': model.vocab_size,
    'd_target': model.d_model,
  }
  network: Any = EagleNetwork(**sizes)
  if args.kind == 'block':
    network = BlockNetwork(**sizes, k=GUESSES + 1, markov=64)
  key = jax.random.fold_in(jax.random.key(args.seed), 1)
  fresh = Bound(network, begin(network, target, key, 'target', None))
  fixed = split(fresh.params)[1]

  def save(learnt: Params) -> None:
    draft = Bound(network, learnt | fixed)
    warmth = warmth_of(draft, target, dev, GUESSES, ANCHORS)
    fd.save_draft(args.out, (network, draft.params | {'warmth': jnp.asarray(warmth)}))

  return frozen_draft_task(target, fresh, DraftLoss(anchors=ANCHORS)), save
