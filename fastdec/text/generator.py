"""Text in, text out: a model with its tokenizer, from a folder, and how to decode.

g = fd.Generator.load('out/run', strategy='tuned')
print(g('A man in', max_new_tokens=64).text)
for piece in g.stream('A man in'):
  print(piece, end='')
"""

import dataclasses
import difflib
import functools
import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fastdec.decoding.decode import stream_blocks
from fastdec.decoding.inputs import DEFAULT_MAX_LEN
from fastdec.decoding.methods.greedy import Greedy
from fastdec.decoding.pool import Finished, decode_list
from fastdec.decoding.protocol import finish_reason, promise_of
from fastdec.decoding.request import Settings, with_ends
from fastdec.decoding.run import start
from fastdec.decoding.sampling import SETTINGS
from fastdec.decoding.settings import Whole, count
from fastdec.decoding.sizes import LISTED, SINGLE
from fastdec.decoding.strategy import LoopStrategy, read_strategy, read_streaming, with_settings
from fastdec.errors import UserError, UserNote
from fastdec.evaluation import wallclock
from fastdec.fields import LAST_SEED, list_known, quote
from fastdec.folders.folder import PathLike
from fastdec.hub.tokenizers.chat import Chats
from fastdec.hub.tokenizers.languages import Languages, find_languages
from fastdec.kernels.packing import pack_if_faster
from fastdec.kernels.sharding import mesh_of
from fastdec.laws.constraint import Constraint, compute_spelling
from fastdec.laws.processors import Processors
from fastdec.text import programs
from fastdec.text.drafting import load_checked_draft, make_strategy
from fastdec.text.generated import Generated
from fastdec.text.load import (
  choose_draft_type,
  is_tuned,
  load_heads,
  load_tokenizer,
  load_tuned,
  open_fast,
)
from fastdec.text.reader import StopReader

ROWS = 16  # texts decoded at once
PROCESSORS = tuple(field.name for field in dataclasses.fields(Processors))
ARGUMENTS = (  # of a call
  'max_new_tokens', 'stop', 'seed', 'logprobs', 'processors', 'constraint', *SETTINGS, *PROCESSORS,
)  # fmt: skip
ELSEWHERE = {  # names of arguments elsewhere, and what they are here
  'max_len': 'max_new_tokens', 'max_length': 'max_new_tokens', 'max_tokens': 'max_new_tokens',
  'stop_strings': 'stop', 'stop_sequences': 'stop',
  'strategy': 'dataclasses.replace(g, strategy=...)',
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Generator:
  """A model with its tokenizer and a strategy; `Generator.load` makes one from folders.

  Attributes:
    model, params: as `fd.load` returns them.
    tokenizer: as `fd.load_tokenizer` returns it.
    strategy: as in `fd.decode`, an object or words such as 'prompt_lookup(k=8)'.
    rows: prompts of a list that are decoded at once.
    processors: as in `fd.decode`; `load` reads those of the folder's generation_config.json.
    source, target: languages of a translation model, by the codes of its tokenizer: 'en', 'de_DE',
      'deu_Latn'. None: as tokenizer and model have it.
    constraint: as in `fd.decode`.
    template: variables for the chat template, such as {'enable_thinking': False}.
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
  template: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  def __post_init__(self) -> None:
    object.__setattr__(self, 'strategy', read_strategy(self.strategy))
    if self.template and isinstance(self.tokenizer, Chats):
      self.tokenizer.check_variables(self.template)
    object.__setattr__(self, 'processors', self._with_language(self.processors))

    # A decoder may begin with the target's language, and then also a draft model that began alike.
    start, before, strategy = self._languages.start, self.model.start_id, self.strategy
    if start is None:
      return
    object.__setattr__(self, 'model', _with_start(self.model, start))
    if getattr(strategy, 'drafts_by_model', False) and strategy.draft.module.start_id == before:
      draft = _with_start(strategy.draft.module, start), strategy.draft.params
      object.__setattr__(self, 'strategy', dataclasses.replace(strategy, draft=draft))

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
    """Reads a model and its draft or heads, each from its folder.

    Args:
      path: the model's folder of any kind, a run's workdir, a GGUF file, or a name of the Hugging
        Face hub.
      draft: a smaller model, as `path`, or the folder of a draft network (`fd.load_draft`).
      heads: folder of prediction heads (`fd.load_heads`).
      dtype, mesh: as in `fd.load`, for all that is read. None: the model's own type, or float32
        where that is slow on this CPU, as a note says (`load.open_fast`); and a draft in int8 where
        that is fast (`load.choose_draft_type`).
      strategy: an object; a description such as 'speculative(gamma=4)'; 'tuned', which `fd.tune`
        chose for this model; or the name of a file that it wrote. Give the draft or heads that it
        uses too. None: the usual one for `draft` or `heads`, else `Greedy()`.
      source, target: languages, 'en' and 'de', of a model that translates between several.

    Compiled programs are kept in the user's cache folder from now on, unless JAX has a cache
    already (`fastdec.text.programs`).

    Raises:
      UserError: a folder without a model or a tokenizer; a draft or heads of a different model;
        a strategy that does not take them; languages that the tokenizer lacks.
    """
    _check_one_way(draft, heads, strategy)
    programs.keep()

    # Read what `fd.tune` chose: a strategy, a type of numbers, and how many texts at once.
    rows = ROWS
    if is_tuned(strategy):
      if dtype is not None:
        raise UserError(f'strategy={strategy!r} has its own type of numbers: leave out dtype')
      part_folder = heads if draft is None else draft
      file = None if strategy == 'tuned' else strategy
      tuned = load_tuned(path, part_folder, file, mesh, prepare=pack_if_faster)
      strategy, dtype, rows = tuned.strategy, tuned.dtype, tuned.rows

    # Open the folder. Languages that the tokenizer lacks are refused before weights are read.
    folder = open_fast(path, dtype)
    model, tokenizer = folder.model, load_tokenizer(folder)
    find_languages(tokenizer, model, source, target)
    _note_turn_end(path, model, tokenizer)

    if strategy is None or isinstance(strategy, str):
      # Read the draft or heads. Words may name a strategy for those in the model's own folder.
      part = None
      if draft is not None:
        part = load_checked_draft(draft, choose_draft_type(folder, dtype), mesh, model, tokenizer)
      elif heads is not None:
        part = pack_if_faster(*load_heads(heads, dtype or folder.dtype, mesh))
      elif strategy is not None and folder.has_heads:
        part = pack_if_faster(folder.heads, folder.head_params(mesh))

      # Choose the strategy.
      words = strategy
      strategy = make_strategy(words, part, model)
      if (draft is not None or heads is not None) and not strategy.part:
        raise UserError(
          f'strategy={quote(words)} drafts without a folder: leave out draft and heads'
        )

    # Read the weights of the model.
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
        such. An encoder-decoder reads it as its source.
      max_new_tokens: the most tokens, the end included; `fd.decode` calls it `max_len`.
      stop: strings that end the text where they begin.
      seed: of strategies that draw tokens. A prompt of a list draws by its place.
      logprobs: n for each token's log-probability and the n likeliest tokens of its place.
      processors, constraint: instead of the generator's own.
      **settings: temperature, top_k, ... instead of the strategy's own, as in `fd.Sampling`; and
        repetition_penalty, ... instead of the processors' own, as in `fd.Processors`. For a list,
        each of these numbers, max_new_tokens and seed may be a list too, one for each prompt.
        Other names are variables of the chat template, such as tools or enable_thinking.

    Returns:
      `Generated`, or a list of them in the order of the prompts.

    Raises:
      UserError: a prompt without any token, or too long for the model; as `fd.decode`.
    """
    started = wallclock.now()

    # Check the arguments, and read the prompts.
    stops = read_stops(stop)
    is_one = isinstance(prompt, str) or _is_messages(prompt)
    listed = prompt if isinstance(prompt, Sequence) and not is_one else [prompt]
    variables = self._variables(settings, listed)
    strategy, decoding = self._settings(settings, max_new_tokens, processors, constraint, seed)
    decoding = dataclasses.replace(decoding, logprobs=logprobs)
    if not is_one and not isinstance(prompt, Sequence):
      kind = type(prompt).__name__
      raise UserError(f'give a prompt or a list of prompts, not a value of the kind {kind}')
    prompts, texts = [], []
    for one in listed:
      ids, context = self.read(one, **variables)
      prompts.append(ids)
      texts.append(_Writing(self.tokenizer, context, stops))

    # Decode, and turn tokens into text up to the first stop string. A text with stop strings is
    # decoded call by call, since no call is needed after one. A search has its text at the end.
    by_call = bool(stops) and isinstance(strategy, LoopStrategy) and len(prompts) == 1
    for index, blocks, calls in self._write(prompts, strategy, decoding, by_call):
      text = texts[index]
      text.add(blocks)
      text.calls += calls
      text.seconds = wallclock.now() - started
      if by_call and text.is_stopped:
        break
    model = with_ends(self.model, decoding.processors)
    outputs = [text.finish(model, bool(logprobs)) for text in texts]
    return outputs[0] if is_one else outputs

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

    Text that may begin a stop string is held back until the next tokens decide.

    Raises:
      UserError: as a call; a strategy that knows its text only at the end, such as `Beam`. Most
        mistakes are raised at once, those that show only in the trace at the first piece.
    """
    blocks = self.stream_blocks(
      prompt, max_new_tokens, stop, seed, 0, processors, constraint, **settings
    )
    return (piece for _, piece in blocks if piece)

  def stream_blocks(
    self,
    prompt: Any,
    max_new_tokens: Whole = DEFAULT_MAX_LEN,
    stop: Any = (),
    seed: Whole = 0,
    logprobs: Whole = 0,
    processors: Processors | None = None,
    constraint: Constraint | None = None,
    **settings: Any,
  ) -> Iterator[tuple[list[int], str]]:
    """Yields the tokens of each call with the text that they complete, as `stream`.

    The last pair has no tokens, and the text that still waited for more of them."""
    variables = self._variables(settings, [prompt])
    strategy, decoding = self._settings(settings, max_new_tokens, processors, constraint, seed)
    read_streaming(strategy)
    decoding = dataclasses.replace(decoding, logprobs=logprobs)
    ids, context = self.read(prompt, **variables)
    text = _Writing(self.tokenizer, context, read_stops(stop))
    blocks = self._write([ids], strategy, decoding, by_call=True)

    def read_pairs() -> Iterator[tuple[list[int], str]]:
      for _, new, _ in blocks:
        yield text.add(new)
        if text.is_stopped:
          break
      yield [], text.reader.finish()

    return read_pairs()

  def chat(self, messages: Any, **settings: Any) -> Any:
    """Writes the answer to messages, by the chat template of the tokenizer.

    Args:
      messages: {'role': 'user', 'content': 'Hello'}, ...; or a list of such chats.
      **settings: as in a call; and variables of the template, such as tools=[...] or
        enable_thinking=False.

    Returns:
      `Generated`, or a list of them in the order of the chats.

    Raises:
      UserError: as a call; a tokenizer without a template, or messages that it refuses.
    """
    chats = messages if isinstance(messages, list | tuple) else [messages]
    if not _is_messages(messages) and not (chats and all(map(_is_messages, chats))):
      raise UserError("messages are a list of {'role': 'user', 'content': ...}: give at least one")
    return self(messages, **settings)

  def read(self, prompt: Any, **variables: Any) -> tuple[list[int], list[int]]:
    """Returns the ids of a prompt, and the ids whose text the output continues.

    The answer in a chat and a translation continue no text: the second list is empty.

    Args:
      prompt: a text, or the messages of a chat.
      **variables: of the chat template, besides the generator's own.
    """
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
      ids, context = list(self.tokenizer.encode_chat(prompt, **{**self.template, **variables})), []
    elif isinstance(prompt, str):
      ids = self._languages.encode(self.tokenizer, prompt)
      context = [] if is_source else ids
    else:
      kind = type(prompt).__name__
      raise UserError(f'a prompt is a text or the messages of a chat, not a value of kind {kind}')

    # A source needs an end, which most tokenizers put there.
    ends = self.model.eos_ids
    if is_source and ends and not set(ends) & set(ids):
      ids = [*ids, ends[0]]
    if not ids:
      raise UserError('the prompt is empty: give some text to continue')
    return ids, context

  def _variables(self, settings: dict[str, Any], prompts: Sequence[Any]) -> dict[str, Any]:
    """Takes from a call's settings those that are variables of the chat template."""
    names = [name for name in settings if name not in (*SETTINGS, *PROCESSORS)]
    if not names or not any(map(_is_messages, prompts)):
      return {}  # texts have none: the call refuses them
    variables = {name: settings.pop(name) for name in names}
    if isinstance(self.tokenizer, Chats):
      self.tokenizer.check_variables(variables, _describe_near)
    return variables

  @functools.cached_property
  def _languages(self) -> Languages:
    return find_languages(self.tokenizer, self.model, self.source, self.target)

  @functools.cached_property
  def _spelling(self) -> int | None:
    """A number for the texts of all tokens, by which a constraint knows its tokenizer."""
    if not hasattr(self.tokenizer, 'token_bytes'):
      return None
    return compute_spelling(self.tokenizer.token_bytes())

  def _with_language(self, processors: Processors | None) -> Processors | None:
    """Returns processors that force the target's language, if texts begin with it."""
    begin = self._languages.begin
    if begin is None:
      return processors
    return dataclasses.replace(processors or Processors(), forced_begin=begin)

  def _settings(
    self,
    settings: Mapping[str, Any],
    max_new_tokens: Any,
    processors: Any,
    constraint: Any,
    seed: Any,
  ) -> tuple[Any, Settings]:
    """Checks the arguments of a call; returns the strategy, and the settings of the decode."""
    limits = max_new_tokens if np.ndim(max_new_tokens) == 1 else [max_new_tokens]
    for most in limits:
      count('max_new_tokens', most, 1, '1 or more')
    if constraint is None:
      constraint = self.constraint
    if isinstance(constraint, Constraint) and int(constraint.spelling) != self._spelling:
      raise UserError(
        'the constraint was made with a different tokenizer, whose tokens spell other texts: make'
        " it with the generator's own"
      )
    processors = self.processors if processors is None else self._with_language(processors)
    changes, sampling = {}, {}
    for name, value in settings.items():
      if name in PROCESSORS:
        changes[name] = value
      elif name in SETTINGS:
        sampling[name] = value
      else:
        raise UserError(f'a call has no argument {name!r}: {_describe_near(name)}')
    if changes:
      processors = dataclasses.replace(processors or Processors(), **changes)
    strategy = with_settings(self.strategy, sampling)
    key = key_of(strategy, seed)
    return strategy, Settings(max_new_tokens, None, key, processors, constraint)

  def _write(
    self, prompts: Sequence[list[int]], strategy: Any, settings: Settings, by_call: bool
  ) -> Iterator[tuple[int, list[list[Any]], int]]:
    """Decodes prompts; yields the place of each in the list, its blocks, and the number of calls.

    Texts come as they end, or `by_call` as the blocks of the only text. Arguments are checked at
    once, and the program is traced with the first block.
    """
    if not prompts:
      return iter(())
    target = (self.model, self.params)
    if by_call:
      inputs = np.array(prompts, np.int32)
      blocks = stream_blocks(start(*target, inputs, strategy, settings, ladders=SINGLE))
      return ((0, block, int(number > 0)) for number, block in enumerate(blocks))
    mesh = mesh_of(self.params) if jax.device_count() > 1 else None
    if len(prompts) > 1 or mesh is not None:
      return _whole_texts(decode_list(*target, prompts, strategy, self.rows, settings, LISTED))
    run = start(*target, np.array(prompts, np.int32), strategy, settings, ladders=SINGLE)
    run.advance()
    decoded = run.finish(jax.device_get(run.decoded), run.prompt)
    return _whole_texts([Finished(np.array([0]), decoded, run.calls)])


def _note_turn_end(path: PathLike, model: Any, tokenizer: Any) -> None:
  """Warns by a `UserNote` if turns of a chat end by a token that does not end texts."""
  end = tokenizer.turn_end() if hasattr(tokenizer, 'turn_end') else None
  if end is not None and end[0] not in model.eos_ids:
    warnings.warn(
      f'{path}: the chat template ends turns by {quote(end[1])}, the eos_token of the tokenizer,'
      f' which does not end texts by config.json and generation_config.json. Chats continue after'
      f' it: give stop={quote(end[1])}',
      UserNote,
      stacklevel=3,
    )


def _check_one_way(draft: Any, heads: Any, strategy: Any) -> None:
  """Raises UserError unless one argument decides how to draft.

  A strategy in words may come with a folder that it drafts with; an object may not.
  """
  deciding = []
  if draft is not None:
    deciding.append('draft')
  if heads is not None:
    deciding.append('heads')
  if strategy is not None and not isinstance(strategy, str):
    read_strategy(strategy)
    deciding.append('strategy')
  if len(deciding) > 1:
    names = ' and '.join(deciding)
    raise UserError(f'{names} each say how to draft: give one of them, or a strategy in words')


class _Writing:
  """A text while it is written: tokens become text, up to the first of some strings."""

  def __init__(self, tokenizer: Any, context: list[int], stops: Sequence[str]) -> None:
    self.reader = StopReader(tokenizer, context, stops)
    self.calls = 0
    self.seconds = 0.0
    self._read_by = tokenizer, context
    self._text = ''
    self._tokens: list[Any] = []  # `protocol.Noted`, if there are log-probabilities
    self._blocks: list[list[int]] = []

  @property
  def is_stopped(self) -> bool:
    return self.reader.stop is not None

  def add(self, blocks: Sequence[list[Any]]) -> tuple[list[Any], str]:
    """Adds the tokens of some calls, up to the end of the text.

    Returns those that belong to it, and the text that they complete."""
    added, text = [], ''
    for block in blocks:
      before = self.reader.count
      text += self.reader.add(block)
      kept = block[: self.reader.count - before]
      added += kept
      if kept:
        self._blocks.append([int(token) for token in kept])
    self._tokens += added
    self._text += text
    return added, text

  def finish(self, model: Any, has_logprobs: bool) -> Generated:
    """Returns the whole text."""
    tokens, is_stopped = self._tokens, self.is_stopped
    return Generated(
      text=self._text + self.reader.finish(),
      tokens=[int(token) for token in tokens],
      blocks=self._blocks,
      calls=len(self._blocks) - 1 if is_stopped else self.calls,
      finish_reason='stop' if is_stopped else finish_reason(model, tokens),
      seconds=self.seconds,
      logprobs=[token.logprob for token in tokens] if has_logprobs else None,
      top_logprobs=[token.top_logprobs for token in tokens] if has_logprobs else None,
      _read_by=self._read_by,
    )


def _describe_near(name: str) -> str:
  """Describes the arguments of a call, for a message about an unknown one."""
  near = [ELSEWHERE[name]] if name in ELSEWHERE else difflib.get_close_matches(name, ARGUMENTS, 1)
  if near:
    return f'did you mean {near[0]}?'
  return list_known(ARGUMENTS)


def _whole_texts(parts: Iterable[Finished]) -> Iterator[tuple[int, list[list[Any]], int]]:
  """Yields the place, the blocks and the calls of each text that has ended."""
  for part in parts:
    decoded = jax.device_get(part.decoded).checked()
    for row, place in enumerate(part.indices.tolist()):
      blocks = blocks_by_calls(decoded.written(row), decoded.block_sizes[row].tolist())
      yield place, blocks, int(decoded.calls[row])


def blocks_by_calls(tokens: list[Any], sizes: Sequence[int]) -> list[list[Any]]:
  """Cuts tokens by their calls; the first came with the prompt. Sizes of 0 end no block."""
  blocks, begin = [tokens[:1]], 1
  for size in sizes:
    if size and begin < len(tokens):
      blocks.append(tokens[begin : begin + size])
    begin += size
  return blocks


def _with_start(model: Any, start: int) -> Any:
  """Returns a model whose decoder starts with this id."""
  return dataclasses.replace(model, config=dataclasses.replace(model.config, start_id=start))


def key_of(strategy: Any, seed: Any) -> Any:
  """Returns the key of a seed, or one key for each seed of a list.

  None if the rule is exact, since decoding is faster without keys.
  """
  is_list = isinstance(seed, list | tuple | np.ndarray)
  seeds, allowed = [], f'a whole number from 0 to {LAST_SEED}'
  for one in seed if is_list else [seed]:
    seeds.append(count('seed', one, 0, allowed, LAST_SEED))
  if isinstance(strategy, LoopStrategy) and promise_of(strategy.effective_rule) == 'exact':
    return None
  keys = [jax.random.key(one) for one in seeds]
  if not is_list:
    return keys[0]
  # `fd.decode` gives row 0 this key, so each prompt draws as it would in its own call.
  return jnp.stack([jax.random.fold_in(key, 0) for key in keys])


def read_stops(stop: Any) -> tuple[str, ...]:
  """Returns the strings of a call's `stop`, which may be one string or several."""
  stops = (stop,) if isinstance(stop, str) else stop
  is_list = isinstance(stops, list | tuple | set)
  if not is_list or not all(isinstance(one, str) and one for one in stops):
    raise UserError(f'stop={quote(stop)} is not possible: give strings that are not empty')
  return tuple(stops)


def _is_messages(prompt: Any) -> bool:
  """True for the messages of a chat."""
  if isinstance(prompt, str) or not isinstance(prompt, Sequence) or not len(prompt):
    return False
  return all(isinstance(message, Mapping) for message in prompt)
