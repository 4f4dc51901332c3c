"""What a caller asks of `decode`, `stream` and `decode_each`, checked and prepared once."""

import dataclasses
from typing import Any

from fastdec.decoding.law import Law, LawMaker
from fastdec.decoding.score import Noting, likeliest
from fastdec.decoding.strategy import LoopStrategy
from fastdec.errors import UserError
from fastdec.fields import shown
from fastdec.models.api import Model


def ended_by(model: Model, processors: Any) -> Model:
  """Returns the model with the processors' ends in place of its own, if they have other ones.

  Raises:
    UserError: the model's ends cannot be exchanged.
  """
  ends = getattr(processors, 'ends', None)
  if ends is None or set(ends) == set(model.eos_ids):
    return model
  whole: Any = model
  config: Any = getattr(model, 'config', model)
  if not hasattr(config, '__dataclass_fields__') or not hasattr(config, 'eos_ids'):
    kind = type(model).__name__
    raise UserError(f'the ends of a {kind} are its own: leave ends out of the processors')
  config = dataclasses.replace(config, eos_ids=ends)
  return dataclasses.replace(whole, config=config) if hasattr(model, 'config') else config


def laws_of(
  model: Model, strategy: Any, rows: int, processors: Any, constraint: Any, logprobs: Any
) -> tuple[Law, ...]:
  """Returns the changes of a model's law that a caller wants, in the order in which they apply.

  A search notes no log-probabilities: its texts are scored at the end (`score.scored`).

  Raises:
    UserError: something else than processors or a constraint, or as their `laws`; logprobs out of
      range.
  """
  laws: list[Law] = []
  top = likeliest(model, logprobs)
  if top and isinstance(strategy, LoopStrategy):
    laws.append(Noting(top, model.suppressed_ids))
  waits = getattr(processors, 'forced_begin', None) is not None
  if constraint is not None:
    if not isinstance(constraint, LawMaker):
      raise UserError(
        f'constraint={shown(constraint)} is none: give fd.Constraint.regex(pattern, tokenizer), for'
        ' example'
      )
    laws += constraint.laws(model, rows, waits)
  # Processors come last, so that a token that they force is written whatever the constraint is.
  if processors is not None:
    if not isinstance(processors, LawMaker):
      raise UserError(
        f'processors={shown(processors)} are no processors: give'
        ' fd.Processors(repetition_penalty=1.2), for example'
      )
    laws += processors.laws(model, rows, waits)
  return tuple(laws)
