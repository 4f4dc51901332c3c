"""Text in, text out: a model with its tokenizer, from a folder, and how to decode.

g = fd.Generator.load('out/run', strategy='tuned')
print(g('A man in', max_new_tokens=64).text)
for piece in g.stream('A man in'):
  print(piece, end='')
"""

import dataclasses
import functools
import html
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fastdec.decoding.decode import decode, stream
from fastdec.decoding.description import parse, usual_for
from fastdec.decoding.inputs import DEFAULT_MAX_LEN
from fastdec.decoding.methods.greedy import Greedy
from fastdec.decoding.pool import decode_each
from fastdec.decoding.protocol import Noted, Prompt, check_finite, finish_reason, promise_of
from fastdec.decoding.request import ended_by
from fastdec.decoding.sampling import SETTINGS
from fastdec.decoding.settings import Whole, count
from fastdec.decoding.strategy import LoopStrategy, check_strategy, with_settings
from fastdec.errors import UserError
from fastdec.fields import known, shown
from fastdec.folders.folder import PathLike
from fastdec.heads.draft import check_target
from fastdec.hub.tokenizers.languages import Languages, languages_of
from fastdec.kernels.packing import pack_if_faster
from fastdec.kernels.sharding import mesh_of
from fastdec.laws.constraint import Constraint, spelling_of
from fastdec.laws.processors import Processors
from fastdec.struct import Bound
from fastdec.text.load import (
  is_draft,
  load_draft,
  load_heads,
  load_tuned,
  open_folder,
  tokenizer_of,
)
from fastdec.text.reader import Reader, Stopping

ROWS = 16  # texts decoded at once
UNKNOWN = ' ⁇ '  # as SentencePiece writes it, and others do not
PROCESSORS = tuple(
  field.name for field in dataclasses.fields(Processors)
)  # repetition_penalty, ...


@dataclasses.dataclass(frozen=True)
class Generated:
  """A text that a model wrote. A notebook shows it with its blocks coloured.

  Attributes:
    text: without the prompt, special tokens, and the stop string and all behind it.
    tokens: their ids, the end included; up to the one that completes a stop string.
    blocks: the tokens, by the call that emitted them. The first came with the prompt.
    calls: of the model.
    finish_reason: 'end', 'stop' or 'length'.
    seconds: from the request to this text. They include compiling at the first of a size.
    logprobs: of each token, by the model's own law; None unless they are asked for.
    top_logprobs: {token: log-probability} of the likeliest tokens at each place.
  """

  text: str
  tokens: list[int]
  blocks: list[list[int]]
  calls: int
  finish_reason: str
  seconds: float
  logprobs: list[float] | None = None
  # tokenizer and ids before, as of `Reader`
  _read_by: Any = dataclasses.field(default=None, repr=False, compare=False)
  top_logprobs: list[dict[int, float]] | None = dataclasses.field(default=None, repr=False)

  @property
  def tokens_per_call(self) -> float:
    """Tokens that a call emitted; nan without a call."""
    return (len(self.tokens) - 1) / self.calls if self.calls else float('nan')

  @property
  def tokens_per_second(self) -> float:
    """Speed of this text; texts of a list share their time."""
    return len(self.tokens) / self.seconds

  @property
  def pieces(self) -> list[str]:
    """The text of each block; joined, they are the text."""
    reader, pieces, left = Reader(*self._read_by), [], len(self.text)
    for i, block in enumerate(self.blocks):
      piece = reader.add(block) + (reader.finish() if i + 1 == len(self.blocks) else '')
      pieces.append(piece[:left])
      left -= len(pieces[-1])
    return pieces

  def __str__(self) -> str:
    return self.text

  def _repr_html_(self) -> str:
    spans = []
    for i, (block, piece) in enumerate(zip(self.blocks, self.pieces, strict=True)):
      said = 'with the prompt' if not i else f'call {i}: {len(block)} tokens'
      style = f'background:{("#d7ebff", "#ffe3b3")[i % 2]};color:#111;border-radius:3px'
      spans.append(f'<span title="{said}" style="{style}">{html.escape(piece)}</span>')
    speed = f'{self.tokens_per_call:.2f} a call, {self.tokens_per_second:.0f} a second'
    told = f'{len(self.tokens)} tokens, {self.calls} calls: {speed} ({self.finish_reason})'
    return f'<div style="white-space:pre-wrap">{"".join(spans)}</div><small>{told}</small>'


@dataclasses.dataclass(frozen=True)
class Generator:
  """A model with its tokenizer and a strategy; `Generator.load` makes one from folders.

  Attributes:
    model, params: as `fd.load` returns them.
    tokenizer: as `fd.load_tokenizer` returns it.
    strategy: as of `fd.decode`.
    rows: prompts of a list that are decoded at once.
    processors: as of `fd.decode`; `load` reads those of the folder's generation_config.json.
    source, target: languages of a translation model, by the codes of its tokenizer: 'en', 'de_DE',
      'deu_Latn'. None: as tokenizer and model have it.
    constraint: as of `fd.decode`.
  """

  model: Any
  params: Any = dataclasses.field(repr=False)
  tokenizer: Any = dataclasses.field(repr=False)
  strategy: Any = dataclasses.field(default_factory=Greedy)
  rows: int = ROWS
  processors: Processors | None = None
  source: str | None = None
  target: str | None = None
  constraint: Constraint | None = None

  def __post_init__(self) -> None:
    check_strategy(self.strategy)
    object.__setattr__(self, 'processors', self._with_language(self.processors))
    if self._languages.start is not None:
      self._start_with(self._languages.start)

  @functools.cached_property
  def _languages(self) -> Languages:
    if self.source is None and self.target is None:
      return Languages()
    return languages_of(self.tokenizer, self.model, self.source, self.target)

  @functools.cached_property
  def _spelling(self) -> int | None:
    spell = getattr(self.tokenizer, 'token_bytes', None)
    return None if spell is None else spelling_of(spell())

  def _with_language(self, processors: Processors | None) -> Processors | None:
    """Returns processors that force the target's language, if texts begin with it."""
    begin = self._languages.begin
    if begin is None:
      return processors
    return dataclasses.replace(processors or Processors(), forced_begin=begin)

  def _start_with(self, start: int) -> None:
    """Lets the decoder begin with a language, and that of a draft model that began alike."""
    before, strategy = self.model.start_id, self.strategy
    object.__setattr__(self, 'model', _started(self.model, start))
    if getattr(strategy, 'drafts_by_model', False):
      draft, params = strategy.draft
      if draft.start_id == before:
        strategy = dataclasses.replace(strategy, draft=(_started(draft, start), params))
        object.__setattr__(self, 'strategy', strategy)

  @classmethod
  def load(
    cls,
    path: PathLike,
    draft: PathLike | None = None,
    heads: PathLike | None = None,
    dtype: Any = None,
    strategy: Any = None,
    mesh: Mesh | None = None,
    source: str | None = None,
    target: str | None = None,
  ) -> 'Generator':
    """Reads a model and what drafts for it, each from its folder.

    Args:
      path: the model's folder of any kind, a run's workdir, or a name of the Hugging Face hub.
      draft: folder of a smaller model, or of a draft network (`fd.load_draft`).
      heads: folder of prediction heads (`fd.load_heads`).
      dtype, mesh: as of `fd.load`, of all that is read.
      strategy: an object; or words, 'speculative(gamma=4)'; or 'tuned', what `fd.tune` has found
        for the model, or the name of its file, beside the draft or heads that it took; None: by
        `draft` or `heads`, else `Greedy()`.
      source, target: languages, 'en' and 'de', of a model that translates between several.

    Raises:
      UserError: a folder that is no model or has no tokenizer; a draft or heads of another model;
        a strategy that does not take them; languages that the tokenizer lacks.
    """
    is_tuned = isinstance(strategy, str) and (strategy == 'tuned' or strategy.endswith('.json'))
    is_made = strategy is not None and not isinstance(strategy, str)
    if is_made:
      check_strategy(strategy)
    given = [name for name, one in (('draft', draft), ('heads', heads)) if one is not None]
    if len(given) == 2 or (given and is_made):
      said = ' and '.join([*given, *(['strategy'] if is_made else [])])
      raise UserError(f'{said} each say how to draft: give one of them, or a strategy in words')
    rows = ROWS
    if is_tuned:
      if dtype is not None:
        raise UserError(f'strategy={strategy!r} has its own type of numbers: leave out dtype')
      file = None if strategy == 'tuned' else strategy
      part = heads if draft is None else draft
      tuned = load_tuned(path, part, file, mesh, prepare=pack_if_faster)
      strategy, dtype, rows = tuned.strategy, tuned.dtype, tuned.rows
    folder = open_folder(path, dtype)
    model, tokenizer = folder.model, tokenizer_of(folder)
    cls(model, None, tokenizer, source=source, target=target)  # a mistake shows early
    if not (is_tuned or is_made):
      part = None
      if draft is not None:
        part = draft_of(draft, dtype, mesh, model, tokenizer)
      elif heads is not None:
        part = pack_if_faster(*load_heads(heads, dtype, mesh))
      elif strategy is not None and folder.has_heads:
        part = pack_if_faster(folder.heads, folder.head_params(mesh))
      if strategy is None:
        strategy = usual_for(part)
      else:
        strategy = _described(strategy, part, bool(given))
      if strategy.part:
        _check_fits(model, strategy)
    processors = Processors.of(folder.generation)
    model, params = pack_if_faster(model, folder.params(mesh))
    return cls(model, params, tokenizer, strategy, rows, processors, source, target)

  def __call__(
    self,
    prompt: Any,
    max_new_tokens: Whole | Sequence[Whole] = DEFAULT_MAX_LEN,
    stop: Any = (),
    seed: Whole | Sequence[Whole] = 0,
    logprobs: Whole = 0,
    processors: Processors | None = None,
    constraint: Constraint | None = None,
    **settings: Any,
  ) -> Any:
    """Writes what follows a prompt, or each prompt of a list.

    Args:
      prompt: a text; or messages of a chat, {'role': 'user', 'content': 'Hello'}; or a list of
        such. Of an encoder-decoder it is the source.
      max_new_tokens: the most tokens, the end included; `fd.decode` calls it `max_len`.
      stop: strings that end the text where they begin.
      seed: of strategies that draw tokens. A prompt of a list draws by its place.
      logprobs: n for each token's log-probability and the n likeliest tokens of its place.
      processors, constraint: in place of the generator's own.
      **settings: temperature, top_k, ... in place of the strategy's own, as of `fd.Sampling`; and
        repetition_penalty, ... in place of the processors' own, as of `fd.Processors`. For a list,
        each of these numbers, max_new_tokens and seed may be a list too, one for each prompt.

    Returns:
      `Generated`, or a list of them in the order of the prompts.

    Raises:
      UserError: a prompt that is empty, or too long for the model; as `fd.decode`.
    """
    begun, stops = time.perf_counter(), _stops(stop)
    how = self._how(settings, processors, constraint, seed)
    is_one = isinstance(prompt, str) or _is_messages(prompt)
    prompts = [self.read(prompt)] if is_one else [self.read(one) for one in _listed(prompt)]
    for one in [max_new_tokens] if np.ndim(max_new_tokens) != 1 else max_new_tokens:
      count('max_new_tokens', one, 1, 'at least 1')
    model = ended_by(self.model, how['processors'])
    written: list[Any] = [None] * len(prompts)
    how |= {'max_len': max_new_tokens, 'logprobs': logprobs}
    for i, tokens, sizes, calls in self._written(prompts, stops, how):
      read_by = (self.tokenizer, prompts[i][1])
      reader = Stopping(Reader(*read_by), stops)
      text = reader.add(tokens) + reader.finish()
      tokens = tokens[: reader.count]
      found = [one for one in tokens if isinstance(one, Noted)]
      tokens = [int(one) for one in tokens]
      blocks = _blocks(tokens, sizes)
      reason = 'stop' if reader.found else finish_reason(model, tokens)
      calls = len(blocks) - 1 if reader.found else calls
      seconds = time.perf_counter() - begun
      written[i] = Generated(
        text, tokens, blocks, calls, reason, seconds,
        [one.logprob for one in found] if found else None,
        read_by, [one.top_logprobs for one in found] if found else None,
      )  # fmt: skip
    return written[0] if is_one else written

  def stream(
    self,
    prompt: Any,
    max_new_tokens: Whole = DEFAULT_MAX_LEN,
    stop: Any = (),
    seed: Whole = 0,
    processors: Processors | None = None,
    constraint: Constraint | None = None,
    **settings: Any,
  ) -> Iterator[str]:
    """Yields the text of a call in pieces, as they are written. Arguments are those of a call.

    A piece that may begin a stop string waits until it is known.

    Raises:
      UserError: as a call; a strategy that knows its text at the end alone, such as `Beam`.
    """
    how, (ids, context) = self._how(settings, processors, constraint, seed), self.read(prompt)
    reader = Stopping(Reader(self.tokenizer, context), _stops(stop))
    return _said(self._stream(ids, how | {'max_len': max_new_tokens}), reader)

  def chat(self, messages: Any, **settings: Any) -> Generated:
    """Writes the answer to messages, by the chat template of the tokenizer.

    Args:
      messages: {'role': 'user', 'content': 'Hello'}, ...
      **settings: as of a call.

    Raises:
      UserError: as a call; a tokenizer without a template, or messages that it refuses.
    """
    if not _is_messages(messages):
      raise UserError("messages are a list of {'role': 'user', 'content': ...}: give at least one")
    return self(messages, **settings)

  def read(self, prompt: Any) -> tuple[list[int], list[int]]:
    """Returns the ids of a prompt, and those of them whose text the output goes on with."""
    is_source = self.model.start_id is not None
    try:
      json.dumps(prompt, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
      raise UserError(
        r'the prompt has half a character, such as \ud83d: cut it elsewhere'
      ) from None
    if _is_messages(prompt):
      if not hasattr(self.tokenizer, 'encode_chat'):
        raise UserError(
          'this tokenizer has no chat template: give texts, or a model made for chats'
        )
      ids, context = list(self.tokenizer.encode_chat(prompt)), []
    elif isinstance(prompt, str):
      ids = self._languages.encode(self.tokenizer, prompt)
      context = [] if is_source else ids
    else:
      given = type(prompt).__name__
      raise UserError(f'a prompt is a text or the messages of a chat, not a value of kind {given}')
    ends = self.model.eos_ids
    if is_source and ends and not set(ends) & set(ids):
      ids = [*ids, ends[0]]
    if not ids:
      raise UserError('the prompt is empty: give some text to go on from')
    return ids, context

  def _how(
    self, settings: Mapping[str, Any], processors: Any, constraint: Any, seed: Any
  ) -> dict[str, Any]:
    """Returns strategy, processors, constraint and key of a call, as `fd.decode` takes them."""
    constraint = self.constraint if constraint is None else constraint
    if isinstance(constraint, Constraint) and int(constraint.spelling) != self._spelling:
      raise UserError(
        'the constraint was made with another tokenizer, whose tokens spell other texts: make it'
        " with the generator's own"
      )
    processors = self.processors if processors is None else self._with_language(processors)
    changes, sampling = {}, {}
    for name, value in settings.items():
      if name in PROCESSORS:
        changes[name] = value
      elif name in SETTINGS:
        sampling[name] = value
      else:
        raise UserError(f'a call has no argument {name!r}: {known((*SETTINGS, *PROCESSORS))}')
    if changes:
      processors = dataclasses.replace(processors or Processors(), **changes)
    strategy = with_settings(self.strategy, sampling)
    return {
      'strategy': strategy,
      'processors': processors,
      'constraint': constraint,
      'key': _key(strategy, seed),
    }

  def _written(
    self, prompts: Sequence[tuple[list[int], list[int]]], stops: Sequence[str], how: dict[str, Any]
  ) -> Iterator[tuple[int, list[int], list[int], int]]:
    """Yields index, tokens, sizes of blocks and number of calls, of each text as it ends."""
    inputs = [ids for ids, _ in prompts]
    mesh = mesh_of(self.params) if jax.device_count() > 1 else None
    if len(inputs) > 1 or mesh is not None:
      for part in decode_each(self.model, self.params, inputs, rows=self.rows, **how):
        yield from _rows(part.decoded, part.indices.tolist())
    elif inputs and stops and isinstance(self.strategy, LoopStrategy):
      reader, blocks = Stopping(Reader(self.tokenizer, prompts[0][1]), stops), []
      for block in self._stream(inputs[0], how):
        blocks.append(block)
        reader.add(block)
        if reader.found:
          break
      tokens = [token for block in blocks for token in block]
      yield 0, tokens, [len(block) for block in blocks[1:]], len(blocks) - 1
    elif inputs:
      yield from _rows(decode(self.model, self.params, np.array(inputs, np.int32), **how), [0])

  def _stream(self, ids: list[int], how: dict[str, Any]) -> Iterator[list[int]]:
    """Yields the blocks of one text. Mistakes are raised at once."""
    blocks = stream(self.model, self.params, np.array([ids], np.int32), **how)
    return (block for (block,) in blocks)


def _started(model: Any, start: int) -> Any:
  """Returns a model whose decoder starts with another id."""
  return dataclasses.replace(model, config=dataclasses.replace(model.config, start_id=start))


def _key(strategy: Any, seed: Any) -> Any:
  """Returns the key of a seed; None for a strategy that draws nothing, which is faster without."""
  is_one = not isinstance(seed, list | tuple | np.ndarray)
  each = [seed] if is_one else seed
  seeds = [count('seed', one, 0, 'a whole number from 0') for one in each]
  draws = not isinstance(strategy, LoopStrategy) or promise_of(strategy.effective_rule) != 'exact'
  if not draws:
    return None
  if is_one:
    return jax.random.key(seeds[0])
  return jnp.stack([jax.random.fold_in(jax.random.key(one), 0) for one in seeds])  # as alone


def _stops(stop: Any) -> tuple[str, ...]:
  stops = (stop,) if isinstance(stop, str) else stop
  is_list = isinstance(stops, list | tuple | set)
  if not (is_list and all(isinstance(one, str) and one for one in stops)):
    raise UserError(f'stop={shown(stop)} is not possible: give strings that are not empty')
  return tuple(stops)


def _is_messages(prompt: Any) -> bool:
  is_list = isinstance(prompt, Sequence) and not isinstance(prompt, str) and len(prompt) > 0
  return is_list and all(isinstance(one, Mapping) for one in prompt)


def _listed(prompts: Any) -> Sequence[Any]:
  if not isinstance(prompts, Sequence):
    given = type(prompts).__name__
    raise UserError(f'give a prompt or a list of prompts, not a value of the kind {given}')
  return prompts


def _said(blocks: Iterator[list[int]], reader: Stopping) -> Iterator[str]:
  """Yields the text of blocks until a stop string."""
  for block in blocks:
    if piece := reader.add(block):
      yield piece
    if reader.found:
      return
  if piece := reader.finish():
    yield piece


def _rows(decoded: Any, indices: Sequence[int]) -> Iterator[tuple[int, list[int], list[int], int]]:
  """Yields index, tokens, sizes of blocks and number of calls, of each row."""
  decoded = jax.device_get(decoded)
  check_finite(decoded.finite)
  for row, index in enumerate(indices):
    sizes = decoded.block_sizes[row]
    yield index, decoded.written(row), sizes[sizes > 0].tolist(), int(decoded.calls[row])


def _blocks(tokens: list[int], sizes: Sequence[int]) -> list[list[int]]:
  """Cuts tokens by their calls; the first came with the prompt."""
  blocks, at = [tokens[:1]], 1
  for size in sizes:
    if at < len(tokens):
      blocks.append(tokens[at : at + size])
    at += size
  return blocks


def draft_of(path: PathLike, dtype: Any, mesh: Any, model: Any, tokenizer: Any) -> tuple[Any, Any]:
  """Reads the draft network, or the smaller model, of a folder."""
  if is_draft(path):
    network = load_draft(path, dtype, mesh)
    check_target(Bound(*network), model)
    return pack_if_faster(*network)
  folder = open_folder(path, dtype)
  check_same_ids(tokenizer, tokenizer_of(folder), path)
  return pack_if_faster(folder.model, folder.params(mesh))


def _described(words: str, part: Any, is_given: bool) -> Any:
  """Reads a strategy in words, with the draft or the heads that it takes."""
  strategy = parse(words, part)
  if is_given and not strategy.part:
    raise UserError(f'strategy={shown(words)} drafts without a folder: leave out draft and heads')
  if strategy.drafts_by_model:  # whose ids `draft_of` has compared
    return dataclasses.replace(strategy, same_ids=True)
  return strategy


def _check_fits(model: Any, strategy: Any) -> None:
  """Traces a call, without parameters, so that heads or a draft of another model are told early."""
  one = np.ones(1, np.int32)
  source = None if model.start_id is None else np.full((1, 1), model.pad_id, np.int32)
  tokens = np.full((1, 1), model.pad_id if model.start_id is None else model.start_id, np.int32)
  prompt = Prompt(source, tokens, one, np.zeros(1, bool), one)
  strategy.check(model, prompt, 1)
  keys = jax.random.split(jax.random.key(0), 1)

  def call(strategy: Any, params: Any, prompt: Prompt) -> Any:
    target = Bound(model, params)
    return strategy.step(target, strategy.init(target, prompt, 1, keys))

  jax.eval_shape(call, strategy, jax.eval_shape(model.init, jax.random.key(0)), prompt)


def check_same_ids(tokenizer: Any, other: Any, path: PathLike) -> None:
  """Raises UserError where the ids that both tokenizers have do not all mean the same."""
  sources = [one.source.words for one in (tokenizer, other) if hasattr(one, 'source')]
  if len(sources) == 2 and sources[0] != sources[1]:
    raise UserError(
      f'{path} reads other source words than the model: give one with its dictionaries'
    )
  for token in range(min(tokenizer.vocab_size, other.vocab_size)):
    here, there = (one.decode([token]) for one in (tokenizer, other))
    if here != there and {here, there} != {'', UNKNOWN}:
      raise UserError(
        f'{path} has {other.vocab_size} tokens and the model {tokenizer.vocab_size}, of which'
        f' number {token} is {there!r} and {here!r}: give a draft model with the same tokenizer'
      )
