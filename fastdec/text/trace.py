"""Traces: texts call by call, with the guesses, the model's law, and what was accepted.

A trace is a safetensors file. Texts and calls come in order, and are joined:

  prompts, texts      int32[tokens]; the prompts of an encoder-decoder are its sources
  prompt_ends, ends   int32[texts]: where each of them ends
  call_ends           int32[texts]: where each text's calls end among all calls
  guesses             int32[calls, n]: a call's nodes, the first of which is the root
  parents             int32[calls, n]: the node above each, -1 for the root's
  accepted            int32[calls]: the last node that was accepted, 0 for the root
  emitted             int32[calls]: tokens of the call, the accepted guesses and the next token
  top_ids             int32[calls, n, top]: the likeliest next tokens after each node
  top_logprobs        float32[calls, n, top]: by the law that judged the guesses

The metadata names the format, the model's folder with a hash of its content, the type of numbers,
and the strategy. `replay` only needs prompts, texts and the model.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fastdec import folders, struct
from fastdec.decoding.description import describe
from fastdec.decoding.inputs import make_row_keys
from fastdec.decoding.protocol import Decoded, Draft, Prefill, Prompt, Step
from fastdec.decoding.request import Settings
from fastdec.decoding.run import start
from fastdec.decoding.settings import Whole, count
from fastdec.decoding.sizes import SINGLE
from fastdec.decoding.strategy import LoopStrategy, read_streaming
from fastdec.decoding.topology import with_rows
from fastdec.errors import UserError
from fastdec.evaluation.calls import Calls
from fastdec.evaluation.replay import replay as replay_texts
from fastdec.evaluation.wallclock import measure
from fastdec.files import damaged, place, place_to_write, whole_file
from fastdec.folders.folder import PathLike, find_folder
from fastdec.models.api import Model, Params
from fastdec.struct import Bound
from fastdec.text.load import open_fast

FORMAT = 'fastdec-trace'
TOP = 5  # likeliest tokens that a trace keeps of each law
TIMED, REPEATS = 10, 5  # calls that are timed at once, and how often
ENDS = {'prompts': 'prompt_ends', 'texts': 'ends'}
CALLS = ('guesses', 'parents', 'accepted', 'emitted', 'top_ids', 'top_logprobs')


@struct.pytree
class Call:
  """What one call guessed and accepted, row by row: an entry of the file."""

  guesses: Int[Array, 'b n']
  parents: Int[Array, 'b n']
  accepted: Int[Array, ' b']
  emitted: Int[Array, ' b']
  top_ids: Int[Array, 'b n t']
  top_logprobs: Float[Array, 'b n t']


@struct.pytree
class Watching:
  """A drafter that guesses like the one it wraps, and remembers the last call."""

  drafter: Any
  top: int = struct.static()

  @property
  def nodes(self) -> int:
    return self.drafter.nodes

  @property
  def taps(self) -> tuple[int, ...]:
    return getattr(self.drafter, 'taps', ())

  def init(self, target: Bound, prefill: Prefill) -> tuple[Any, Call]:
    b, n = len(prefill.root), self.nodes
    ids, row = jnp.zeros((b, n), jnp.int32), jnp.zeros(b, jnp.int32)
    tops = jnp.zeros((b, n, self.top), jnp.int32)
    none = Call(ids, ids, row, row, tops, tops.astype(jnp.float32))
    return self.drafter.init(target, prefill), none

  def propose(
    self, target: Bound, state: tuple[Any, Call], root: Int[Array, ' b'], keys: Array | None
  ) -> tuple[Draft, tuple[Any, Call]]:
    draft, inner = self.drafter.propose(target, state[0], root, keys)
    return draft, (inner, state[1])

  def observe(self, target: Bound, state: tuple[Any, Call], step: Step) -> tuple[Any, Call]:
    law = jax.nn.log_softmax(step.logits.astype(jnp.float32))
    top_logprobs, top_ids = jax.lax.top_k(law, self.top)
    tokens = step.draft.tokens
    parents = jnp.broadcast_to(with_rows(step.draft.topology.parents, 2), tokens.shape)
    call = Call(
      tokens, parents.astype(jnp.int32), step.accepted.node, step.count, top_ids, top_logprobs
    )
    return self.drafter.observe(target, state[0], step), call


@struct.pytree
class Watched(LoopStrategy):
  """A strategy whose drafter is `Watching`."""

  strategy: Any
  top: int = struct.static()

  @property
  def drafter(self) -> Watching:
    return Watching(self.strategy.drafter, self.top)

  @property
  def effective_rule(self) -> Any:
    return self.strategy.effective_rule

  @property
  def sampling(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
    return self.strategy.sampling

  def check(self, model: Model, prompt: Prompt, max_len: int) -> None:
    self.strategy.check(model, prompt, max_len)

  def most_tokens(self, source: int, max_len: int) -> int:
    return self.strategy.most_tokens(source, max_len)


@dataclasses.dataclass(frozen=True)
class Trace:
  """Prompts and texts, as ids, with the calls that wrote them if these were recorded.

  Attributes:
    prompts: what each text continues; the source for an encoder-decoder.
    texts: outputs, with their ends.
    calls: the file's arrays of calls, by their names; None: only texts are known.
    call_ends: where the calls of each text end.
    model: the folder of the model that wrote them; None: unknown.
    content: hash of that folder, as it was.
    dtype: the type of numbers, as in `fd.load`.
    strategy: in words.
  """

  prompts: Sequence[Sequence[int]]
  texts: Sequence[Sequence[int]]
  calls: dict[str, np.ndarray] | None = None
  call_ends: np.ndarray | None = None
  model: str | None = None
  content: str | None = None
  dtype: str | None = None
  strategy: str | None = None

  def save(self, path: PathLike) -> None:
    """Writes the file, whole or not at all.

    Raises:
      UserError: it cannot be written.
    """
    tensors = dict(self.calls or {})
    for name, end in ENDS.items():
      rows = getattr(self, name)
      tensors[name] = np.array([token for row in rows for token in row], np.int32)
      tensors[end] = np.cumsum([len(row) for row in rows], dtype=np.int32)
    if self.call_ends is not None:
      tensors['call_ends'] = np.asarray(self.call_ends, np.int32)
    metadata = {'format': FORMAT}
    for name in ('model', 'content', 'dtype', 'strategy'):
      if getattr(self, name) is not None:
        metadata[name] = getattr(self, name)
    file = place_to_write(path)
    with whole_file(file) as partial:
      save_file(tensors, partial.name, metadata)

  @classmethod
  def load(cls, path: PathLike) -> 'Trace':
    """Reads a file that `save` wrote.

    Raises:
      UserError: the file does not exist, is not a trace, or is damaged.
    """
    file = place(path)
    if not file.is_file():
      raise UserError(f'{file} does not exist: make it by fastdec generate --trace=FILE')
    try:
      with safe_open(file, 'numpy') as stored:
        metadata = dict(stored.metadata() or {})
        tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
      raise damaged(file, f'is damaged ({error})', 'record it again') from None
    if metadata.pop('format', None) != FORMAT:
      raise UserError(f'{file} is not a trace: give a file of fastdec generate --trace')
    try:
      rows = {}
      for name, ends in ENDS.items():
        rows[name] = _split_rows(tensors.pop(name), tensors.pop(ends))
      if len(rows['prompts']) != len(rows['texts']):
        raise ValueError('prompts and texts differ in number')
      call_ends, calls = tensors.pop('call_ends', None), None
      if call_ends is not None:
        calls = {name: tensors[name] for name in CALLS}
      return cls(**rows, calls=calls, call_ends=call_ends, **metadata)
    except (KeyError, ValueError, TypeError) as error:
      raise damaged(file, f'is damaged ({error})', 'record it again') from None


def _split_rows(tokens: np.ndarray, ends: np.ndarray) -> list[list[int]]:
  """Returns the rows that were joined."""
  if tokens.ndim != 1 or ends.ndim != 1 or tokens.dtype != np.int32 or ends.dtype != np.int32:
    raise ValueError('tokens and ends must be lists of int32')
  bounds = [0, *ends.tolist()]
  if sorted(bounds) != bounds or bounds[-1] != len(tokens):
    raise ValueError('ends do not fit the tokens')
  return [tokens[begin:end].tolist() for begin, end in itertools.pairwise(bounds)]


def trace(
  model: Model,
  params: Params,
  prompts: Sequence[Sequence[int]],
  strategy: Any,
  max_len: Whole | None = None,
  key: Any = None,
  processors: Any = None,
  constraint: Any = None,
  top: Whole = TOP,
  folder: PathLike | None = None,
  dtype: str | None = None,
) -> Trace:
  """Decodes prompts one by one as `stream`, and records every call.

  Args:
    model, params, strategy, max_len, key, processors, constraint: as in `fd.decode`.
    prompts: ids of each, without padding; for an encoder-decoder, the sources.
    top: how many likeliest tokens of each law are kept.
    folder, dtype: of the model, so that `replay` can read it again.

  Raises:
    UserError: as `fd.stream`; `top` is larger than the vocabulary.
  """
  strategy = read_streaming(strategy)
  top = count('top', top, 1, f'1 to {model.vocab_size}')
  if top > model.vocab_size:
    raise UserError(f'top={top} is not possible: give 1 to {model.vocab_size}')
  watched = Watched(strategy, top)
  texts, calls, call_ends = [], [], []
  keys, own_key = None, None
  if key is not None:
    keys = make_row_keys(key, len(prompts))
  for i, ids in enumerate(prompts):
    if keys is not None:
      own_key = keys[i : i + 1]
    settings = Settings(
      max_len=max_len, key=own_key, processors=processors, constraint=constraint
    )  # fmt: skip
    run = start(model, params, np.array([ids], np.int32), watched, settings, ladders=SINGLE)
    run.advance(0)
    text = run.read_new()[0]
    while not run.is_over:
      run.advance(1)
      text += run.read_new()[0]
      call = jax.device_get(run.state.drafter[1])
      calls.append(jax.tree.map(lambda x: x[0], call))
    texts.append(text)
    call_ends.append(len(calls))
  recorded = Trace(
    [[*map(int, ids)] for ids in prompts], texts, dtype=dtype, strategy=describe(strategy)
  )
  if calls:
    arrays = {}
    for name in CALLS:
      arrays[name] = np.stack([getattr(call, name) for call in calls])
    recorded = dataclasses.replace(recorded, calls=arrays, call_ends=np.array(call_ends, np.int32))
  if folder is not None:
    path, content = str(find_folder(folder).absolute()), folders.content(folder)
    recorded = dataclasses.replace(recorded, model=path, content=content)
  return recorded


@struct.pytree
class Replayed(Decoded):
  """What a decode would return; with `timed`, also how long the calls of each text would take."""

  milliseconds: Float[np.ndarray, ' b'] | None = None  # without the prompt


def replay(
  trace: Trace | PathLike,
  strategy: Any,
  model: Model | None = None,
  params: Params | None = None,
  timed: bool = False,
) -> Replayed:
  """Returns what `decode` with a strategy would return if it wrote the texts of a trace.

  The model's layers read each text once, in parallel, and only the drafter is called step by step.
  So it finds the tokens a call of any k, tree or union without a decode. See `evaluation.replay`.

  Args:
    trace: a file of `fastdec generate --trace` or of `Trace.save`; or a `Trace`.
    strategy: a lossless one that guesses, such as `PromptLookup`, `Eagle`, `Medusa`, `Speculative`
      or `Union`.
    model, params: what wrote the texts; None: read from the folder that the trace names.
    timed: times calls of the model and the drafter here, on one text at a time. All calls cost the
      same, so the time of a text is its number of calls times that.

  Raises:
    UserError: the file is not a trace; the trace names no model, or the model has changed; the
      strategy's calls do not follow from a text.
  """
  if not isinstance(trace, Trace):
    trace = Trace.load(trace)
  target: tuple[Any, Any] = model, params
  if model is None:
    if trace.model is None:
      raise UserError('this trace names no model: give model and params, as from fd.load')
    if folders.content(trace.model) != trace.content:
      raise UserError(
        f'{trace.model} is not the model that wrote this trace: give its model and params, as from'
        ' fd.load, or record the trace again'
      )
    folder = open_fast(trace.model, trace.dtype)
    target = folder.model, folder.params()
  out = replay_texts(*target, trace.prompts, trace.texts, strategy)
  milliseconds = None
  if timed:
    strategy = read_streaming(strategy)
    first, longest = np.array(trace.prompts[:1]), max(map(len, trace.texts))
    calls = Calls.after_prompt(Bound(*target), strategy.drafter, first, longest, TIMED)
    timing = measure({'calls': calls}, REPEATS)['calls']
    milliseconds = timing.milliseconds / TIMED * np.asarray(out.calls)
  fields = {field.name: getattr(out, field.name) for field in dataclasses.fields(out)}
  return Replayed(**fields, milliseconds=milliseconds)
