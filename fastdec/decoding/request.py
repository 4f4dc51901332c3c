"""A caller's request to decode some rows, checked and with defaults filled in.

`decode` and `stream` make one by `prepare`, `decode_each` by `prepare_each`. Most mistakes in the
arguments are raised here; those that only a strategy's `init` can see, such as a missing key, are
raised while the program is traced.
"""

import dataclasses
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Int

from fastdec.decoding.inputs import (
  check_limit,
  check_prompt_positions,
  drop_left_pads,
  make_prompt,
  make_row_keys,
  split_rows,
)
from fastdec.decoding.law import Law, LawMaker
from fastdec.decoding.protocol import Prompt
from fastdec.decoding.sampling import Sampling
from fastdec.decoding.score import NotesLogprobs, check_logprobs
from fastdec.decoding.settings import check_one_per_row
from fastdec.decoding.sizes import BATCH, Ladders, Sizes
from fastdec.decoding.strategy import LoopStrategy, Strategy, read_strategy, select_rows
from fastdec.errors import UserError
from fastdec.fields import quote
from fastdec.kernels.sharding import mesh_of
from fastdec.models.api import Model, Params, check_model, source_words
from fastdec.struct import Bound


@dataclasses.dataclass(frozen=True)
class Settings:
  """What a caller wants besides a strategy, unchecked; see `decode` for the fields."""

  max_len: Any = None
  max_new_tokens: Any = None
  key: Any = None
  processors: Any = None
  constraint: Any = None
  logprobs: Any = 0


@dataclasses.dataclass(frozen=True)
class Request:
  """Settings of a decode of n rows, checked.

  Attributes:
    model: the caller's own; it reads the inputs.
    target: the model, its parameters, and the laws that change its logits and its ends.
    strategy: how to decode.
    limit: most tokens that each row may emit, its end included.
    keys: a random key for each row; None: there are none.
    logprobs: how many likeliest tokens of each place are noted; 0: nothing is noted.
    ruled_by: the settings that rule out tokens, see `Decoded`.
    mesh: devices that the parameters lie on; None: one device.
  """

  model: Model
  target: Bound
  strategy: Strategy
  limit: Int[np.ndarray, ' n']
  keys: Array | None
  logprobs: int
  ruled_by: tuple[str, ...]
  mesh: Mesh | None

  @property
  def max_len(self) -> int:
    """Most tokens that any row may emit."""
    return int(self.limit.max())

  def take(self, rows: Int[np.ndarray, ' q']) -> 'Request':
    """Returns the request of these rows, with their settings."""
    laws = tuple(law.take(rows) for law in self.target.laws)
    return dataclasses.replace(
      self, target=dataclasses.replace(self.target, laws=laws),
      strategy=select_rows(self.strategy, rows), limit=self.limit[rows],
      keys=None if self.keys is None else self.keys[rows],
    )  # fmt: skip

  def choose_sizes(self, ladders: Ladders, longest_prompt: int) -> Sizes:
    """Returns the sizes of programs by a policy; rows of a mesh have no joint width."""
    if self.mesh is not None and ladders.joint:
      ladders = dataclasses.replace(BATCH, outputs=ladders.outputs)
    longest = longest_prompt + self.max_len
    return Sizes.choose(ladders, self.target.module, self.strategy, self.max_len, longest)


def prepare(
  model: Model,
  params: Params,
  inputs: Any,
  strategy: Strategy | str,
  settings: Settings,
  prompt_lengths: Any = None,
  prefix: Any = None,
) -> tuple[Request, Prompt]:
  """Returns the request, and the prompt of its rows, whose arrays are NumPy's; see `decode`."""
  check_model(model, params)
  strategy = read_strategy(strategy)
  prompt = make_prompt(model, inputs, prompt_lengths, prefix)
  request = _check_settings(model, params, strategy, len(prompt.tokens), settings)
  prompt = dataclasses.replace(prompt, limit=request.limit.astype(np.int32))
  check_prompt_positions(model, prompt, request.max_len)
  strategy.check(model, prompt, request.max_len)
  return request, prompt


def prepare_each(
  model: Model, params: Params, inputs: Any, strategy: Strategy | str, settings: Settings
) -> tuple[Request, list[Int[np.ndarray, ' _']]]:
  """Returns the request, and the ids of each source or prompt; see `decode_each`."""
  check_model(model, params)
  strategy = read_strategy(strategy)
  name = 'prompt' if model.start_id is None else 'source'
  sources = []
  for i, row in enumerate(split_rows('inputs', inputs, source_words(model))):
    sources.append(drop_left_pads(model, name, i, row))
    if name == 'prompt' and not len(sources[i]):
      raise UserError(f'prompt {i} is empty: give at least one token')
  request = _check_settings(model, params, strategy, len(sources), settings)
  if not sources:
    return request, sources

  # A prompt and its output share the positions: the longest prompt and the longest text must fit.
  # A source has positions of its own: the longest source and the longest output must fit.
  lengths = np.array([len(source) for source in sources])
  longest, most = int(lengths.argmax()), int(request.limit.argmax())
  pairs = {(longest, most)}
  if name == 'prompt':
    longest_text = int((lengths + request.limit).argmax())
    pairs = {(longest, longest), (longest_text, longest_text)}
  for source, row in pairs:
    prompt = make_prompt(model, sources[source][None], None, None)
    prompt = dataclasses.replace(prompt, limit=request.limit[row : row + 1].astype(np.int32))
    check_prompt_positions(model, prompt, int(request.limit[row]))
    strategy.check(model, prompt, int(request.limit[row]))
  return request, sources


def _check_settings(
  model: Model, params: Params, strategy: Strategy, rows: int, settings: Settings
) -> Request:
  """Checks the settings of `rows` rows.

  Raises:
    UserError: a setting that is out of range, has another number of rows, or is given twice.
  """
  max_len = settings.max_len
  if settings.max_new_tokens is not None:
    if max_len is not None:
      raise UserError('max_len and max_new_tokens are two names of one number: give one of them')
    max_len = settings.max_new_tokens
  limit = check_limit(model, max_len)
  check_one_per_row('max_len', limit, rows)
  sampling = getattr(strategy, 'sampling', None)
  if isinstance(sampling, Sampling):
    sampling.check_rows(rows)
  processors, constraint = settings.processors, settings.constraint
  ended = with_ends(model, processors)
  laws = make_laws(ended, strategy, rows, processors, constraint, settings.logprobs)
  return Request(
    model=model,
    target=Bound(ended, params, laws),
    strategy=strategy,
    limit=np.full(rows, limit),
    keys=None if settings.key is None else make_row_keys(settings.key, rows),
    logprobs=int(settings.logprobs),
    ruled_by=ruled_by(strategy, constraint, processors),
    # A look at every leaf takes a noticeable part of a short text's time.
    mesh=None if jax.device_count() == 1 else mesh_of(params),
  )


def ruled_by(strategy: Any, *makers: Any) -> tuple[str, ...]:
  """Returns the names of the settings that rule out tokens; a stranger's law has its type's."""
  names = [
    name
    for maker in makers
    if maker is not None
    for name in getattr(maker, 'rules_out', (type(maker).__name__,))
  ]
  return (*names, *getattr(strategy, 'rules_out', ()))


def with_ends(model: Model, processors: Any) -> Model:
  """Returns the model with the processors' ends instead of its own, if these differ.

  Raises:
    UserError: the model's ends cannot be exchanged.
  """
  ends = getattr(processors, 'ends', None)
  if ends is None or set(ends) == set(model.eos_ids):
    return model
  whole: Any = model
  config: Any = getattr(model, 'config', model)
  if 'eos_ids' not in getattr(config, '__dataclass_fields__', ()):
    kind = type(model).__name__
    raise UserError(f'{kind} keeps the ends that it has: leave ends out of the processors')
  config = dataclasses.replace(config, eos_ids=ends)
  if not hasattr(model, 'config'):
    return config
  own = {'own_ends': model.eos_ids} if hasattr(model, 'own_ends') else {}
  return dataclasses.replace(whole, config=config, **own)


def make_laws(
  model: Model, strategy: Any, rows: int, processors: Any, constraint: Any, logprobs: Any
) -> tuple[Law, ...]:
  """Returns the changes of a model's law that a caller wants, in the order in which they apply.

  A search notes no log-probabilities: its texts are scored at the end (`score.scored`).

  Raises:
    UserError: something else than processors or a constraint, or as their `laws`; logprobs out of
      range.
  """
  laws: list[Law] = []
  top = check_logprobs(model, logprobs)
  if top and isinstance(strategy, LoopStrategy):
    laws.append(NotesLogprobs(top, model.suppressed_ids))
  waits = getattr(processors, 'forced_begin', None) is not None
  if constraint is not None:
    if not isinstance(constraint, LawMaker):
      raise UserError(
        f'constraint={quote(constraint)} must be an fd.Constraint: give'
        ' fd.Constraint.regex(pattern, tokenizer), for example'
      )
    laws += constraint.laws(model, rows, waits)
  # Processors come last, so that a token that they force is written whatever the constraint is.
  if processors is not None:
    if not isinstance(processors, LawMaker):
      raise UserError(
        f'processors={quote(processors)} must be fd.Processors: give'
        ' fd.Processors(repetition_penalty=1.2), for example'
      )
    laws += processors.laws(model, rows, waits)
  return tuple(laws)
