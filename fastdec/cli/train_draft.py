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
OUT the model's texts are kept as they are written, in train-draft-text-....jsonl, which serves all
kinds and steps, and the checkpoints in OUT.training: the same command resumes. Needs the extra
fastdec[train].
"""

import argparse
import contextlib
import dataclasses
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

import fastdec as fd
from fastdec import folders
from fastdec.cli import opening, prompt_file
from fastdec.cli.flags import Parser, one_of, whole
from fastdec.cli.prompts import Prompt, hash_of, read_prompts, read_texts
from fastdec.data.text.packing import packed_batches
from fastdec.data.text.tokens import Ragged, TokenPairs
from fastdec.errors import UserError
from fastdec.files import parse_json, place, place_for_folder, read_json, write_json
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
from fastdec.training.state import Task, frozen_heads_task
from fastdec.tuning.tuned import content_of_part

ANCHORS = 16  # places of each row that guesses are learnt at, drawn anew in each step
GUESSES = 7  # of a draft
HEADS = 4  # Medusa's
RATE = 2e-3  # at its peak
HELD_OUT = 20  # one of 20 texts is held out
DONE = 'done.json'  # a hash of the finished draft
Text = tuple[list[int], list[int]]  # source and target


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

  # Look at what is there: the finished draft, or the training of another one.
  out = place(args.out)
  work = out.with_name(f'{out.name}.training')
  read = read_texts if args.as_is else read_prompts
  prompts = read(pathlib.Path(args.prompts))
  if len(prompts) < 2:
    raise UserError(f'{args.prompts} has 1 prompt, which is held out: give more to train on')
  asked = opening.asked(args, prompts, are_texts=args.as_is)
  text_record = {
    'model': folders.content(args.model),
    'prompts': hash_of(prompts),
    'max_len': args.max_len,
    **prompt_file.chat_settings(args),
  }
  if _is_done(args, out, work, text_record):
    drop_checkpoints(work)
    print(f'{out} is done already: use it by {_flag(args)}')
    return
  place_for_folder(out)
  generator = _opened(args, asked)
  write_json(work / 'settings.json', _record(args, text_record))

  # Let the model write its texts, and hold some of them out.
  if args.as_is:
    texts = _as_is(args, generator, asked)
  else:
    texts = _written(out, generator, prompts, asked, text_record)
  held_out = max(len(texts) // HELD_OUT, 1)
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
  write_json(work / DONE, {'content': _content(args)})
  drop_checkpoints(work)
  print(f'{out} is a draft for {args.model}: use it by {_flag(args)}')


def _flag(args: argparse.Namespace) -> str:
  return f'--{"heads" if args.kind == "heads" else "draft"}={args.out}'


def _content(args: argparse.Namespace) -> str:
  """Returns a hash of the finished draft."""
  return content_of_part('heads' if args.kind == 'heads' else 'draft network', args.out)


def _record(args: argparse.Namespace, text_record: dict[str, Any]) -> dict[str, Any]:
  """Returns all settings of a training."""
  record = {**vars(args), **text_record}
  del record['out']
  return record


def _is_done(
  args: argparse.Namespace, out: pathlib.Path, work: pathlib.Path, text_record: dict[str, Any]
) -> bool:
  """True if this command has finished before.

  Raises:
    UserError: the training of other settings is there, or another folder than a draft.
  """
  file, done = work / 'settings.json', work / DONE
  if file.is_file():
    remedy = 'give another --out, beside which the same text serves, or remove it'
    prompt_file.check_same(read_json(file), _record(args, text_record), work, remedy)
    if out.exists() and args.kind == 'heads':  # heads are never written over others
      return True
    if out.exists() and done.is_file():
      with contextlib.suppress(UserError):
        return read_json(done).get('content') == _content(args)
  is_free = not out.exists() if args.kind == 'heads' else is_replaceable(out)
  if not is_free:
    raise UserError(f'--out={out} is there already, and is no draft alone: give a new folder')
  return False


def _opened(args: argparse.Namespace, prompts: Sequence[Prompt]) -> fd.Generator:
  """Reads the model as it was trained; decoding would cast its parameters."""
  max_len = 1 if args.as_is else args.max_len
  generator = opening.open_without_weights(
    args.model, None, prompts, max_len, template=opening.variables(args)
  )
  if args.as_is and generator.model.start_id is not None:
    raise UserError(f'--as-is is for a model that continues a text, and {args.model} reads one')
  if args.kind != 'heads':
    layers_like(generator.model, 1)  # refuses a model without such layers, before weights are read
  params = open_folder(args.model).params(as_stored=True)
  return dataclasses.replace(generator, params=params, rows=4 * args.rows)


def _as_is(
  args: argparse.Namespace, generator: fd.Generator, texts: Sequence[Prompt]
) -> list[Text]:
  """Returns each text with the model's end, as source and target."""
  pairs = []
  for ids in opening.text_ids(args, generator.tokenizer, texts):
    ids = [*_without_start(generator, ids), *generator.model.eos_ids[:1]]
    pairs.append((ids, ids))
  return pairs


def _written(
  out: pathlib.Path,
  generator: fd.Generator,
  prompts: Sequence[Prompt],
  asked: Sequence[Prompt],
  record: dict[str, Any],
) -> list[Text]:
  """Returns source and target of each text that the model writes, or has written before."""
  key = prompt_file.hashed(json.dumps(record).encode())
  file = out.with_name(f'train-draft-text-{key}.jsonl')
  output = prompt_file.Output(file, record, len(prompts), 'give --out another folder')
  if len(output.done()) < len(prompts):
    print(f'{len(prompts):,} texts are written, and kept in {file}', flush=True)
    prompt_file.write(output, generator, prompts, asked, record['max_len'], ids=True)
  pairs, lines = [], output.done()
  for index, prompt in enumerate(asked):
    ids, written = generator.read(prompt)[0], parse_json(lines[index]).get('ids')
    words = range(generator.model.vocab_size)
    if not isinstance(written, list) or not all(token in words for token in written):
      raise UserError(f'line {index + 1} of {file} has no ids of this model: remove the file')
    if generator.model.start_id is not None:
      pairs.append((ids, written))
    else:
      whole = _without_start(generator, ids) + written
      pairs.append((whole, whole))
  return pairs


def _without_start(generator: fd.Generator, ids: list[int]) -> list[int]:
  """Returns the ids of a text without its first token if the model itself puts it there."""
  return ids[1:] if ids[:1] == [generator.model.config.bos_id] else ids


def _pairs(texts: Sequence[Text]) -> TokenPairs:
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
