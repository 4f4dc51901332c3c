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
the strategy, and what else decided the texts. `replay` only needs prompts, texts and the model.
"""

import dataclasses
import itertools
import pathlib
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fastdec import folders, struct
from fastdec.decoding.description import describe, label
from fastdec.decoding.inputs import read_rows
from fastdec.decoding.protocol import Decoded, Draft, Prefill, Prompt, Step
from fastdec.decoding.request import Settings, prepare
from fastdec.decoding.run import Run
from fastdec.decoding.settings import Whole, count
from fastdec.decoding.sizes import SINGLE
from fastdec.decoding.strategy import LoopStrategy, read_streaming
from fastdec.decoding.topology import with_rows
from fastdec.errors import UserError, UserNote
from fastdec.evaluation.calls import Calls
from fastdec.evaluation.replay import replay as replay_texts
from fastdec.evaluation.wallclock import measure
from fastdec.fields import quote
from fastdec.files import damage, place, place_to_write, whole_file
from fastdec.folders.folder import PathLike, find_folder
from fastdec.kernels.sharding import mesh_of
from fastdec.laws.processors import Processors
from fastdec.models.api import Model, Params
from fastdec.struct import Bound
from fastdec.text.generator import read_stops
from fastdec.text.load import open_fast
from fastdec.text.reader import StopReader

FORMAT = 'fastdec-trace'
TOP = 5  # likeliest tokens that a trace keeps of each law
TIMED, REPEATS = 10, 5  # calls that are timed at once, and how often
ENDS = {'prompts': 'prompt_ends', 'texts': 'ends'}
METADATA = ('model', 'content', 'dtype', 'strategy', 'settings')
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
    settings: in words: the limit, strings that ended texts, processors, a constraint.
    file: where it was read; None: this process recorded it.
  """

  prompts: Sequence[Sequence[int]]
  texts: Sequence[Sequence[int]]
  calls: dict[str, np.ndarray] | None = None
  call_ends: np.ndarray | None = None
  model: str | None = None
  content: str | None = None
  dtype: str | None = None
  strategy: str | None = None
  settings: str | None = None
  file: pathlib.Path | None = None

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
    for name in METADATA:
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
      raise damage(file, f'is damaged ({error})', 'record it again') from None
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
        lengths = {len(array) for array in calls.values()}
        if call_ends.shape != (len(rows['texts']),) or lengths != {*call_ends[-1:].tolist()}:
          raise ValueError('the calls do not fit the texts')
      own = {name: metadata[name] for name in METADATA if name in metadata}
      return cls(**rows, calls=calls, call_ends=call_ends, **own, file=file)
    except (KeyError, ValueError, TypeError) as error:
      raise damage(file, f'is damaged ({error})', 'record it again') from None


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
  max_len: Whole | Sequence[Whole] | None = None,
  key: Any = None,
  processors: Any = None,
  constraint: Any = None,
  top: Whole = TOP,
  folder: PathLike | None = None,
  dtype: str | None = None,
  stop: Any = (),
  tokenizer: Any = None,
  contexts: Sequence[Sequence[int]] | None = None,
) -> Trace:
  """Decodes prompts one by one, and records every call. The texts are those of `fd.decode_all`.

  Args:
    model, params, strategy, max_len, key, processors, constraint: as in `fd.decode_all`.
    prompts: ids of each, without padding; for an encoder-decoder, the sources.
    top: how many likeliest tokens of each law are kept.
    folder, dtype: of the model, so that `replay` can read it again.
    stop: strings that end a text with the token that completes one; they need the tokenizer.
    tokenizer: as `fd.load_tokenizer` returns it.
    contexts: ids whose text each output continues; None: the prompt's, or none after a source.

  Raises:
    UserError: as `fd.stream`; `top` is larger than the vocabulary; `stop` without a tokenizer.
  """
  strategy = read_streaming(strategy)
  top = count('top', top, 1, f'1 to {model.vocab_size}')
  if top > model.vocab_size:
    raise UserError(f'top={top} is not possible: give 1 to {model.vocab_size}')
  stops = read_stops(stop)
  if stops and tokenizer is None:
    raise UserError('stop needs the tokenizer: give tokenizer=fd.load_tokenizer(folder)')
  settings = Settings(max_len=max_len, key=key, processors=processors, constraint=constraint)
  request = prepare(model, params, prompts, Watched(strategy, top), settings)
  sources = read_rows(model, request.prompt)
  copies = 1 if request.mesh is None else request.mesh.shape['data']  # of a row, for all devices

  texts, calls, call_ends = [], [], []
  for i, source in enumerate(sources):
    run = Run.begin(request.take(np.full(copies, i), len(source)), SINGLE)
    reader = None
    if stops:
      context = [] if model.start_id is not None else source.tolist()
      if contexts is not None:
        context = [*contexts[i]]
      reader = StopReader(tokenizer, context, stops)

    # Record call by call up to the text's end, or up to the token that completes a stop string.
    text, made = [], 0
    while True:
      run.advance(min(made, 1))
      block, call = run.read_new()[0], jax.device_get(run.state.drafter[1])
      if reader is not None:
        before = reader.count
        reader.add(block)
        block = block[: reader.count - before]
      text += block
      if made:
        call = jax.tree.map(lambda x: x[0], call)
        calls.append(dataclasses.replace(call, emitted=np.int32(len(block))))
      made += 1
      if run.is_over or (reader is not None and reader.stop is not None):
        break
    texts.append(text)
    call_ends.append(len(calls))
  recorded = Trace(
    [source.tolist() for source in sources], texts, dtype=dtype, strategy=_describe(strategy),
    settings=_describe_settings(max_len, stops, processors, constraint),
  )  # fmt: skip
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
  constraint: Any = None,
  processors: Any = None,
) -> Replayed:
  """Returns what `decode` with a strategy would return if it wrote the texts of a trace.

  The model's layers read each text once, in parallel, and only the drafter is called step by step.
  So it finds the tokens a call of any k, tree or union without a decode. See `evaluation.replay`.

  Args:
    trace: a file of `fastdec generate --trace` or of `Trace.save`; or a `Trace`.
    strategy: a lossless one that guesses, such as `PromptLookup`, `Eagle`, `Medusa`, `Speculative`
      or `Union`.
    model, params: what wrote the texts. None: read from the folder that `fd.trace` was given; a
      file may be someone else's, so the folder that it names is not opened.
    timed: times calls of the model and the drafter here, on one text at a time. All calls cost the
      same, so the time of a text is its number of calls times that.
    constraint, processors: of the texts, for `Forced`; no other draft depends on them.

  Raises:
    UserError: the file is not a trace; a file, or a trace that names no model, without model and
      params; the model has changed; the strategy's calls do not follow from a text.
  """
  if not isinstance(trace, Trace):
    trace = Trace.load(trace)
  strategy = read_streaming(strategy)
  target: tuple[Any, Any] = model, params
  if model is None:
    if trace.model is None or trace.file is not None:
      name = 'this trace' if trace.file is None else str(trace.file)
      writer = 'no model' if trace.model is None else f'the model {quote(trace.model)}'
      raise UserError(f'{name} names {writer}: give model and params, as from fd.load')
    if folders.content(trace.model) != trace.content:
      raise UserError(
        f'{trace.model} is not the model that wrote this trace: give its model and params, as from'
        ' fd.load, or record the trace again'
      )
    folder = open_fast(trace.model, trace.dtype)
    target = folder.model, folder.params()
  # Rows of a mesh are divided over its devices: copies of the last text fill them.
  n, mesh = len(trace.texts), mesh_of(target[1])
  prompts, texts = [*trace.prompts], [*trace.texts]
  if mesh is not None:
    copies = -n % mesh.shape['data']
    prompts, texts = prompts + copies * prompts[-1:], texts + copies * texts[-1:]
  laws = {'constraint': constraint, 'processors': processors}
  out = replay_texts(*target, prompts, texts, strategy, **laws)
  out = jax.tree.map(lambda x: np.asarray(x)[:n], out)

  # With its own strategy a trace has to give the calls that it recorded.
  if trace.call_ends is not None and trace.strategy == _describe(strategy):
    differ = int((np.diff(trace.call_ends, prepend=0) != out.calls).sum())
    if differ:
      warnings.warn(
        f'the calls of {differ} of {n} texts are not those of the trace, which this strategy'
        ' recorded: its draft is a different one, or its guesses depend on rounding',
        UserNote,
        stacklevel=2,
      )
  milliseconds = None
  if timed:
    first, longest = np.array(trace.prompts[:1]), max(map(len, trace.texts))
    calls = Calls.after_prompt(Bound(*target), strategy.drafter, first, longest, TIMED)
    timing = measure({'calls': calls}, REPEATS)['calls']
    milliseconds = timing.milliseconds / TIMED * np.asarray(out.calls)
  fields = {field.name: getattr(out, field.name) for field in dataclasses.fields(out)}
  return Replayed(**fields, milliseconds=milliseconds)


def _describe(strategy: Any) -> str:
  """Returns a strategy in words; what cannot be described has its name and settings."""
  try:
    return describe(strategy)
  except UserError:
    return label(strategy)


def _describe_settings(max_len: Any, stops: Sequence[str], processors: Any, constraint: Any) -> str:
  """Returns in words what decided the texts besides model and strategy."""
  settings: dict[str, Any] = {}
  if max_len is not None:
    settings['max_len'] = np.asarray(max_len).tolist()
  if stops:
    settings['stop'] = list(stops)
  if constraint is not None:
    settings['constraint'] = True
  neutral = Processors()
  for name, value in vars(processors or neutral).items():
    if repr(value) != repr(getattr(neutral, name, None)):
      settings[name] = value.tolist() if isinstance(value, np.ndarray) else value
  return ', '.join(f'{name}={value!r}' for name, value in settings.items())
