"""What `experiments.gpu_report` means: sizes of random models, shapes to time, and the settings of
another page."""

import dataclasses
from typing import Any, Literal, Self

from configs import lm_speed
from configs.common import to_dataclass
from experiments.lab.settings import at_least
from experiments.papers.stern2018.text_settings import TranslationExperiment
from experiments.speed.lm import SpeedConfig
from fastdec.errors import UserError

Kind = Literal['lm', 'transformer', 'fconv', 't5', 'image']


@dataclasses.dataclass(frozen=True)
class Sizes:
  """Small random models; fields as in `configs/gpu_report.py`."""

  models: tuple[Kind, ...]
  words: int
  width: int
  layers: int
  rows: int
  tokens: int

  def __post_init__(self) -> None:
    at_least(1, 'sizes', layers=self.layers, rows=self.rows)
    at_least(4, 'sizes', words=self.words, tokens=self.tokens)
    if self.width < 16 or self.width % 16:
      raise UserError(f'width={self.width} is not possible: give 16 or a multiple of it')


@dataclasses.dataclass(frozen=True)
class Widths:
  """What calls cost: scales of `configs/lm_speed.py`, types of numbers, widths."""

  shapes: tuple[str, ...]
  dtypes: tuple[str, ...]
  widths: tuple[int, ...]

  def __post_init__(self) -> None:
    for shape in self.shapes:
      for dtype in self.dtypes:
        self.speed(shape, dtype, seed=0)  # says which there are

  def speed(self, shape: str, dtype: str, seed: int) -> SpeedConfig:
    """What is timed of one shape in one type."""
    config = to_dataclass(SpeedConfig, lm_speed.get_config(f'scale={shape}'))
    # that is for CPUs
    return dataclasses.replace(config, dtypes=(dtype,), widths=self.widths, packed=False, seed=seed)


@dataclasses.dataclass(frozen=True)
class Seconds:
  """Seconds of the budget that must be left for a piece of work to begin."""

  parity: float
  exact: float
  widths: float
  training: float  # of Table 1
  cells: float  # of Table 1


@dataclasses.dataclass(frozen=True)
class ReportSettings:
  """The whole."""

  scale: str
  seed: int
  parity: Sizes
  exact: Sizes
  widths: Widths
  table1: TranslationExperiment
  seconds: Seconds

  @classmethod
  def of(cls, config: Any) -> Self:
    """From a locked ConfigDict, whose data is Table 1's.

    Raises:
      UserError: what makes no sense.
    """
    given = config.to_dict()
    data = given.pop('data')
    return to_dataclass(cls, {**given, 'table1': {**given['table1'], 'data': data}})

  @property
  def has_text(self) -> bool:
    """Whether Table 1 is asked for."""
    return bool(self.table1.data.folder)

  @property
  def paces(self) -> dict[str, float]:
    """The seconds by the first words of nodes' names."""
    seconds = dataclasses.asdict(self.seconds)
    training = seconds.pop('training')
    runs = {f'k{k}': training for k in self.table1.table.ks}
    return {**seconds, 'base': training, 'teacher': training, 'distilled': training, **runs}
