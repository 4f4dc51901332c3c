"""Samples for the model of a config in several types of numbers:
`experiments.lab.precision`."""

import pathlib
from typing import Any

import numpy as np

from configs.common import to_dataclass
from experiments.lab.compare import spaced
from experiments.lab.decoding import inputs_of, padded_sources
from experiments.lab.precision import Sample, padded_targets
from experiments.leviathan2022 import Speculative
from experiments.stern2018.images import Table2
from experiments.stern2018.text import Translation
from fastdec import folders
from fastdec.data.images.corpus import shrink
from fastdec.data.text.packing import tokenise
from fastdec.decoding.protocol import Decoded
from fastdec.errors import UserError
from fastdec.evaluation.bleu import corpus_bleu

CAPTIONS = 32  # of a language model, decoded at once
SCORED_PICTURES = 2  # at once: one call is about all intensities of a picture


def sample_of(config: Any, folder: pathlib.Path) -> Sample:
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
    ' configs/celeba.py, or'
    ' for a language model configs/speculative.py:task=lm'
  )


def _translations(c: Translation, folder: pathlib.Path) -> Sample:
  table, text = c.table, c.data.open()
  text.check_base(folder)
  pairs = text.pairs(table.split)[: table.sentences or None]
  tokens, references = tokenise(pairs, text.tokenizer), [target for _, target in pairs]

  def bleu(out: Decoded) -> dict[str, Any]:
    lines = [text.tokenizer.decode(row.tolist()) for row in out.tokens]
    found = corpus_bleu(lines, references, c.data.target)
    return {'bleu': found.score, 'bleu_signature': found.signature}

  model = text.model_of(c.model)
  sources = padded_sources(tokens, model, f'of the {table.split} set')
  return Sample(
    table.split,
    sources,
    sources,
    *padded_targets(tokens.target),
    table.max_len,
    table.rows,
    table.rows,
    bleu,
  )


def _pictures(c: Table2) -> Sample:
  table = c.table
  originals = c.data.images.array(table.split, table.images or None)
  inputs, intensities = shrink(originals), originals.reshape(len(originals), -1).astype(np.int32)
  lengths = np.full(len(originals), intensities.shape[1])
  return Sample(
    table.split,
    inputs,
    inputs,
    intensities,
    lengths,
    intensities.shape[1],
    table.rows,
    SCORED_PICTURES,
  )


def _captions(c: Speculative, folder: pathlib.Path) -> Sample:
  measure, text, model = c.measure, c.data.open(), folders.open(folder).model
  text.check_base(folder)
  prompts = inputs_of(text, model, measure.split, measure.prompt)
  chosen = spaced(len(prompts), min(measure.sentences or len(prompts), len(prompts)))
  targets, lengths = padded_targets(text.tokens(measure.split).target)
  first = np.full((len(targets), 1), model.config.bos_id, np.int32)
  return Sample(
    measure.split, prompts[chosen], first, targets, lengths, measure.max_len, CAPTIONS, CAPTIONS
  )
