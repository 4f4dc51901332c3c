"""The training of an encoder-decoder model on parallel text."""

import dataclasses

from experiments.lab.text import OnText
from fastdec.errors import UserError
from fastdec.models.transformer import Transformer, TransformerConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationTraining(OnText):
  """The training of one encoder-decoder model."""

  model: TransformerConfig

  def __post_init__(self) -> None:
    super().__post_init__()
    if self.data.row_length > self.model.max_positions:
      limit = f'model.max_positions={self.model.max_positions} is the most'
      raise UserError(f'config.data.row_length={self.data.row_length} is not possible: {limit}')

  def model_over(self, vocab_size: int) -> Transformer:
    return Transformer(dataclasses.replace(self.model, vocab_size=vocab_size))
