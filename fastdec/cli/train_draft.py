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
  heads    Medusa's heads: residual blocks on the model's last state (--heads)

All but heads learn the model's law at every place of a text, over the --words most frequent words
of all texts; with --loss=ce they learn only the token that the model wrote. The model runs once:
its states are kept in OUT.training, where the disk has twice the room.

--budget=15m plans for a time: three fifths for texts, whose last ones may then be missing, and as
many steps as fit into the rest. --start=DRAFT goes on with a trained draft, with more steps or
other texts; it has the words of that draft.

A twentieth of the texts is held out. On it the draft is watched as it learns, its confidences are
fitted, by which trees grow, and at the end it decodes: tokens a call, by category of prompts (those
of JSON lines), and what more steps would bring. Beside OUT the model's texts are kept as they are
written, in train-draft-text-....jsonl, which serves all kinds and steps, and the checkpoints in
OUT.training: the same command resumes. Needs the extra fastdec[train].

Its last act is `fastdec tune`, of three minutes, which finds out whether the draft pays on this
machine, and writes OUT.tuned.json: fastdec generate --strategy=OUT.tuned.json --draft=OUT.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

import fastdec as fd
from fastdec import extras, folders
from fastdec.cli import opening, own_texts, prompt_file
from fastdec.cli.flags import Parser, duration, number, one_of, whole
from fastdec.cli.own_texts import Text
from fastdec.cli.prompts import Prompt, hash_prompts, read_by_category, read_texts
from fastdec.cli.show import columns
from fastdec.data.text.packing import PackedSource
from fastdec.data.text.tokens import Ragged, TokenPairs
from fastdec.decoding.description import label, usual_for
from fastdec.decoding.strategy import with_settings
from fastdec.errors import UserError
from fastdec.files import place, place_for_folder, read_json, write_json
from fastdec.folders.drafts import is_replaceable
from fastdec.heads.block import BlockNetwork
from fastdec.heads.draft import check_target
from fastdec.heads.eagle import EagleNetwork
from fastdec.heads.medusa import MedusaHeads
from fastdec.heads.shortlist import most_frequent
from fastdec.hub.published import publish_draft
from fastdec.kernels import sharding
from fastdec.kernels.sharding import REPLICATED, MeshConfig, make_mesh
from fastdec.models.api import Params
from fastdec.models.lm import LM, LMConfig
from fastdec.models.t5 import T5
from fastdec.models.taps import RULE, number_taps
from fastdec.struct import Bound
from fastdec.text import programs
from fastdec.text.load import choose_draft_type, open_fast, open_folder
from fastdec.training.checkpoint import average_checkpoints, drop_checkpoints
from fastdec.training.drafts.calibration import warmth_of
from fastdec.training.drafts.kept import keep, numbers_of
from fastdec.training.drafts.losses import DraftLoss, draft_accuracy
from fastdec.training.drafts.start import begin, layers_like
from fastdec.training.drafts.tasks import frozen_draft_task, split
from fastdec.training.drafts.worth import forecast, tokens_a_call
from fastdec.training.log import read_metrics
from fastdec.training.loop import Evaluate, LoopConfig, make_step, train
from fastdec.training.optimizer import OptimizerConfig
from fastdec.training.state import Task, TrainState, frozen_heads_task
from fastdec.tuning.tuned import hash_part

with extras.explained():
  import grain

ANCHORS = 16  # places of each row that heads learn at, drawn anew in each step
GUESSES = 7  # of a draft
HEADS = 4  # Medusa's
HEADS_ROWS = 16
PASSES = 3  # guesses after each place that a draft learns by
STEPS = 2000
TOKENS = 2048  # of a batch
RATE = 1e-3  # at its peak
MUON = 10.0  # times that is the rate of a draft's kernels, but not of Medusa's heads
CLIP = 1.0
KINDS = 'eagle', 'eagle3', 'block', 'dflash', 'heads'
PUBLISHED = 'eagle3', 'dflash'  # kinds that are written as others write them too
LOSSES = {'kl': {'ce': 0.0, 'kl': 1.0}, 'ce': {}}  # --loss: its weights
DROPPED = 'tv', 'nla', 'hybrid'  # values that --loss took before
HELD_OUT = 20  # one of 20 texts is held out
MEASURED = 40  # held-out prompts, at most, that are decoded at the end
FOR_TEXT, FOR_STEPS = 0.6, 0.85  # of a budget; of what is left of it then
MOST = 64  # tokens of each
DEV = 8  # held-out batches, at most, on which it is watched
DEEP = 8  # layers of a model from which a draft reads three
WRITTEN = 32  # texts written at once
SAMPLING = ('temperature',)
TUNING = '3m'
PLAN = 'plan.json'  # what a budget was found to allow
DONE = 'done.json'  # a hash of the finished draft


def main(words: Sequence[str]) -> None:
  begun = time.monotonic()
  args = _read(words)
  programs.keep()
  if args.devices > jax.device_count():
    raise UserError(f'--devices={args.devices} is not possible: there are {jax.device_count()}')
  if args.rows is not None and args.rows % args.devices:
    raise UserError(
      f'--rows={args.rows} cannot be divided among {args.devices} devices: give a multiple of them'
    )
  mesh = make_mesh(MeshConfig(data=args.devices))

  # Look at what is there: the finished draft, or the training of another one.
  out = place(args.out)
  work = out.with_name(f'{out.name}.training')
  published = out.with_name(f'{out.name}.published')
  if args.as_is:
    prompts = [('text', text) for text in read_texts(pathlib.Path(args.prompts))]
  else:
    prompts = read_by_category(pathlib.Path(args.prompts))
  if len(prompts) < 2:
    raise UserError(f'{args.prompts} has 1 prompt, which is held out: give more to train on')
  plain = [prompt for _, prompt in prompts]
  asked = opening.apply_chat_flags(args, plain, are_texts=args.as_is)
  text_record = {
    'model': folders.content(args.model),
    'prompts': hash_prompts(plain),
    'max_len': args.max_len,
    **opening.pick_flags(args, SAMPLING),
    **prompt_file.chat_settings(args),
  }
  if args.dtype is not None:
    text_record['dtype'] = args.dtype
  if _is_done(args, out, work, text_record):
    drop_checkpoints(work)
    print(f'{out} is done already: use it by {_flag(args)}')
    return
  place_for_folder(out)
  if published.exists() and not (work / 'settings.json').is_file() and args.kind in PUBLISHED:
    raise UserError(f'{published} is there already: give another --out, or remove it')
  generator = _opened(args, asked)
  write_json(work / 'settings.json', _record(args, text_record))
  plan = read_json(work / PLAN) if (work / PLAN).is_file() else {}

  # Let the model write its texts, and hold some of them out.
  if args.as_is:
    texts = own_texts.as_is(args, generator, asked)
  else:
    key = prompt_file.hashed(json.dumps(text_record).encode())
    file = out.with_name(f'train-draft-text-{key}.jsonl')
    seconds = None if args.budget is None else FOR_TEXT * args.budget
    most = plan.get('texts')
    texts = own_texts.written(file, generator, prompts, asked, text_record, seconds, most)
    if args.budget is not None:
      plan['texts'] = len(texts)
      write_json(work / PLAN, plan)
  count = max(len(texts) // HELD_OUT, 1)
  held_out, learnt = texts[:count], texts[count:]
  longest = 0
  for text in texts:
    longest = max(longest, len(text.source), len(text.target))
  of_device = HEADS_ROWS if args.kind == 'heads' else max(TOKENS // longest, 1)
  rows = args.rows or args.devices * of_device
  places = 2 * TOKENS * args.devices  # that a batch learns at
  anchors = 0 if rows * longest <= places else max(places // rows, 1)

  # Run the model once over all texts, and choose the words.
  target = Bound(generator.model, open_folder(args.model).params(as_stored=True))
  draft = None if args.kind == 'heads' else _fresh(args, target, learnt)
  batches = []
  for name, part in {'learnt': learnt, 'held out': held_out}.items():
    sources = Ragged.of([text.source for text in part])
    pairs, kept = TokenPairs(sources, Ragged.of([text.target for text in part])), None
    if draft is not None:
      numbers = numbers_of(pairs)
      numbered_batches = PackedSource(pairs, rows, longest, 0, numbers)
      place_of = work / f'states of {name}'
      kept = keep(target, draft.module.taps, numbered_batches, numbers, place_of)
    batches.append(PackedSource(pairs, rows, longest, args.seed, kept or {}))
  data, dev = grain.MapDataset.source(batches[0]), batches[1]
  dev = [dev[index] for index in range(min(dev.batches_per_epoch, DEV))]

  # Train the draft, and save the average of its last checkpoints.
  task, save, evaluate = _task(args, target, draft, dev, anchors)
  d_model = generator.model.d_model
  if args.budget is not None and 'steps' not in plan:
    left = FOR_STEPS * (args.budget - (time.monotonic() - begun))
    plan['steps'] = _steps_in(left, task, data, _optimizer(args, d_model, STEPS), mesh)
    write_json(work / PLAN, plan)
  steps = args.steps or plan.get('steps') or STEPS
  every = max(steps // 20, 1)
  loop = LoopConfig(
    steps, log_every=min(50, every), eval_every=every, checkpoint_every=every, keep=2
  )
  optimizer, key = _optimizer(args, d_model, steps), jax.random.key(args.seed)
  train(task, data, optimizer, loop, work, key, evaluate, mesh=mesh)
  save(average_checkpoints(work, loop.kept))
  if args.kind in PUBLISHED and not published.exists():
    publish_draft(published, fd.load_draft(out), generator.model.layers)
    print(f'{published} holds it as {args.kind} is published')
  if draft is not None:
    decoding = Bound(generator.model, generator.params)  # in the type in which it writes
    trained = fd.load_draft(out, choose_draft_type(open_fast(args.model, args.dtype), args.dtype))
    _tell(trained, decoding, work, steps, held_out)
  write_json(work / DONE, {'content': _content(args)})
  drop_checkpoints(work)
  shutil.rmtree(work / 'states of learnt', ignore_errors=True)
  shutil.rmtree(work / 'states of held out', ignore_errors=True)
  print(f'{out} is a draft for {args.model}: use it by {_flag(args)}', flush=True)

  # Find out whether it pays here: the command takes the place of this process, and of its memory.
  if not (args.no_tune or args.as_is):
    tuning = ['tune', f'--model={args.model}', _flag(args), f'--prompts={args.prompts}']
    tuning += [f'--budget={TUNING}', f'--output={out}.tuned.json']
    tuning += ['--chat'] * args.chat
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
  parser.add_argument('--start', help='trained draft of this kind and model to go on with')
  parser.add_argument('--words', type=whole(0), default=8192, help='of a draft (8192); 0: all')
  parser.add_argument('--loss', type=_loss, default='kl', help=f'{", ".join(LOSSES)} (kl)')
  parser.add_argument('--steps', type=whole(2), help=f'of training ({STEPS}, or by --budget)')
  parser.add_argument('--budget', type=duration, help='time for texts and training, such as 15m')
  parser.add_argument('--rows', type=whole(1), help=f'of a batch (those of {TOKENS} tokens)')
  parser.add_argument(
    '--devices', type=whole(1), default=1, help='that each batch is divided among (1)'
  )
  parser.add_argument(
    '--seed', type=whole(0, opening.LAST_SEED), default=0, help='of fresh layers and batches (0)'
  )
  parser.add_argument('--no-tune', action='store_true', help='ends without fastdec tune')
  opening.add_length(parser)
  opening.add_no_cache(parser)
  return parser.read(words)


def _flag(args: argparse.Namespace) -> str:
  return f'--{"heads" if args.kind == "heads" else "draft"}={args.out}'


def _content(args: argparse.Namespace) -> str:
  """Returns a hash of the finished draft."""
  return hash_part('heads' if args.kind == 'heads' else 'draft network', args.out)


def _record(args: argparse.Namespace, text_record: dict[str, Any]) -> dict[str, Any]:
  """Returns all settings of a training."""
  record = {**vars(args), **text_record}
  del record['out'], record['no_tune']
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
  """Reads the model in the type in which it writes; by default that in which it is stored."""
  max_len = 1 if args.as_is else args.max_len
  generator = opening.open_without_weights(
    args.model, args.dtype, prompts, max_len, template=opening.read_template(args)
  )
  if args.as_is and generator.model.start_id is not None:
    raise UserError(f'--as-is is for a model that continues a text, and {args.model} reads one')
  if args.kind != 'heads':  # refuses a model without such layers, before weights are read
    layers = layers_like(generator.model, 1)
    is_language_model = isinstance(layers, LMConfig) and not isinstance(generator.model, T5)
    if args.kind in PUBLISHED and not is_language_model:
      raise UserError(f'--kind={args.kind} is for language models: give eagle or block')
    most = generator.model.vocab_size - 1
    if args.kind == 'eagle3' and not 0 < args.words <= most and args.start is None:
      raise UserError(f'--words={args.words} is not possible for EAGLE-3: give 1 to {most}')
  if args.start is not None:
    _started(args, generator.model)
  folder = open_fast(args.model, args.dtype)
  strategy = with_settings(generator.strategy, opening.pick_flags(args, SAMPLING))
  return dataclasses.replace(
    generator,
    params=folder.params(as_stored=folder.dtype is None and args.dtype is None),
    rows=WRITTEN,
    strategy=strategy,
  )


def _started(args: argparse.Namespace, model: Any) -> Bound:
  """Reads the trained draft to go on with.

  Raises:
    UserError: it is of another kind, or of another model.
  """
  draft = Bound(*fd.load_draft(args.start))
  kind = EagleNetwork if args.kind.startswith('eagle') else BlockNetwork
  if args.kind == 'heads' or not isinstance(draft.module, kind):
    raise UserError(f'--start={args.start} is no draft of --kind={args.kind}')
  check_target(draft, model)
  return draft


def _fresh(args: argparse.Namespace, target: Bound, texts: Sequence[Text]) -> Bound:
  """Returns the draft to begin with: a trained one, or a fresh one on the target's last layer."""
  model: Any = target.module
  kind = EagleNetwork if args.kind.startswith('eagle') else BlockNetwork
  if args.start is not None:
    return _started(args, model)
  sizes: dict[str, Any] = {'layers': layers_like(model, 1), 'vocab_size': model.vocab_size}
  sizes['d_target'] = model.d_model
  is_published = args.kind in PUBLISHED
  if isinstance(model, LM) and (model.layers >= DEEP or is_published):
    taps = number_taps(RULE, model.layers) if model.layers >= DEEP else (max(model.layers - 1, 0),)
    sizes |= {'taps': taps, 'fuses': True, 'norms_taps': not is_published}
  written = np.concatenate([text.target for text in texts])
  if args.kind == 'eagle3':
    sizes |= {'entry': 'beside', 'recycles_normed': False}
  elif args.kind == 'dflash':
    unread = np.flatnonzero(np.bincount(written, minlength=model.vocab_size) == 0)
    sizes['layers'] = dataclasses.replace(sizes['layers'], qk_norm=True)
    sizes |= {'k': GUESSES + 1, 'entry': 'masks', 'drops_first': True}
    sizes['unknown_id'] = int(unread[-1]) if len(unread) else model.pad_id
  elif args.kind == 'block':
    sizes |= {'k': GUESSES + 1, 'markov': 64}
  words = None
  if 0 < args.words < model.vocab_size and args.kind != 'dflash':
    words = most_frequent(target.module, written, args.words)
    sizes['words'] = len(words)
    share = np.isin(written, words).mean()
    print(f'the draft guesses among {len(words):,} words, which are {share:.1%} of the texts')
  network = kind(**sizes)
  key = jax.random.fold_in(jax.random.key(args.seed), 1)
  init = 'fresh' if isinstance(model, T5) else 'target'
  return Bound(network, begin(network, target, key, init, words))


def _task(
  args: argparse.Namespace, target: Bound, draft: Bound | None, dev: Sequence[Any], anchors: int
) -> tuple[Task, Callable[[Params], None], Evaluate | None]:
  """Returns the task of a kind of draft, and functions that save and that watch what it learns.

  Args:
    args: the flags.
    target: the model.
    draft: what to begin with; None: Medusa's heads.
    dev: held-out batches.
    anchors: places of each row at which a draft learns; 0: all.
  """
  model, params = target
  if draft is None:
    heads = MedusaHeads(HEADS, model.d_model, vocab_size=model.vocab_size)
    task = frozen_heads_task(model, heads, params, draw='all', decay=0.8, anchors=ANCHORS)
    return task, lambda learnt: fd.save_heads(args.out, (heads, learnt), args.model), None
  network, fixed = draft.module, split(draft.params)[1]

  def save(learnt: Params) -> None:
    warmth = warmth_of(Bound(network, learnt | fixed), target, dev, GUESSES, anchors)
    fd.save_draft(args.out, (network, learnt | fixed | {'warmth': jnp.asarray(warmth)}))

  def evaluate(learnt: Params) -> dict[str, float]:
    return draft_accuracy(Bound(network, learnt | fixed), target, dev, GUESSES, anchors)

  loss = DraftLoss(passes=PASSES, anchors=anchors, **LOSSES[args.loss])
  return frozen_draft_task(target, draft, loss), save, evaluate


def _optimizer(args: argparse.Namespace, d_model: int, steps: int) -> OptimizerConfig:
  warmup, muon = max(min(200, steps // 10), 1), 0.0 if args.kind == 'heads' else MUON
  return OptimizerConfig(
    d_model, schedule='linear', constant=RATE, warmup=warmup, steps=steps, b2=0.98, muon=muon,
    clip=CLIP,
  )  # fmt: skip


def _steps_in(
  seconds: float, task: Task, batches: Any, optimizer: OptimizerConfig, mesh: Mesh
) -> int:
  """Returns how many steps fit into a time, by the clock of three."""
  transform, begun = optimizer.build(), 0.0
  state = sharding.place(TrainState.create(task, transform, jax.random.key(0)), mesh, REPLICATED)
  frozen = sharding.place(task.frozen, mesh, REPLICATED)
  step = make_step(task, transform, optimizer.learning_rate)
  for index in range(4):  # the first one compiles
    state = jax.block_until_ready(step(state, frozen, sharding.place_rows(batches[index], mesh))[0])
    begun = begun or time.monotonic()
  return max(int(seconds / ((time.monotonic() - begun) / 3)), 2)


def _tell(
  draft: tuple[Any, Params], target: Bound, work: pathlib.Path, steps: int, texts: Sequence[Text]
) -> None:
  """Prints how a draft learnt, what more steps would bring, and how it decodes held-out prompts."""
  curve = {}
  for row in read_metrics(work):
    if 'eval' in row:
      curve[row['step']] = row['eval']['tokens a call']
  print(f'\nTokens a call on held-out texts, as a chain of {GUESSES}:')
  print('  '.join(f'step {step}: {value:.2f}' for step, value in curve.items()))
  more = forecast(list(curve), list(curve.values()), 2 * steps)
  if more is not None:
    print(f'As the curve goes on, twice the steps would bring {more[0]:.2f} +- {more[1]:.2f}')
  asked = sorted((text.category, text.prompt) for text in texts[:MEASURED])
  lines = []
  for strategy in usual_for(draft).sizes([5], [16])[:2]:  # a chain and a tree
    for temperature in (0, 1):
      sampling = {'temperature': 1.0} if temperature else {}
      worth = tokens_a_call(target, with_settings(strategy, sampling), asked, MOST)
      lines.append([label(strategy), f'{temperature}', *(f'{x:.2f}' for x in worth.values())])
  print('\nTokens a call as it decodes them, by category:')
  print(columns([['', 'temperature', *worth], *lines]))
