"""What `experiments.incremental` means: models, lengths, FasterTransformer's rows."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from configs.common import known, to_dataclass
from experiments.lab.settings import at_least, each_once
from fastdec.errors import UserError
from fastdec.models.fconv import FConv, FConvConfig
from fastdec.models.transformer import Transformer, TransformerConfig


class Kind(NamedTuple):
  """What there is to know of a model's kind."""

  model: Callable[[Any], Any]
  deeper: Callable[[Any], dict[str, Any]]  # what a config of it has with one decoder layer more


KINDS = {
  'transformer': Kind(Transformer, lambda c: {'decoder_layers': c.decoder_layers + 1}),
  'fconv': Kind(FConv, lambda c: {'decoder_layers': (*c.decoder_layers, c.decoder_layers[-1])}),
}


@dataclasses.dataclass(frozen=True)
class Models:
  """Sizes, by the names of KINDS; ends and dtype are not the config's to say."""

  transformer: TransformerConfig
  fconv: FConvConfig


@dataclasses.dataclass(frozen=True)
class Growth:
  """Time per token against length; fields as in `configs/incremental.py`."""

  models: tuple[str, ...]
  lengths: tuple[int, ...]
  batches: tuple[int, ...]
  source: int
  steps: int
  rounds: int

  def __post_init__(self) -> None:
    for name in self.models:
      if name not in KINDS:
        raise UserError(
          f"config.growth.models={self.models} has '{name}', which is no model: {known(KINDS)}"
        )
    each_once('growth', models=self.models, lengths=self.lengths, batches=self.batches)
    _all_at_least_one('growth', lengths=self.lengths, batches=self.batches)
    at_least(1, 'growth', source=self.source, steps=self.steps, rounds=self.rounds)


@dataclasses.dataclass(frozen=True)
class Layout:
  """FasterTransformer's tables; fields as in `configs/incremental.py`."""

  model: TransformerConfig
  beams: int
  float32: tuple[tuple[int, ...], ...]
  bfloat16: tuple[tuple[int, ...], ...]
  rounds: int

  def __post_init__(self) -> None:
    at_least(1, 'layout', beams=self.beams, rounds=self.rounds)
    for name, rows in self.rows.items():
      for row in rows:
        if len(row) != 2 or min(row) < 1:
          raise UserError(
            f'config.layout.{name} has the row {row}: give pairs, sentences and'
            ' tokens, each 1 or more'
          )

  @property
  def rows(self) -> dict[str, tuple[tuple[int, ...], ...]]:
    """(sentences, tokens) by dtype."""
    return {'float32': self.float32, 'bfloat16': self.bfloat16}


@dataclasses.dataclass(frozen=True)
class Encoder:
  """The encoder alone; fields as in `configs/incremental.py`."""

  source: int
  batches: tuple[int, ...]
  rounds: int

  def __post_init__(self) -> None:
    each_once('encoder', batches=self.batches)
    _all_at_least_one('encoder', batches=self.batches)
    at_least(1, 'encoder', source=self.source, rounds=self.rounds)


@dataclasses.dataclass(frozen=True)
class IncrementalExperiment:
  """The whole; fields as in `configs/incremental.py`."""

  scale: str
  seed: int
  models: Models
  growth: Growth
  layout: Layout
  encoder: Encoder

  def __post_init__(self) -> None:
    for name in self.growth.models:
      most = getattr(self.models, name).max_positions
      _check_positions('growth.lengths', max(self.growth.lengths), name, most)
      _check_positions('growth.source', self.growth.source, name, most)
      _check_positions('encoder.source', self.encoder.source, name, most)
    for dtype, rows in self.layout.rows.items():
      longest = max((tokens for _, tokens in rows), default=1)
      _check_positions(f'layout.{dtype}', longest, 'layout.model', self.layout.model.max_positions)

  @classmethod
  def of(cls, config: ConfigDict) -> 'IncrementalExperiment':
    """Raises UserError for what makes no sense."""
    return to_dataclass(cls, config)

  @property
  def asked(self) -> dict[str, Any]:
    """What all cells must agree on."""
    return {
      'source': self.growth.source, 'steps_at_most': self.growth.steps, 'beams': self.layout.beams,
      'rounds': self.growth.rounds, 'layout_rounds': self.layout.rounds, 'encoder_rounds': self.encoder.rounds,
    }  # fmt: skip

  def model(self, part: str, name: str, dtype: str = 'float32', is_deeper: bool = False) -> Any:
    """The model of a cell, which never ends a text.

    Args:
      part, name, dtype: of the cell.
      is_deeper: with one decoder layer more.
    """
    kind, config = (
      KINDS[name],
      self.layout.model if part == 'layout' else getattr(self.models, name),
    )
    config = dataclasses.replace(
      config, dtype=dtype, eos_ids=(), **kind.deeper(config) if is_deeper else {}
    )
    return kind.model(config)


def _all_at_least_one(part: str, **values: tuple[int, ...]) -> None:
  at_least(
    1, part, **{f'{name}[{i}]': x for name, value in values.items() for i, x in enumerate(value)}
  )


def _check_positions(setting: str, tokens: int, model: str, most: int) -> None:
  if tokens > most:
    raise UserError(
      f"config.{setting} has {tokens} tokens, and the model '{model}' {most} positions: give fewer"
      ' tokens, or a larger'
      ' max_positions'
    )
