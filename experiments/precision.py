"""Quality of types of numbers: one model in float32, bfloat16 and int8, on the same texts or
pictures. `experiments.evaluate --dtype` calls `measure`, which measures the rows that are missing.

Greedy outputs of each type are compared with float32's: the share that is the same from end to end,
and the share of float32's tokens that this type also ranks first after the same prefix. Text by
people is scored token by token, each after all before it.
"""

import dataclasses
import functools
import hashlib
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Int

import fastdec as fd
from experiments.lab.compare import run_batches
from experiments.lab.config import to_dataclass
from experiments.lab.report import Column, Drawn, Table
from experiments.lab.rows import Row, latest
from experiments.lab.text import inputs_of, padded_sources
from experiments.lab.train import spaced
from experiments.lab.workdir import Workdir
from experiments.leviathan2022 import Speculative
from experiments.stern2018.images import Table2
from experiments.stern2018.text import Sentences, Translation
from fastdec import folders
from fastdec.data.images.corpus import shrink
from fastdec.decoding.inputs import pad_ids
from fastdec.decoding.protocol import Decoded
from fastdec.errors import UserError

PLAIN = 'float32'  # what the others are compared with
TYPES = (PLAIN, 'bfloat16', 'int8', 'int8w')
CAPTIONS = 32  # of a language model, decoded at once
SCORED_PICTURES = 2  # at once: one call scores all intensities of a picture
KEY = 'model', 'dtype', 'split', 'outputs', 'max_len'  # fields that name a row


@dataclasses.dataclass(frozen=True, eq=False)
class Sample:
  """Texts or pictures that a model is measured on."""

  split: str
  inputs: np.ndarray  # padded sources, prompts of one length, or pictures
  before: np.ndarray  # what precedes `targets`: the inputs, or only a text's first token
  targets: Int[np.ndarray, 'n t']  # text by people, padded; of pictures, their intensities
  lengths: Int[np.ndarray, ' n']  # of the targets
  max_len: int  # of an output
  rows: int  # decoded at once
  scored: int  # at once
  bleu: Callable[[Decoded], Row] | None = None  # of greedy outputs


def measure(
  folder: pathlib.Path, sample: Sample, dtypes: Sequence[str], work: Workdir
) -> list[Row]:
  """The rows of a model in each type, and first in float32, which the others need."""
  model = type(folders.open(folder).model).__name__
  same = {'split': sample.split, 'outputs': len(sample.inputs), 'max_len': sample.max_len}
  same['models'] = folders.content(folder)
  same['content'] = hashlib.sha256(sample.inputs.tobytes()).hexdigest()[:16]
  keys = []
  for dtype in dict.fromkeys((PLAIN, *dtypes)):
    keys.append({'model': model, 'dtype': dtype, **same})
  return work.fill(keys, functools.partial(figures, folder, sample))


def figures(folder: pathlib.Path, sample: Sample, key: Row) -> Row:
  """Likelihood, BLEU, and agreement with the outputs of float32."""
  plain, out = greedy(folder, PLAIN, sample), greedy(folder, key['dtype'], sample)
  model, params = folders.load(folder, dtype=key['dtype'])
  row: Row = {} if sample.bleu is None else sample.bleu(out)

  # Score what people wrote.
  score = functools.partial(fd.score, model, params)
  rows = min(sample.scored, len(sample.targets))
  forced = run_batches(score, rows, sample.before, sample.targets, sample.lengths)
  nats = float(-forced.total.sum() / forced.lengths.sum())
  if model.fixed_length is None:
    row['nll'] = nats
  else:
    row['bits_per_dimension'] = nats / np.log(2)

  # Compare with what float32 writes.
  rows = min(sample.scored, len(sample.inputs))
  again = run_batches(score, rows, sample.inputs, plain.tokens, plain.lengths)
  row['same_texts'] = float((out.tokens == plain.tokens).all(axis=1).mean())
  row['same_tokens'] = float(again.best.sum() / again.lengths.sum())
  config = getattr(model, 'model', model).config
  return row | {'batch': sample.rows, 'computes_in': jax.numpy.dtype(config.dtype).name}


@functools.cache
def greedy(folder: pathlib.Path, dtype: str, sample: Sample) -> Decoded:
  """The greedy outputs of a model in a type of numbers."""
  model, params = folders.load(folder, dtype=dtype)

  def decode(inputs: np.ndarray) -> Decoded:
    return fd.decode(model, params, inputs, fd.Greedy(), max_len=sample.max_len).checked()

  return run_batches(decode, min(sample.rows, len(sample.inputs)), sample.inputs)


# --- samples of a config


def open_sample(config: Any, folder: pathlib.Path) -> Sample:
  """The sample of a locked ConfigDict, for the run in a folder.

  Raises:
    UserError: a mistake in the config, or a config of something else; the run was trained on other
      text.
  """
  task = config.get('task')
  if task == 'translation' and 'target' not in config:
    return _translations(to_dataclass(Translation, config), folder)
  if task == 'images':
    return _pictures(to_dataclass(Table2, config))
  if task == 'lm' and 'target' in config:
    return _captions(to_dataclass(Speculative, config), folder)
  raise UserError(
    'types of numbers are compared on the text or pictures of a config: give configs/wmt14.py,'
    ' configs/celeba.py, or for a language model configs/speculative.py:task=lm'
  )


def _translations(c: Translation, folder: pathlib.Path) -> Sample:
  table, sentences = c.table, Sentences(c, c.table.split)
  sentences.text.check_base(folder)
  model, tokens = sentences.text.model_of(c.model), sentences.tokens
  sources = padded_sources(tokens, model, f'of the {table.split} set')
  targets, _ = pad_ids('targets', list(tokens.target), model.vocab_size, model.pad_id)
  sizes = table.max_len, table.rows, table.rows
  lengths = tokens.target.lengths
  return Sample(table.split, sources, sources, targets, lengths, *sizes, sentences.bleu)


def _pictures(c: Table2) -> Sample:
  table = c.table
  originals = c.data.images.array(table.split, table.images or None)
  inputs, intensities = shrink(originals), originals.reshape(len(originals), -1).astype(np.int32)
  n, length = intensities.shape
  targets = intensities, np.full(n, length)
  return Sample(table.split, inputs, inputs, *targets, length, table.rows, SCORED_PICTURES)


def _captions(c: Speculative, folder: pathlib.Path) -> Sample:
  measure, text, model = c.measure, c.data.open(), folders.open(folder).model
  text.check_base(folder)
  prompts = inputs_of(text, model, measure.split, measure.prompt)
  prompts = prompts[spaced(len(prompts), measure.sentences)]
  tokens = text.tokens(measure.split).target
  first = np.full((len(tokens), 1), model.config.bos_id, np.int32)
  targets, _ = pad_ids('targets', list(tokens), model.vocab_size, model.pad_id)
  sizes = measure.max_len, CAPTIONS, CAPTIONS
  return Sample(measure.split, prompts, first, targets, tokens.lengths, *sizes)


# --- the table

CONDITIONS = 'split', 'outputs', 'max_len', 'batch', 'computes_in', 'config', 'device', 'processor'
CONDITIONS += 'jax', 'commit', 'bleu_signature'
TABLE = Table(
  'Types of numbers',
  (
    Column('Model', 'model', names_row=True),
    Column('Type', 'dtype', names_row=True),
    Column('BLEU', 'bleu', '.2f'),
    Column('Nats a token', 'nll', '.4f'),
    Column('Bits an intensity', 'bits_per_dimension', '.4f'),
    Column('Same %', 'same_texts', '.1f', scale=100),
    Column('Same tokens %', 'same_tokens', '.2f', scale=100),
  ),
  (
    'Same: greedy outputs that equal those of float32, from end to end. Same tokens: the share of'
    " float32's tokens that the type chooses too, given what float32 wrote before. In int8,"
    ' products are of whole numbers, and everything between them is in the type that the model'
    ' was trained in.',
  ),
  CONDITIONS,
)


def table(rows: Iterable[Row]) -> Drawn:
  """A row a model and type, in the order of the lines."""
  return TABLE.of(latest(rows, *KEY))
