"""Sequence-level distillation: the training sources, as a teacher translates them (Kim and Rush 2016).

  workdir/parts/           shards of outputs, and what they were asked to be
  workdir/                 the text and its ids, as `model_text` has them; a source comes once for each of its outputs;
                           config.json also has counts

A source that the teacher has no words for, or that is too long for training, keeps the translation it had.
"""

import dataclasses
import hashlib
import itertools
import json
import pathlib
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.lab.decoding import DistillConfig
from experiments.lab.model_text import author_of, ended, record_of, save_ids
from experiments.lab.progress import Progress
from experiments.lab.shards import Shards
from experiments.lab.text import OnText, Text
from fastdec import folders, gate
from fastdec.data.text.corpus import Corpus, TextData, open_text
from fastdec.data.text.lines import Pair
from fastdec.data.text.tokens import Ragged, TokenPairs
from fastdec.decoding.pool import decode_each
from fastdec.decoding.protocol import Decoded
from fastdec.errors import UserError
from fastdec.files import locked, whole_file, write_json
from fastdec.sharding import partition_of, place
from fastdec.tokenizers.sentencepiece import EOS_ID, Tokenizer, normalise
from fastdec.training.checkpoint import check_workdir, claim_workdir

WAIT = 0.5  # seconds, while other processes have all that is left
Outputs = list[tuple[str, list[int]]]  # lines and their ids, best first


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
  corpus = open_text(experiment.data.data, experiment.data.cache)
  text, count = _counted(corpus, experiment.data.row_length)
  parts = workdir / 'parts'
  there = record_of(workdir) or record_of(parts)
  record = {'teacher': author_of(model, params, tokenizer), 'text': text, 'distill': asked(experiment.distill, there)}
  if _is_finished(workdir, record, _files(experiment, workdir)):
    return True
  check_workdir(parts, record)
  with locked(parts / 'lock'):
    claim_workdir(parts, record)

  shards = Shards(parts, experiment.distill.shard_size, count)
  if experiment.devices and jax.process_count() == 1:  # several processes have a shard each
    params = place(params, experiment.devices, partition_of(model, experiment.mesh.model))
  translator, pairs = _Translator(experiment, model, params, tokenizer), _InOrder(corpus)
  with Progress(count, 'sentence') as progress, gate.at_work(budget):
    whole = _all_made(shards, lambda span: translator.outputs(pairs.at(span), progress), progress, start, budget)
  if whole:
    with locked(parts / 'lock'):
      if not _is_finished(workdir, record, _files(experiment, workdir)):
        _join(experiment, workdir, shards, pairs, tokenizer, record)
  return whole


def summary(workdir: pathlib.Path) -> str:
  """What is in a finished workdir, in a sentence."""
  counts = record_of(workdir)['counts']
  kept = f'{counts["empty"]:,} without an output and {counts["long"]:,} too long keep their translation'
  return f'{workdir} holds {counts["lines"]:,} lines for {counts["sources"]:,} sources ({kept})'


def asked(settings: DistillConfig, there: Mapping[str, Any]) -> dict[str, Any]:
  """The settings as a record has them; those younger than the record `there` are left out while they change nothing."""
  found = json.loads(json.dumps(dataclasses.asdict(settings)))
  if 'min_len' not in there.get('distill', found) and settings.min_len == 1:
    del found['min_len']
  return found


class _InOrder:
  """The training pairs by their places, a few in memory at a time: reading goes on from where the last ones were."""

  def __init__(self, corpus: Corpus) -> None:
    self._corpus, self._rest, self._at = corpus, iter(()), sys.maxsize

  def at(self, span: range) -> list[Pair]:
    if span.start < self._at:
      self._rest, self._at = self._corpus.pairs('train'), 0
    chosen = itertools.islice(self._rest, span.start - self._at, span.stop - self._at)
    self._at = span.stop
    return list(chosen)


class _Translator:
  """The teacher at work."""

  def __init__(self, experiment: Distilling, model: Any, params: Any, tokenizer: Tokenizer) -> None:
    self._settings, self._model, self._params, self._tokenizer = experiment.distill, model, params, tokenizer
    positions = model.max_positions or np.inf
    self._longest = min(experiment.data.row_length, positions)  # longer pairs are left out of training
    a, b = experiment.distill.max_len
    self._max_len = max(int(min(a * self._longest + b, positions)), 1)

  def outputs(self, pairs: list[Pair], progress: Progress) -> list[Outputs | None]:
    """For each pair what its source is translated to, best first; None where that is too long."""
    ids = [np.array([*self._tokenizer.encode(source), EOS_ID], np.int32) for source, _ in pairs]
    short = [i for i, source in enumerate(ids) if len(source) <= self._longest]
    outputs: list[Outputs | None] = [None] * len(ids)
    progress.add(len(ids) - len(short))
    settings = self._settings
    for finished in gate.passing(
      decode_each(self._model, self._params, [ids[i] for i in short], settings.strategy, self._max_len, settings.rows)
    ):
      for index, found in zip(finished.indices, _hypotheses(finished.decoded.checked()), strict=True):
        outputs[short[index]] = self._lines_of(found)
      progress.add(len(finished.indices))
    return outputs

  def _lines_of(self, hypotheses: list[list[int]]) -> Outputs:
    """Each line once, with the ids of the best hypothesis that reads so."""
    found: dict[str, list[int]] = {}
    for ids in hypotheses:
      line = self._tokenizer.decode(ids)
      if line:
        found.setdefault(line, ended(ids))
    return list(found.items())


def _hypotheses(decoded: Decoded) -> list[list[list[int]]]:
  """For each row its outputs, best first: one, or those that a search has found."""
  if decoded.nbest_tokens is None or decoded.nbest_scores is None:
    return [[row] for row in decoded.tokens.tolist()]
  rows = zip(decoded.nbest_tokens, decoded.nbest_scores, strict=True)
  return [tokens[scores > -np.inf].tolist() for tokens, scores in rows]


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
        if is_ours and not shards.is_whole(shard):
          shards.write(shard, make(shards.span(shard)))
          longest, made = max(longest, time.monotonic() - since), made + 1
          progress.log(f'shard {shard + 1}/{len(shards)}')
    if made == before:  # others have all that is left
      if time.monotonic() - start > budget:
        return False
      time.sleep(WAIT)
      gate.pass_by()
  return True


def _missing(shards: Shards, progress: Progress) -> list[int]:
  """Shards that are not there, or not whole, which is said."""
  missing = [shard for shard in range(len(shards)) if not shards.is_whole(shard)]
  for shard in missing:
    if shards.exists(shard):
      progress.note(f'shard {shard + 1} is cut short or damaged: it is made again')
  progress.reset(shards.total - sum(len(shards.span(shard)) for shard in missing))
  return missing


def _join(
  experiment: Distilling,
  workdir: pathlib.Path,
  shards: Shards,
  pairs: _InOrder,
  tokenizer: Tokenizer,
  record: dict[str, Any],
) -> None:
  """Writes the lines and their ids, then the record that says they are whole."""
  files, chunks = _files(experiment, workdir), []
  counts = {'sources': shards.total, 'lines': 0, 'empty': 0, 'long': 0}
  with whole_file(files[0]) as sources, whole_file(files[1]) as targets:
    for shard in range(len(shards)):
      records = shards.read(shard)
      assert records is not None  # all are made
      counts['long'] += records.count(None)
      counts['empty'] += records.count([])
      written = list(_written(pairs.at(shards.span(shard)), records, tokenizer))
      for source, target, *_ in written:
        sources.write(source.encode() + b'\n')
        targets.write(target.encode() + b'\n')
      counts['lines'] += len(written)
      chunks.append((Ragged.of([one.source_ids for one in written]), Ragged.of([one.target_ids for one in written])))
  source_ids, target_ids = map(Ragged.joined, zip(*chunks, strict=True))
  lines = open_text(TextData('files', train=tuple(map(str, files))), experiment.data.cache)
  ids = save_ids(workdir, TokenPairs(source_ids, target_ids), tokenizer, lines.key)
  write_json(workdir / 'config.json', {**record, 'counts': counts, 'ids': ids})


class _Written(NamedTuple):
  """A line of the result."""

  source: str
  target: str
  source_ids: list[int]
  target_ids: list[int]


def _written(pairs: list[Pair], records: list[Any], tokenizer: Tokenizer) -> Iterator[_Written]:
  """The lines of a shard. What a person wrote has no ids, nor has a shard from before they were kept."""
  for (source, target), outputs in zip(pairs, records, strict=True):
    source_ids = [*tokenizer.encode(source), EOS_ID]
    for output in outputs or [normalise(target)]:
      line, ids = (output, [*tokenizer.encode(output), EOS_ID]) if isinstance(output, str) else output
      yield _Written(normalise(source), line, source_ids, ids)


def _is_finished(workdir: pathlib.Path, record: dict[str, Any], files: list[pathlib.Path]) -> bool:
  """Whether the workdir has all it should; a UserError where it has something else."""
  there = record_of(workdir)
  ids = {'ids': there['ids']} if 'ids' in there else {}  # older text has none
  check_workdir(workdir, {**record, 'counts': there.get('counts'), **ids})
  return bool(there) and all(file.exists() for file in files)


def _files(experiment: OnText, workdir: pathlib.Path) -> list[pathlib.Path]:
  return [workdir / f'train.{language}' for language in (experiment.data.source, experiment.data.target)]


def _counted(corpus: Corpus, row_length: int) -> tuple[str, int]:
  """A hash of the training pairs and of what is too long, and the number of pairs."""
  text, count = hashlib.sha256(str(row_length).encode()), 0
  for pair in corpus.pairs('train'):
    text.update(repr(pair).encode())
    count += 1
  return text.hexdigest()[:16], count
