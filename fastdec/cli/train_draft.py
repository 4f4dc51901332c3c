"""Trains a draft for a model, on text that the model writes itself.

Example:
  fastdec train-draft --model=folder --prompts=lines.txt --kind=eagle --out=eagle
  fastdec generate --model=folder --draft=eagle --prompt='A man in'

The model continues each prompt greedily (or translates it; --temperature=1 samples), and the draft
learns to guess that; --as-is takes the lines themselves, for a model that continues a text. Kinds:

  eagle    a layer that reads states of the model's layers and the next token, and then its own
           (--draft)
  block    a layer that guesses a whole block in one pass (--draft)
  eagle3   as eagle, in the arrangement of EAGLE-3; written to OUT.published too, as its authors do
  dflash   as block, in the arrangement of DFlash, which guesses among all words; likewise
  jetspec, domino, dflash2, lilicorr
           as dflash, and each row sees only earlier ones; or the token before changes a guess by a
           recurrent network, by a product with the row's state, or by a transformer over candidates
  heads    Medusa's heads: residual blocks on the model's last state (--heads)

A text has at most 64 tokens, an answer in a chat 256 (--max-len).

All but heads learn the model's law at every place of a text, over the --words most frequent words
of all texts; with --loss=ce they learn only the token that the model wrote. The model runs once:
its states are kept in OUT.training, where the disk has twice the room.

--budget=15m plans for a time: three fifths for texts, of which the last may then be missing, and as
many steps as fit into the rest. A budget that leaves too few steps is refused at once, with the
time that it takes. Texts that are there count with the time that they took, so the plan is the same
after a stop. --start=DRAFT trains an existing draft further, for more steps or on other texts; its
words stay those of that draft.

A twentieth of the texts is held out, with all texts whose prompt is the same, or a chat that begins
with the same question. On these the draft is evaluated as it learns, and its confidences are
fitted, by which trees grow. At the end they are replayed with it: tokens a call, by category of
prompts (those of JSON lines), and what more steps would bring.

The work is done in stages, folders that are named by what went into them, so the same command
resumes exactly where it was stopped. The model's texts are in train-draft-text-..., next to OUT,
and all kinds and steps use them. Everything else is in OUT.training. Needs the extra
fastdec[train].

Its last act is `fastdec tune`, of three minutes, on the prompts that are held out. It finds out
whether the draft pays on this machine, and writes OUT.tuned.json:
fastdec generate --strategy=OUT.tuned.json --draft=OUT. A draft that brings nothing is not tuned.
With --no-tune only its prediction for a chain is printed.
"""

import argparse
import dataclasses
import math
import os
import pathlib
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

import fastdec as fd
from fastdec import extras, folders
from fastdec.cli import opening, prompt_file
from fastdec.cli.flags import Parser, duration, number, one_of, whole
from fastdec.cli.own_text import OwnText, save_texts
from fastdec.cli.prompts import Prompt, Question, hash_prompts, read_by_category, read_texts
from fastdec.cli.show import columns
from fastdec.data.text.tokens import TokenPairs
from fastdec.decoding.description import label, usual_for
from fastdec.decoding.inputs import DEFAULT_MAX_LEN
from fastdec.decoding.strategy import with_settings
from fastdec.errors import UserError
from fastdec.evaluation import wallclock
from fastdec.evaluation.replay import tokens_a_call
from fastdec.fields import LAST_SEED
from fastdec.files import (
  json_lines,
  place,
  place_for_folder,
  place_to_write,
  read_json,
  to_json,
  whole_folder,
  write_json,
  write_text,
)
from fastdec.folders.drafts import draft_content, is_replaceable
from fastdec.heads.draft import check_target
from fastdec.heads.medusa import MedusaHeads
from fastdec.hub.published import publish_draft
from fastdec.kernels.packing import pack_if_faster
from fastdec.kernels.sharding import MeshConfig
from fastdec.models.lm import LM, LMConfig
from fastdec.models.t5 import T5
from fastdec.models.taps import RULE, number_taps
from fastdec.struct import Bound
from fastdec.text import programs
from fastdec.text.generator import key_of
from fastdec.text.load import choose_draft_type, open_fast, open_folder
from fastdec.training.drafts.losses import DraftLoss
from fastdec.training.drafts.settings import BlockConfig, EagleConfig, TrainedDraft
from fastdec.training.drafts.start import layers_like
from fastdec.training.drafts.trainer import (
  OnBase,
  plan_heads,
  plan_network,
  train_heads,
  train_network,
)
from fastdec.training.drafts.worth import forecast
from fastdec.training.log import read_metrics
from fastdec.training.progress import Progress
from fastdec.training.stage import (
  check_inputs,
  exclusive,
  folder_of,
  in_place,
  is_made,
  plain,
  stage,
)
from fastdec.training.written import (
  Writing,
  choose_held_out,
  read_content,
  read_seconds,
  write_part,
)

with extras.explained():
  from fastdec.training.run import RunConfig, time_step

GUESSES = 7  # of a draft
HEADS = 4  # Medusa's
HEADS_ROWS = 16
PASSES = 3  # guesses after each place that a draft learns by
STEPS = 2000
TOKENS = 2048  # of a batch
RATE = 1e-3  # at its peak
MUON = 10.0  # times that is the rate of a draft's kernels, but not of Medusa's heads
CLIP = 1.0
BLOCKS: dict[str, Any]
BLOCKS = {  # kinds of blocks that others have: their changes to `BlockConfig`
  'dflash': {'markov': 0},
  'jetspec': {'causal': True, 'edge': 'none'},
  'domino': {'edge': 'rnn'},
  'dflash2': {'edge': 'selector', 'conv': 2},
  'lilicorr': {'edge': 'correlator'},
}
KINDS = 'eagle', 'eagle3', 'block', *BLOCKS, 'heads'
PUBLISHED = 'eagle3', *BLOCKS  # kinds that are written as others write them too
LOSSES = {'kl': {'ce': 0.0, 'kl': 1.0}, 'ce': {}}  # --loss: its weights
DROPPED = 'tv', 'nla', 'hybrid'  # values that --loss took before
MEASURED = 40  # held-out texts, at most, that are replayed at the end
FOR_TEXT, FOR_STEPS = 0.6, 0.85  # of a budget; of what is left of it then
FEW = 200  # steps: fewer teach a draft little
LEAST = 1.05  # tokens a call of a draft that may be worth using
HELD_OUT = 20  # one of 20 texts is held out
ANSWER = 256  # tokens of an answer in a chat, at most
DEEP = 8  # layers of a model from which a draft reads three
WRITTEN = 32  # texts written at once
PART = 64  # texts between two points to resume from
TEXTS = 'train-draft-text'  # the folder of a model's texts
SAMPLING = ('temperature',)
TUNING = '3m'
REMEDY = 'give another --out in the same folder, which uses the same texts, or remove it'


@dataclasses.dataclass(frozen=True)
class Medusa:
  """Settings of Medusa's heads, for `drafts.trainer`."""

  draw: str = 'all'
  decay: float = 0.8
  anchors: int = 16  # places of each row, drawn again in each step
  p1_share: float = 0.0

  def module(self, model: Any, k: int) -> MedusaHeads:
    """Returns the heads for blocks of k tokens."""
    return MedusaHeads(k - 1, model.d_model, vocab_size=model.vocab_size)

  def fresh(self, module: Any, model: Any, trunk: Any) -> None:
    """Returns None: the heads begin as their `init` draws them."""


def main(words: Sequence[str]) -> None:
  begin = wallclock.now()
  args = _read(words)
  programs.keep()
  if args.devices > jax.device_count():
    raise UserError(f'--devices={args.devices} is not possible: there are {jax.device_count()}')
  if args.rows is not None and args.rows % args.devices:
    raise UserError(
      f'--rows={args.rows} cannot be divided among {args.devices} devices: give a multiple of them'
    )
  if args.as_is:
    prompts = [('text', text) for text in read_texts(pathlib.Path(args.prompts))]
  else:
    prompts = read_by_category(pathlib.Path(args.prompts))
  if len({read_content(prompt) for _, prompt in prompts}) < 2:
    raise UserError(f'{args.prompts} has 1 prompt, which is held out: give more to train on')

  if args.max_len is None:
    is_chat = args.chat or args.system is not None
    if is_chat or any(type(prompt) is not str for _, prompt in prompts):
      args.max_len = ANSWER
    else:
      args.max_len = DEFAULT_MAX_LEN

  # Refuse another training, and what may not be replaced, before any work.
  out = place(args.out)
  work, published = out.with_name(f'{out.name}.training'), out.with_name(f'{out.name}.published')
  of_texts = _text_inputs(args, [prompt for _, prompt in prompts])
  inputs = {'format': 'stages', **vars(args), **of_texts}
  if args.start is not None:
    inputs['start'] = draft_content(args.start)
  del inputs['out'], inputs['no_tune']
  check_inputs(work, inputs, REMEDY)
  if not is_made(work):
    is_free = is_replaceable(out)
    if args.kind == 'heads':
      is_free = not out.exists()
    if not is_free and not (work / 'draft' / 'TRAINED').is_file():
      raise UserError(f'--out={out} is there already, and is not just a draft: give a new folder')
    place_for_folder(out)
    place_to_write(f'{out}.tuned.json')
    if args.kind in PUBLISHED and published.exists() and not work.exists():
      raise UserError(f'{published} is there already: give another --out, or remove it')

  # Train, in a folder that is a stage.
  def make(folder: pathlib.Path, **_: Any) -> None:
    _make(args, prompts, of_texts, begin, out, published, folder)

  is_new = in_place(work, make, remedy=REMEDY, **inputs)
  if not is_new:
    if not out.exists():
      _copy_result(work, out)
    print(f'{out} is done already: use it by {_flag(args)}')
    return
  tokens = read_json(work / 'account.json')['tokens']
  if tokens is not None and tokens < LEAST:
    print(
      f'{out} is not worth using yet, with {tokens:.2f} tokens a call on held-out prompts: train it'
      ' longer, by more --steps or a longer --budget'
    )
    return
  print(f'{out} is a draft for {args.model}: use it by {_flag(args)}', flush=True)

  # Find out whether it pays here: the command takes the place of this process, and of its memory.
  if not (args.no_tune or args.as_is):
    tuning = ['tune', f'--model={args.model}', _flag(args)]
    tuning += [f'--prompts={work}/texts/held-out.jsonl', f'--max-len={args.max_len}']
    tuning += [f'--budget={TUNING}', f'--output={out}.tuned.json']
    tuning += ['--chat'] * args.chat
    if args.system is not None:
      tuning.append(f'--system={args.system}')
    for name, value in args.template or ():
      tuning.append(f'--template={name}={to_json(value)}')
    if args.dtype is not None:
      tuning.append(f'--dtypes={args.dtype}')
    print(f'\nfastdec {shlex.join(tuning)}', flush=True)
    os.execv(sys.executable, [sys.executable, '-m', 'fastdec', *tuning])


def _loss(text: str) -> str:
  """The type of --loss."""
  if text in DROPPED:
    raise argparse.ArgumentTypeError(
      f'={text} is no longer supported, since it was measured as no better than kl: use kl or ce'
    )
  return one_of(*LOSSES)(text)


def _read(words: Sequence[str]) -> argparse.Namespace:
  parser = Parser('train-draft', __doc__)
  opening.add_model(parser)
  opening.add_prompts(parser)
  parser.add_argument('--out', required=True, help='folder for the draft')
  parser.add_argument('--kind', type=one_of(*KINDS), default='eagle', help='as above (eagle)')
  parser.add_argument('--as-is', action='store_true', help='trains on the lines themselves')
  parser.add_argument('--temperature', type=number, help='of the texts, which are sampled, if > 0')
  opening.add_dtype(parser)
  parser.add_argument('--start', help='trained draft of this kind and model, to train further')
  parser.add_argument('--words', type=whole(0), default=8192, help='of a draft (8192); 0: all')
  parser.add_argument('--loss', type=_loss, default='kl', help=f'{", ".join(LOSSES)} (kl)')
  parser.add_argument('--steps', type=whole(2), help=f'of training ({STEPS}, or by --budget)')
  parser.add_argument('--budget', type=duration, help='time for texts and training, such as 15m')
  parser.add_argument('--rows', type=whole(1), help=f'of a batch (those of {TOKENS} tokens)')
  parser.add_argument(
    '--devices', type=whole(1), default=1, help='that each batch is divided among (1)'
  )
  parser.add_argument(
    '--seed', type=whole(0, LAST_SEED), default=0, help='of fresh layers and batches (0)'
  )
  parser.add_argument(
    '--no-tune', action='store_true', help='ends with a prediction, without fastdec tune'
  )
  opening.add_length(parser)
  parser.set_defaults(max_len=None)
  opening.add_no_cache(parser)
  return parser.read(words)


def _flag(args: argparse.Namespace) -> str:
  """Returns the flag by which other commands take the draft."""
  if args.kind == 'heads':
    return f'--heads={args.out}'
  return f'--draft={args.out}'


def _text_inputs(args: argparse.Namespace, prompts: Sequence[Prompt]) -> dict[str, Any]:
  """Returns the settings on which the model's texts depend."""
  inputs = {
    'model': folders.content(args.model),
    'prompts': hash_prompts(prompts),
    'max_len': args.max_len,
    **opening.pick_flags(args, SAMPLING),
    **prompt_file.chat_settings(args),
  }
  if args.dtype is not None:
    inputs['dtype'] = args.dtype
  return inputs


def _make(
  args: argparse.Namespace,
  prompts: Sequence[tuple[str, Any]],
  inputs: Mapping[str, Any],
  begin: float,
  out: pathlib.Path,
  published: pathlib.Path,
  work: pathlib.Path,
) -> None:
  """Trains the draft of the flags: the stage in OUT.training.

  Args:
    args: the flags.
    prompts: categories and prompts.
    inputs: all that the texts depend on.
    begin: the time at which the command was given, from which a budget counts.
    out, published: folders for the draft.
    work: the stage's folder.
  """
  # Read the model and the prompts.
  templated = opening.apply_chat_flags(
    args, [prompt for _, prompt in prompts], are_texts=args.as_is
  )
  generator = _open_model(args, templated)
  model, sources, rests = generator.model, [], {}
  if args.as_is:  # the first token of a text is its prompt
    for index, ids in enumerate(opening.encode_texts(args, generator.tokenizer, templated)):
      first, *rests[index] = [*_drop_start(model, ids), *model.eos_ids[:1]]
      sources.append([first])
  else:
    sources = [generator.read(prompt)[0] for prompt in templated]

  # All texts fit into rows of this length.
  longest = max(map(len, rests.values()), default=args.max_len)
  length = max(map(len, sources))
  if model.start_id is not None:
    length = max(length, longest)
  else:
    length = min(length + longest, model.max_positions or math.inf)
  plan = _Plan.of(args, model, length)
  is_planned = args.budget is not None and args.steps is None
  if is_planned and not (work / 'texts').exists():
    _check_budget(plan, begin, work)

  # Let the model write its texts, and hold some of them out.
  def choose(folder: pathlib.Path, **_: Any) -> None:
    order = np.random.default_rng(0).permutation(len(sources)).tolist()
    written = {index: rests[index] for index in order if index in rests}
    spent = wallclock.now() - begin
    if not args.as_is:
      written, spent = _write_texts(args, generator, sources, order, inputs, out.parent, spent)
    _save_texts(folder, model, prompts, sources, written, length)
    write_json(folder / 'spent.json', {'seconds': spent})

  texts = stage(work, 'texts', choose, **inputs)
  held_out = read_held_out(texts, model)
  print(f'{len(held_out):,} of the texts are held out', flush=True)

  # Choose the number of steps, and train.
  steps = args.steps or STEPS
  if is_planned:

    def count(folder: pathlib.Path, **_: Any) -> None:
      # A command that was killed plans as if it had not been.
      spent = read_json(texts / 'spent.json')['seconds'] - wallclock.now()
      seconds = plan.time_step(texts, work)
      left = FOR_STEPS * (args.budget - spent - wallclock.now())
      write_json(folder / 'steps.json', {'steps': max(int(left / seconds), 2)})

    folder = stage(work, 'steps', count, data=plan.on_text(texts, STEPS)['data'])
    steps = read_json(folder / 'steps.json')['steps']
  on_text = plan.on_text(texts, steps)
  trained = stage(work, 'draft', plan.train, **plan.settings, **on_text)

  # Write the draft, give an account of it, and remove what took much room.
  _copy_result(work, out)
  if args.kind in PUBLISHED and not published.exists():
    publish_draft(published, fd.load_draft(out), model.layers)
    print(f'{published} holds it as {args.kind} is published')
  tokens = None
  if args.kind != 'heads':
    draft = fd.load_draft(out, choose_draft_type(open_fast(args.model, args.dtype), args.dtype))
    _show_curve(draft, on_text['data'].written_words(), trained, steps)
    tokens = _show_worth(args, draft, Bound(model, generator.params), held_out)
  write_json(work / 'account.json', {'tokens': tokens})
  for folder in work.glob('states-*'):
    if folder.is_symlink():
      folder.unlink()
    else:
      shutil.rmtree(folder, ignore_errors=True)


@dataclasses.dataclass(frozen=True)
class _Plan:
  """How a draft is trained, apart from the texts and the number of steps."""

  args: argparse.Namespace
  target: Bound
  rows: int  # of a batch
  length: int  # tokens of a row
  prepare: Any  # of `drafts.trainer`: makes a training that can be timed ...
  train: Any  # ... and carries it out
  settings: dict[str, Any]  # that both take

  @classmethod
  def of(cls, args: argparse.Namespace, model: Any, length: int) -> '_Plan':
    """Plans by the flags, for texts of at most this length."""
    target = Bound(model, open_folder(args.model).params(as_stored=True))
    if args.kind == 'heads':
      rows = args.rows or args.devices * HEADS_ROWS
      settings: dict[str, Any] = {'heads': Medusa(), 'k': HEADS + 1}
      return cls(args, target, rows, length, plan_heads, train_heads, settings)

    rows = args.rows or args.devices * max(TOKENS // length, 1)
    places, anchors = 2 * TOKENS * args.devices, 0
    if rows * length > places:
      anchors = max(places // rows, 1)  # a batch with too many places learns at a sample of them
    loss = DraftLoss(passes=PASSES, anchors=anchors, **LOSSES[args.loss])
    draft: Any = _choose_draft(args, model)
    if args.start is not None:
      draft = TrainedDraft(args.start, GUESSES)
    settings = {'draft': draft, 'loss': loss, 'sample': 0}
    return cls(args, target, rows, length, plan_network, train_network, settings)

  def on_text(self, folder: pathlib.Path, steps: int) -> dict[str, Any]:
    """Returns the fields of `OnBase` for the texts in a folder."""
    args, is_watched = self.args, self.args.kind != 'heads'
    return {
      'base': folders.content(args.model),
      'data': OwnText(folder, self.target, args.model, self.rows, self.length, is_watched),
      'run': _plan_run(args, self.rows, steps),
      'seed': args.seed,
      'order': args.seed,
      'mesh': MeshConfig(data=args.devices),
    }

  def time_step(self, folder: pathlib.Path, work: pathlib.Path) -> float:
    """Returns the seconds of a step on the texts in a folder."""
    on = OnBase(**self.on_text(folder, STEPS))
    return time_step(self.prepare(work, on=on, **self.settings), on.run, on.mesh)


def _check_budget(plan: _Plan, begin: float, work: pathlib.Path) -> None:
  """Raises UserError if --budget leaves too few steps, before any text is written."""
  # A step takes as long with random words as with texts by the model.
  folder = work / 'stand-in'
  shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed
  (folder / 'texts').mkdir(parents=True)
  shape = 4 * plan.rows, plan.length
  words = np.random.default_rng(0).integers(plan.target.module.vocab_size, size=shape).tolist()
  save_texts(folder / 'texts', [(ids, ids) for ids in words], [(words[0], words[0])])
  print('a step is timed on texts of random words', flush=True)
  seconds = plan.time_step(folder / 'texts', work)
  shutil.rmtree(folder)

  spent, share = wallclock.now() - begin, FOR_STEPS * (1 - FOR_TEXT)
  steps = max(int(share * (plan.args.budget - spent) / seconds), 0)
  if steps < FEW:
    wanted = math.ceil((spent + FEW * seconds / share) / 60)
    raise UserError(
      f'--budget={plan.args.budget:g}s is too short: after the texts it leaves {steps} steps of'
      f' {seconds:.2g} s, and a draft needs {FEW} or more: give --budget={wanted}m, or'
      f' --steps={FEW} and fewer prompts'
    )


def _write_texts(
  args: argparse.Namespace,
  generator: fd.Generator,
  sources: Sequence[list[int]],
  order: Sequence[int],
  inputs: Mapping[str, Any],
  root: pathlib.Path,
  spent: float,
) -> tuple[dict[int, list[int]], float]:
  """Returns what the model writes after each prompt, or has written before, and the seconds of the
  budget that are spent.

  The texts are in a folder in `root`, which all trainings on them share. A budget has time for as
  many parts as fit, and at least for one. A part that is there counts with the time that it took.

  Args:
    args: the flags.
    generator: the model.
    sources: the ids of the prompts.
    order: of the prompts.
    inputs: all that the texts depend on.
    root: gets the folder.
    spent: seconds of the budget before the texts.
  """
  target = Bound(generator.model, generator.params)
  key = key_of(generator.strategy, 0)
  writing = Writing(
    target, generator.strategy, args.max_len, WRITTEN, key, processors=generator.processors
  )
  folder, written, cut = folder_of(root, TEXTS, inputs), {}, 0
  with exclusive(folder / 'lock'), Progress(len(order), 'text') as progress:
    progress.note(f'texts of {len(order):,} prompts are kept in {folder}')
    write_json(folder / 'inputs.json', plain(inputs))
    for first in range(0, len(order), PART):
      part = order[first : first + PART]
      asked = [sources[index] for index in part]
      outputs = write_part(folder, writing, asked, first)
      for index, (ids,) in zip(part, outputs, strict=True):
        written[index] = ids
        cut += len(ids) == args.max_len and ids[-1] not in generator.model.eos_ids
      progress.add(len(part))
      progress.show(f'{cut:,} of them were cut at --max-len={args.max_len}')

      # Stop if another part would take too long.
      seconds = read_seconds(folder, asked, first)
      spent += seconds
      if args.budget is not None and FOR_TEXT * args.budget - spent < seconds:
        break
  return written, spent


def _save_texts(
  folder: pathlib.Path,
  model: Any,
  prompts: Sequence[tuple[str, Prompt]],
  sources: Sequence[list[int]],
  written: Mapping[int, list[int]],
  length: int,
) -> None:
  """Divides texts into those that a draft learns and those that are held out, and writes them.

  Args:
    folder: of the stage.
    model: the model.
    prompts: categories and prompts, as in the file.
    sources: their ids.
    written: what the model wrote after some of them, in a mixed order.
    length: the most tokens of a text.
  """
  contents = {index: read_content(prompts[index][1]) for index in written}
  held_out = choose_held_out(list(contents.values()), HELD_OUT)
  learnt, watched, lines = [], [], []
  for index, ids in written.items():
    pair = sources[index], ids
    if model.start_id is None:
      text = (_drop_start(model, sources[index]) + ids)[:length]
      pair = text, text
    if contents[index] not in held_out:
      learnt.append(pair)
      continue
    watched.append(pair)
    category, prompt = prompts[index]
    kind = 'messages'
    if isinstance(prompt, str):
      kind = 'question' if isinstance(prompt, Question) else 'prompt'
    record = {'category': category, kind: prompt, 'ids': sources[index]}
    lines.append(to_json(record, ensure_ascii=False) + '\n')
  if not learnt:
    raise UserError('all texts begin alike, and are held out: give more different prompts')
  save_texts(folder, learnt, watched)
  write_text(folder / 'held-out.jsonl', ''.join(lines))


def read_held_out(folder: pathlib.Path, model: Any) -> list[tuple[str, list[int], list[int]]]:
  """Returns the held-out part of a stage of texts: categories, ids of prompts and of texts."""
  pairs = TokenPairs.load(folder / 'held-out.npy')
  assert pairs is not None  # `save_texts` has written it
  texts = []
  for index, (_, record) in enumerate(json_lines(folder / 'held-out.jsonl')):
    text = pairs.target[index].tolist()
    if model.start_id is None:  # the text follows the prompt
      text = text[len(_drop_start(model, record['ids'])) :]
    texts.append((record['category'], record['ids'], text))
  return texts


def _drop_start(model: Any, ids: list[int]) -> list[int]:
  """Returns the ids of a text without its first token if the model itself puts it there."""
  if ids[:1] == [model.config.bos_id]:
    return ids[1:]
  return ids


def _copy_result(work: pathlib.Path, out: pathlib.Path) -> None:
  """Copies the draft or the heads of a finished training to their place."""
  result = work / 'draft' / 'draft'
  if not result.is_dir():
    result = work / 'draft' / 'heads'
  with whole_folder(out) as partial:
    shutil.copytree(result, partial, dirs_exist_ok=True)


def _open_model(args: argparse.Namespace, prompts: Sequence[Prompt]) -> fd.Generator:
  """Reads the model in the type in which it writes; by default that in which it is stored."""
  max_len = args.max_len
  if args.as_is:
    max_len = 1  # nothing is written
  generator = opening.open_without_weights(
    args.model, args.dtype, prompts, max_len, template=opening.read_template(args)
  )
  model: Any = generator.model
  if args.as_is and model.start_id is not None:
    raise UserError(f'--as-is is for a model that continues a text, and {args.model} reads one')

  # Refuse a model that has no such drafts before weights are read.
  if args.kind != 'heads':
    layers = layers_like(model, 1)
    is_language_model = isinstance(layers, LMConfig) and not isinstance(model, T5)
    if args.kind in PUBLISHED and not is_language_model:
      raise UserError(f'--kind={args.kind} is for language models: give eagle or block')
    most = model.vocab_size - 1
    if args.kind == 'eagle3' and not 0 < args.words <= most and args.start is None:
      raise UserError(f'--words={args.words} is not possible for EAGLE-3: give 1 to {most}')
  if args.start is not None:
    _check_start(args, model)
  folder = open_fast(args.model, args.dtype)
  return dataclasses.replace(
    generator,
    params=folder.params(as_stored=folder.dtype is None and args.dtype is None),
    strategy=with_settings(generator.strategy, opening.pick_flags(args, SAMPLING)),
  )


def _check_start(args: argparse.Namespace, model: Any) -> None:
  """Raises UserError if the draft of --start has a different kind or model."""
  own, usual = Bound(*fd.load_draft(args.start)), None
  if args.kind != 'heads':
    usual = _choose_draft(args, model).network(model)
  for name in ('entry', 'edge_kind', 'conv', 'causal'):
    has, needs = getattr(own.module, name, None), getattr(usual, name, None)
    is_size = name == 'conv' and has and needs
    if usual is None or (has != needs and not is_size):
      raise UserError(
        f'--start={args.start} is not a draft of --kind={args.kind}: it has {name}={has!r}, and'
        f' that kind has {needs!r}'
      )
  check_target(own, model)


def _choose_draft(args: argparse.Namespace, model: Any) -> EagleConfig | BlockConfig:
  """Returns the settings of a new draft."""
  settings: dict[str, Any] = {'published': args.kind in PUBLISHED}
  settings['init'] = 'target'
  if isinstance(model, T5):
    settings['init'] = 'fresh'
  if 0 < args.words < model.vocab_size and args.kind not in BLOCKS:
    settings['words'] = args.words
  if isinstance(model, LM) and model.layers >= DEEP:
    settings['taps'] = number_taps(RULE, model.layers)
  elif args.kind in PUBLISHED:
    settings['taps'] = (max(model.layers - 1, 0),)
  if args.kind == 'eagle3':
    settings['entry'] = 'beside'
  if args.kind in BLOCKS:
    settings |= {'entry': 'masks', **BLOCKS[args.kind]}
  if args.kind.startswith('eagle'):
    return EagleConfig(guesses=GUESSES, **settings)
  return BlockConfig(k=GUESSES + 1, **settings)


def _plan_run(args: argparse.Namespace, rows: int, steps: int) -> RunConfig:
  """Returns the settings of a training of `steps` steps."""
  warmup, every = max(min(200, steps // 10), 1), max(steps // 20, 1)
  muon = MUON
  if args.kind == 'heads':
    muon = 0.0
  return RunConfig(
    steps, warmup, every, schedule='linear', constant=RATE, rows=rows, b2=0.98, muon=muon, clip=CLIP
  )


def _show_curve(draft: Any, written: np.ndarray, folder: pathlib.Path, steps: int) -> None:
  """Prints how a draft learnt, and what more steps would bring.

  Args:
    draft: the network and its parameters.
    written: the tokens that it was trained on.
    folder: of the training.
    steps: that it took.
  """
  if 'ids' in draft[1]:
    words = np.asarray(draft[1]['ids'])
    share = np.isin(written, words).mean()
    print(f'the draft guesses among {len(words):,} words, which are {share:.1%} of the texts')
  curve = {}
  for row in read_metrics(folder):
    if 'eval' in row:
      curve[row['step']] = row['eval']['dev tokens a call']
  print(f'\nTokens a call on held-out texts, as a chain of {GUESSES}:')
  print('  '.join(f'step {step}: {value:.2f}' for step, value in curve.items()))
  more = forecast(list(curve), list(curve.values()), 2 * steps)
  if more is not None:
    print(f'If the curve continues, twice the steps would bring {more[0]:.2f} +- {more[1]:.2f}')


def _show_worth(
  args: argparse.Namespace,
  draft: Any,
  target: Bound,
  texts: Sequence[tuple[str, list[int], list[int]]],
) -> float:
  """Replays texts with a draft, and returns the tokens a call of a chain.

  If these are few, the draft is tried in no other way. Without `fastdec tune`, which follows, the
  tuner predicts here what they are worth on this machine.

  Args:
    args: the flags.
    draft: the network and its parameters.
    target: the model and its parameters.
    texts: categories, ids of prompts and of texts, which the draft has not seen.
  """
  shapes = usual_for(draft).sizes([5], [16])[:2]
  lines, measured = [], sorted(texts[:MEASURED])
  for strategy in shapes:
    worth = tokens_a_call(target, strategy, measured)
    lines.append([label(strategy), *(f'{x:.2f}' for x in worth.values())])
    if strategy is shapes[0]:
      first = worth['all']
      if first < LEAST:
        return first
  print('\nTokens a call on held-out texts, by category:')
  print(columns([['', *worth], *lines]))
  if args.no_tune or args.as_is:
    # By this budget nothing is timed but the calls.
    asked = [ids for _, ids, _ in measured]
    model, params = pack_if_faster(*target)
    tuned = fd.tune(model, params, shapes[:1], asked, args.max_len, budget=1e-3)
    _, chain = tuned.table
    print(
      f'{chain.name} is predicted to be {chain.predicted:.2f} times as fast as greedy decoding here'
    )
  return first
