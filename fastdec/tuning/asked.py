"""What is asked of `tune`, checked: the promise, the candidates that can keep it, and what else has
to be possible."""

from collections.abc import Mapping
from typing import Any, get_args

from fastdec.decoding.methods.greedy import Greedy, Sample
from fastdec.decoding.protocol import Promise, promise_of
from fastdec.decoding.rules.rejection import Warped
from fastdec.decoding.rules.sampling import Sampling
from fastdec.decoding.settings import count, is_number
from fastdec.decoding.strategy import LoopStrategy, check_strategy
from fastdec.errors import UserError
from fastdec.models.api import Model


def sizes_of(rows: Any) -> list[int]:
  """The numbers of rows to try."""
  given = list(rows) if isinstance(rows, list | tuple) else [rows]
  sizes = [count('rows', size, 1, '1 or more') for size in given]
  if not sizes or len(set(sizes)) < len(sizes):
    raise UserError(f'rows={rows!r} is not possible: give one number or more, each once')
  return sizes


def seconds_of(given: Any) -> float:
  """The budget."""
  if not is_number(given) or not 0 < given < float('inf'):
    raise UserError(f'budget={given!r} is not possible: give seconds, more than 0')
  return float(given)


def check_types(model: Model, dtype: str | None, types: Mapping[str, Any]) -> None:
  """Raises UserError where a type comes twice, or what is given for it is not the same model."""
  if dtype in types:
    raise UserError(f'the type {dtype} is given twice: leave it out of types')
  for name, (other, _, _) in types.items():
    if (type(other), other.vocab_size) != (type(model), model.vocab_size):
      raise UserError(
        f'what is given as the type {name} is another model: load the same folder'
        f' with dtype={name!r}'
      )


def promised(plain: Any, promise: Any) -> tuple[Any, Promise]:
  """The strategy of one token a call and the promise that go together."""
  if promise is None:
    promise = 'law' if isinstance(plain, Sample) else 'exact'
  if promise not in get_args(Promise):
    raise UserError(f'promise={promise!r} is unknown: give {", ".join(get_args(Promise))}')
  if plain is None:
    plain = Sample() if promise == 'law' else Greedy()
  if not isinstance(plain, Greedy | Sample):
    raise UserError(
      f'plain={type(plain).__name__} is not one token a call: give fd.Greedy() or fd.Sample(...)'
    )
  if isinstance(plain, Sample) and promise == 'exact':
    raise UserError("what is sampled is never exact: give promise='law', or plain=fd.Greedy()")
  if isinstance(plain, Greedy) and promise == 'law':
    raise UserError("greedy decoding draws nothing: give promise='exact', or plain=fd.Sample(...)")
  return plain, promise


def named(strategies: Any, plain: Any, name: str) -> dict[str, Any]:
  """The plain strategy and the others, by name."""
  if not isinstance(strategies, Mapping):
    strategies = {f'{type(one).__name__} {place}': one for place, one in enumerate(strategies)}
  found = {name: plain}
  for other, strategy in strategies.items():
    check_strategy(strategy)
    if not isinstance(strategy, LoopStrategy):
      raise UserError(
        f'{other} is a {type(strategy).__name__}, which ranks whole outputs: leave it'
        ' out, tune cannot'
      )
    if other == name and type(strategy) is not type(plain):
      raise UserError(
        f'{name} is the name of one token a call, and {type(strategy).__name__} has'
        ' it: give it another'
      )
    if not (isinstance(strategy, Greedy) and isinstance(plain, Greedy)):
      found.setdefault(other, strategy)
  return found


def breaks(strategy: LoopStrategy, plain: Any, promise: Promise) -> str:
  """Why a candidate does not keep the promise; '' where it does."""
  kept = promise_of(strategy.effective_rule)
  if promise == 'relaxed' or strategy is plain:
    return ''
  if promise == 'exact':
    return '' if kept == 'exact' else f'not exact: its rule is {_in_words(kept)}'
  if kept != 'law':
    return f'not in law: its rule is {_in_words(kept)}'
  return (
    ''
    if _law(strategy.effective_rule) == _law(plain.rule)
    else 'samples at other settings than the plain strategy'
  )


def _in_words(kept: Promise) -> str:
  return {'exact': 'exact', 'law': 'for sampling', 'relaxed': 'relaxed'}[kept]


def _law(rule: Any) -> tuple[float, ...]:
  """Temperature, top-k and top-p of a rule that samples; nothing for another, which equals
  nothing."""
  sampling = rule.sampling if isinstance(rule, Warped) else rule
  if not isinstance(sampling, Sampling):
    return ()
  return tuple(float(x) for x in (sampling.temperature, sampling.top_k, sampling.top_p))
