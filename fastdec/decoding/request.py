"""A caller's request to decode some rows, checked and with defaults filled in.

Most mistakes in the arguments are raised here; those that only a strategy's `init` can see, such as
a missing key, are raised while the program is traced.
"""

import dataclasses
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Int

from fastdec.decoding.inputs import check_inputs
from fastdec.decoding.law import Law, LawMaker
from fastdec.decoding.protocol import Prompt
from fastdec.decoding.sampling import Sampling
from fastdec.decoding.score import NotesLogprobs, check_logprobs
from fastdec.decoding.sizes import BATCH, Ladders, Sizes
from fastdec.decoding.strategy import LoopStrategy, Strategy, read_strategy, select_rows
from fastdec.errors import UserError
from fastdec.fields import quote
from fastdec.kernels.sharding import mesh_of
from fastdec.models.api import Model, Params, check_model
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
  """Rows to decode with their settings, checked.

  Attributes:
    model: the caller's own; it reads the inputs.
    target: the model, its parameters, and the laws that change its logits and its ends.
    strategy: how to decode.
    prompt: of all rows, in NumPy's arrays.
    max_len: most tokens that any row may emit; `prompt.limit` has those of each row.
    keys: a random key for each row; None: there are none.
    logprobs: how many likeliest tokens of each place are noted; 0: nothing is noted.
    ruled_by: the settings that rule out tokens, see `Decoded`.
    mesh: devices that the parameters lie on; None: one device.
  """

  model: Model
  target: Bound
  strategy: Strategy
  prompt: Prompt
  max_len: int
  keys: Array | None
  logprobs: int
  ruled_by: tuple[str, ...]
  mesh: Mesh | None

  def take(self, rows: Int[np.ndarray, ' q'], width: int | None = None) -> 'Request':
    """Returns the request of these rows, their sources or prompts cut to this width."""
    laws = tuple(law.take(rows) for law in self.target.laws)
    prompt = jax.tree.map(lambda x: x[rows], self.prompt)
    if width is not None and prompt.inputs is None:
      prompt = dataclasses.replace(prompt, tokens=prompt.tokens[:, :width])
    elif width is not None and prompt.inputs.ndim == 2:
      prompt = dataclasses.replace(prompt, inputs=prompt.inputs[:, : max(width, 1)])
    return dataclasses.replace(
      self,
      target=dataclasses.replace(self.target, laws=laws),
      strategy=select_rows(self.strategy, rows),
      prompt=prompt,
      keys=None if self.keys is None else self.keys[rows],
    )

  def choose_sizes(self, ladders: Ladders) -> Sizes:
    """Returns the sizes of programs by a policy, or by `BATCH` if a joint width is impossible.

    It needs one device, a prompt that the text continues (a source has a width of its own), and one
    slot for each token (a search stores several)."""
    model = self.target.module
    has_source = model.start_id is not None or model.fixed_length is not None
    is_search = not isinstance(self.strategy, LoopStrategy)
    if ladders.joint and (has_source or is_search or self.mesh is not None):
      ladders = dataclasses.replace(BATCH, outputs=ladders.outputs)
    longest = int(self.prompt.length.max()) + self.max_len
    return Sizes(ladders, model, self.strategy, self.max_len, longest)


def prepare(
  model: Model,
  params: Params,
  inputs: Any,
  strategy: Strategy | str,
  settings: Settings,
  prompt_lengths: Any = None,
  prefix: Any = None,
) -> Request:
  """Checks a caller's arguments (see `decode`), and returns the request.

  Raises:
    UserError: a setting that is out of range, has another number of rows, or is given twice.
  """
  check_model(model, params)
  strategy = read_strategy(strategy)
  max_len = settings.max_len
  if settings.max_new_tokens is not None:
    if max_len is not None:
      raise UserError('max_len and max_new_tokens are two names of one number: give one of them')
    max_len = settings.max_new_tokens
  max_len, prompt, keys = check_inputs(model, inputs, prompt_lengths, prefix, max_len, settings.key)
  rows = len(prompt.tokens)
  sampling = getattr(strategy, 'sampling', None)
  if isinstance(sampling, Sampling):
    sampling.check_rows(rows)
  processors, constraint = settings.processors, settings.constraint
  ended = with_ends(model, processors)
  laws = make_laws(ended, strategy, rows, processors, constraint, settings.logprobs)
  strategy.check(model, prompt, max_len)
  return Request(
    model=model,
    target=Bound(ended, params, laws),
    strategy=strategy,
    prompt=prompt,
    max_len=max_len,
    keys=keys,
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
