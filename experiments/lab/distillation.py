"""Sequence-level distillation: the training sources, as a teacher translates them (Kim and Rush 2016).

  workdir/parts/           shards of outputs, and what they were asked to be
  workdir/train.<source>   lines that translate each other; a source comes once for each of its outputs
  workdir/train.<target>
  workdir/config.json      written last: what made them, and counts

A source that the teacher has no words for, or that is too long for training, keeps the translation it had.
"""

import contextlib
import dataclasses
import hashlib
import json
import pathlib
import time
from typing import Any

import jax
import numpy as np

from experiments.lab.decoding import DistillConfig
from experiments.lab.progress import Progress
from experiments.lab.shards import Shards
from experiments.lab.text import OnText, Text
from fastdec import folders
from fastdec.data.text.corpus import Pair, load_pairs
from fastdec.decoding.pool import decode_each
from fastdec.errors import UserError
from fastdec.files import locked, whole_file, write_json
from fastdec.sharding import partition_of, place
from fastdec.tokenizers.sentencepiece import EOS_ID, Tokenizer, normalise
from fastdec.training.checkpoint import check_workdir, claim_workdir

WAIT = 0.5  # seconds, while other processes have all that is left


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distilling(OnText):
  """A training on text that says how a teacher translates it."""

  distill: DistillConfig


def distill(experiment: Distilling, teacher: pathlib.Path, workdir: pathlib.Path, budget: float | None = None) -> bool:
  """Has the teacher translate the training sources, or goes on; true when the text is whole.

  Args:
    experiment: its text, and its `distill`.
    teacher: the workdir of a finished run over the same pieces.
    workdir: of the result.
    budget: seconds after which no further shard is begun; at least one is.

  Raises:
    UserError: a teacher that is not finished or has another vocabulary, a workdir of something else, a full disk.
  """
  start = time.monotonic()
  model, params = folders.load(teacher)
  tokenizer = folders.load_tokenizer(teacher)
  if getattr(tokenizer, 'model_proto', None) != Text.of(experiment).tokenizer.model_proto:
    raise UserError(f'{teacher} has another vocabulary than this config means: give a teacher trained on the same text')
  pairs = load_pairs(experiment.data.data, 'train', experiment.data.cache)
  record = _record(experiment, model, params, tokenizer, pairs)
  if _is_finished(workdir, record, _files(experiment, workdir)):
    return True
  parts = workdir / 'parts'
  check_workdir(parts, record)
  with locked(parts / 'lock'):
    claim_workdir(parts, record)

  shards = Shards(parts, experiment.distill.shard_size, len(pairs))
  if experiment.devices and jax.process_count() == 1:  # several processes have a shard each
    params = place(params, experiment.devices, partition_of(model, experiment.mesh.model))
  translate = _Teacher(experiment, model, params, tokenizer)
  with Progress(len(pairs), 'sentence') as progress:
    whole = _all_made(shards, lambda span: translate(pairs, span, progress), progress, start, budget)
  if whole:
    with locked(parts / 'lock'):
      if not _is_finished(workdir, record, _files(experiment, workdir)):
        _join(shards, pairs, record, _files(experiment, workdir))
  return whole


def summary(workdir: pathlib.Path) -> str:
  """What is in a finished workdir, in a sentence."""
  counts = json.loads((workdir / 'config.json').read_text())['counts']
  kept = f'{counts["empty"]:,} without an output and {counts["long"]:,} too long keep their translation'
  return f'{workdir} holds {counts["lines"]:,} lines for {counts["sources"]:,} sources ({kept})'


class _Teacher:
  """Translates a shard: for each source its outputs, best first, or None where it is too long."""

  def __init__(self, experiment: Distilling, model: Any, params: Any, tokenizer: Tokenizer) -> None:
    self._settings, self._model, self._params, self._tokenizer = experiment.distill, model, params, tokenizer
    positions = model.max_positions or np.inf
    self._longest = min(experiment.data.row_length, positions)  # longer pairs are left out of training
    a, b = experiment.distill.max_len
    self._max_len = max(int(min(a * self._longest + b, positions)), 1)

  def __call__(self, pairs: list[Pair], span: range, progress: Progress) -> list[list[str] | None]:
    ids = [np.array([*self._tokenizer.encode(pairs[i][0]), EOS_ID], np.int32) for i in span]
    short = [i for i, source in enumerate(ids) if len(source) <= self._longest]
    outputs: list[list[str] | None] = [None] * len(ids)
    progress.add(len(ids) - len(short))
    settings = self._settings
    for finished in decode_each(
      self._model, self._params, [ids[i] for i in short], settings.strategy, self._max_len, settings.rows
    ):
      best, scored = finished.decoded.nbest_tokens, finished.decoded.nbest_scores
      assert best is not None and scored is not None  # which a search has
      for index, tokens, scores in zip(finished.indices, best, scored, strict=True):
        lines = (self._tokenizer.decode(row) for row in tokens[scores > -np.inf].tolist())
        outputs[short[index]] = list(dict.fromkeys(line for line in lines if line))
      progress.add(len(finished.indices))
    return outputs


def _all_made(shards: Shards, make: Any, progress: Progress, start: float, budget: float | None) -> bool:
  """Makes the shards that no other process makes; false where the budget ends first."""
  budget = np.inf if budget is None else budget
  longest, made = 0.0, 0
  while missing := _missing(shards, progress):
    before = made
    for shard in missing:
      since = time.monotonic()
      if made and since - start + longest > budget:
        return False
      with shards.claim(shard) as is_ours:
        if is_ours and shards.read(shard) is None:
          shards.write(shard, make(shards.span(shard)))
          longest, made = max(longest, time.monotonic() - since), made + 1
          progress.log(f'shard {shard + 1}/{len(shards)}')
    if made == before:  # others have all that is left
      if time.monotonic() - start > budget:
        return False
      time.sleep(WAIT)
  return True


def _missing(shards: Shards, progress: Progress) -> list[int]:
  """Shards that are not there, or not whole, which is said."""
  missing = [shard for shard in range(len(shards)) if shards.read(shard) is None]
  for shard in missing:
    if shards.exists(shard):
      progress.note(f'shard {shard + 1} is cut short or damaged: it is made again')
  progress.reset(shards.total - sum(len(shards.span(shard)) for shard in missing))
  return missing


def _join(shards: Shards, pairs: list[Pair], record: dict[str, Any], files: list[pathlib.Path]) -> None:
  """Writes the two files, then the record that says they are whole."""
  counts = {'sources': len(pairs), 'lines': 0, 'empty': 0, 'long': 0}
  with whole_file(files[0]) as sources, whole_file(files[1]) as targets:
    for shard in range(len(shards)):
      records = shards.read(shard)
      assert records is not None  # all are made
      for index, outputs in zip(shards.span(shard), records, strict=True):
        source, target = map(normalise, pairs[index])
        counts['long'] += outputs is None
        counts['empty'] += outputs == []
        for line in outputs or [target]:
          sources.write(source.encode() + b'\n')
          targets.write(line.encode() + b'\n')
          counts['lines'] += 1
  write_json(files[0].with_name('config.json'), {**record, 'counts': counts})


def _is_finished(workdir: pathlib.Path, record: dict[str, Any], files: list[pathlib.Path]) -> bool:
  """Whether the workdir has all it should; a UserError where it has something else."""
  path, counts = workdir / 'config.json', None
  with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
    counts = json.loads(path.read_text())['counts']
  check_workdir(workdir, {**record, 'counts': counts})
  return path.exists() and all(file.exists() for file in files)


def _files(experiment: OnText, workdir: pathlib.Path) -> list[pathlib.Path]:
  return [workdir / f'train.{language}' for language in (experiment.data.source, experiment.data.target)]


def _record(experiment: Distilling, model: Any, params: Any, tokenizer: Tokenizer, pairs: list[Pair]) -> dict[str, Any]:
  """What the outputs depend on: the teacher's and the text's content, and the settings."""
  teacher = hashlib.sha256(repr(model).encode() + tokenizer.model_proto)
  for path, leaf in jax.tree.leaves_with_path(params):
    teacher.update(repr((path, leaf.dtype)).encode() + np.asarray(leaf).tobytes())
  text = hashlib.sha256(str(experiment.data.row_length).encode())
  for pair in pairs:
    text.update(repr(pair).encode())
  settings = dataclasses.asdict(experiment.distill)
  return {'teacher': teacher.hexdigest()[:16], 'text': text.hexdigest()[:16], 'distill': settings}
