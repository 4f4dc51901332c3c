"""Logits processors: penalties, biases, forbidden and forced tokens, as in `generate`.

`Processors` holds a user's settings; `Processing` is the law that they make for a model
(`decoding.law`). Each row remembers which words its text has, so a call costs a few passes over the
logits however long the text is; n-gram settings also scan the text. What the ancestors of a draft's
nodes change is added afterwards.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fastdec import struct
from fastdec.decoding.law import Emitted, Law
from fastdec.decoding.protocol import Draft, Prompt
from fastdec.decoding.sampling import is_among
from fastdec.decoding.settings import LARGEST, SMALLEST, Whole, check_one_per_row, count, each, size
from fastdec.decoding.text import Text
from fastdec.decoding.topology import with_rows
from fastdec.errors import UserError
from fastdec.fields import quote
from fastdec.files import place, read_json
from fastdec.models.api import Model, has_own_source_ids

NONE = -1  # fills the places before a text, and before a shorter sequence of a table
MOST = 1e30  # a logit beyond it would be infinite at a low temperature
LONGEST = 64  # tokens of an n-gram or a sequence: a step of the program for each
CONFIGS = ('generation_config.json', 'config.json')
# Names of `generate` that differ from ours.
WORDS = {
  'no_repeat_ngram_size': 'no_repeat_ngram',
  'encoder_no_repeat_ngram_size': 'encoder_no_repeat_ngram',
  'bad_words_ids': 'bad_words',
  'sequence_bias': 'bias',
  'forced_bos_token_id': 'forced_begin',
  'forced_eos_token_id': 'forced_end',
  'suppress_tokens': 'suppress',
  'begin_suppress_tokens': 'begin_suppress',
  'exponential_decay_length_penalty': 'length_decay',
  'eos_token_id': 'ends',
}


class Number(NamedTuple):
  """A setting that is one number, or an array with a number for each row."""

  neutral: float  # the value that changes nothing
  least: float
  most: float
  allowed: str  # for a message
  is_whole: bool = False
  is_penalty: bool = False  # lowers or raises the words of a text, see `_apply_penalties`


# Settings that rule out tokens.
RULING = (
  'bad_words',
  'suppress',
  'begin_suppress',
  'no_repeat_ngram',
  'encoder_no_repeat_ngram',
  'min_length',
  'min_new_tokens',
)
FACTOR = 'a number above 0; 1 changes nothing'
ADDED = 'a number; 0 changes nothing'
TOKENS = 'a whole number of tokens from 0'
NUMBERS = {
  'repetition_penalty': Number(1.0, SMALLEST, 1e6, FACTOR, is_penalty=True),
  'encoder_repetition_penalty': Number(1.0, SMALLEST, 1e6, FACTOR, is_penalty=True),
  'presence_penalty': Number(0.0, -1e6, 1e6, ADDED, is_penalty=True),
  'frequency_penalty': Number(0.0, -1e6, 1e6, ADDED, is_penalty=True),
  'min_length': Number(0, 0, LARGEST, TOKENS, is_whole=True),
  'min_new_tokens': Number(0, 0, LARGEST, TOKENS, is_whole=True),
}


@dataclasses.dataclass(frozen=True, eq=False)
class Processors:
  """Changes of the logits by the text so far, with the names and meanings of `generate`.

  At every node of a draft they see the text that ends there, so all lossless methods stay lossless.
  In a beam search they change log-probabilities instead of logits. The numbers may be arrays, one
  for each row.

  Args:
    repetition_penalty: divides the positive logits of tokens in the prompt or the output, and
      multiplies their negative ones.
    presence_penalty: is subtracted from the logits of tokens in the output (not the prompt).
    frequency_penalty: is subtracted once for each time that the output has the token.
    no_repeat_ngram: no n-gram of this size occurs twice in prompt and output; 0 turns this off.
    min_length: fewest tokens before an end, the prompt's (or the start token) counted.
    bad_words: tokens, or sequences of them, that are never written. Single end tokens are ignored.
    bias: {token or tuple of tokens: number added to the logit of the last one, after the others},
      or a list of such pairs.
    forced_begin: the first token, if the text has one token before it (a start, a language).
    forced_end: the token, or several to choose from, at a row's last place.
    min_new_tokens: fewest tokens before an end, the prompt's not counted.
    suppress: tokens that are never written. Tokens that the model does not know are ignored.
    begin_suppress: tokens that are not written first. Unknown ones are ignored too.
    encoder_repetition_penalty: above 1, raises the logits of the source's tokens; below 1, lowers
      them. Without an encoder the prompt is the source.
    encoder_no_repeat_ngram: n-grams of this size that the source has are not written.
    length_decay: (n, factor): after n + i new tokens, i = 1, 2, ..., ends gain
      |logit| * (factor^i - 1).
    ends: the tokens that end a text, instead of the model's own.

  Raises:
    UserError: a setting is out of range. `decode` raises it for a token that the model does not
      know, and for settings that are not one for each row.
  """

  repetition_penalty: Any = 1.0
  presence_penalty: Any = 0.0
  frequency_penalty: Any = 0.0
  no_repeat_ngram: Whole = 0
  min_length: Any = 0
  bad_words: Any = ()
  bias: Any = None
  forced_begin: Any = None
  forced_end: Any = None
  min_new_tokens: Any = 0
  suppress: Any = ()
  begin_suppress: Any = ()
  encoder_repetition_penalty: Any = 1.0
  encoder_no_repeat_ngram: Whole = 0
  length_decay: Any = None
  ends: Any = None

  @classmethod
  def of(cls, source: Any) -> 'Processors':
    """Reads the settings of `generate` that are processors, and ignores others.

    Args:
      source: a mapping with the words of generation_config.json; or that file, or a folder with it.
        Folders without it have them in config.json.

    Raises:
      UserError: the file does not exist, or a value is out of range.
    """
    settings = source
    if not isinstance(source, Mapping):
      path = place(source)
      if path.is_dir():
        folder = path
        for name in CONFIGS:
          path = folder / name
          if path.is_file():
            break
      settings = read_json(path)
    fields = {}
    for word, value in settings.items():
      name = WORDS.get(word, word)
      if (word in WORDS or word in NUMBERS) and value is not None:
        fields[name] = value
    return cls(**fields)

  def __post_init__(self) -> None:
    for name, number in NUMBERS.items():
      limits = (number.least, number.most, number.allowed, number.is_whole)
      struct.assign(self, **{name: each(name, getattr(self, name), *limits)})
    for name in ('no_repeat_ngram', 'encoder_no_repeat_ngram'):
      checked = size(name, getattr(self, name), 0, '0 to turn it off, or more', LONGEST)
      struct.assign(self, **{name: checked})

    # Make tuples of lists of tokens, so that the settings can be hashed.
    bad_words = [
      _read_sequence('bad_words', one) for one in _read_list('bad_words', self.bad_words)
    ]
    struct.assign(
      self,
      bad_words=tuple(bad_words),
      bias=_read_biases(self.bias),
      suppress=_read_tokens('suppress', self.suppress, NONE),
      begin_suppress=_read_tokens('begin_suppress', self.begin_suppress, NONE),
    )
    if self.forced_begin is not None:
      begin = each('forced_begin', self.forced_begin, 0, LARGEST, 'a token', True)
      struct.assign(self, forced_begin=begin)
    for name in ('forced_end', 'ends'):
      ends = getattr(self, name)
      if ends is not None:
        if not isinstance(ends, list | tuple):
          ends = (ends,)
        struct.assign(self, **{name: _read_tokens(name, ends)})

    # The decay is a number of tokens and a factor.
    decay = self.length_decay
    if decay is not None:
      if not (isinstance(decay, list | tuple) and len(decay) == 2):
        raise UserError(f'length_decay={quote(decay)} is not possible: give (new tokens, factor)')
      allowed = '(new tokens, factor), from 0 and above 0'
      start = each('length_decay', decay[0], 0, LARGEST, allowed, True)
      factor = each('length_decay', decay[1], SMALLEST, 1e6, allowed)
      struct.assign(self, length_decay=(start, factor))

  @property
  def rules_out(self) -> tuple[str, ...]:
    """Names of the settings that rule out tokens (`LawMaker`), except for forced tokens."""
    names = []
    for name in RULING:
      value = getattr(self, name)
      if (isinstance(value, tuple) and value) or np.any(value):
        names.append(name)
    return tuple(names)

  def laws(self, model: Model, rows: int, waits: bool = False) -> tuple[Law, ...]:
    """Returns the law that the settings make for a model and a number of rows; () if none is on.

    Raises:
      UserError: the model does not know a token, or a setting is not one for each row.
    """
    # Check that the model knows the tokens.
    begin = [] if self.forced_begin is None else np.ravel(self.forced_begin).tolist()
    named = {'bias': self.bias, 'bad_words': self.bad_words, 'forced_begin': [begin]}
    named |= {'forced_end': [self.forced_end or ()], 'ends': [self.ends or ()]}
    for name, sequences in named.items():
      for token in itertools.chain.from_iterable(sequences):
        if token >= model.vocab_size:
          raise UserError(
            f'{name} has the token {token}, and the model knows 0 to {model.vocab_size - 1}:'
            ' use the ids of its tokenizer'
          )

    # Collect the numbers that change something.
    numbers = {}
    for name, number in NUMBERS.items():
      value = getattr(self, name)
      if (value != number.neutral).any():
        numbers[name] = value
    if self.length_decay is not None:
      numbers['decay_start'], numbers['decay_factor'] = self.length_decay
    if self.forced_begin is not None:
      numbers['forced_begin'] = self.forced_begin
    for name, value in numbers.items():
      check_one_per_row(name, value, rows)

    # Collect the biases of sequences: what is never written has minus infinity. As in `generate`,
    # tokens to suppress that the model does not know are ignored.
    biases = dict(self.bias)
    for token in self.suppress:
      if 0 <= token < model.vocab_size:
        biases[token,] = -math.inf
    for sequence in self.bad_words:
      if len(sequence) > 1 or sequence[0] not in model.eos_ids:
        biases[sequence] = -math.inf
    not_first = np.zeros(model.vocab_size, bool)
    for token in self.begin_suppress:
      if 0 <= token < model.vocab_size:
        not_first[token] = True

    # Single tokens have a table with an entry for each word. Sequences are rows that end together.
    bias, several = np.zeros(model.vocab_size, np.float32), {}
    for sequence, amount in biases.items():
      if len(sequence) == 1:
        bias[sequence] = amount
      else:
        several[sequence] = amount
    has_bias = any(len(one) == 1 and one[0] not in model.suppressed_ids for one in biases)
    longest = max(map(len, several), default=0)
    sequences = np.full((len(several), longest), NONE, np.int32)
    for row, sequence in zip(sequences, several, strict=True):
      row[longest - len(sequence) :] = sequence

    # Settings that read the source need one with the output's words.
    reads_source = 'encoder_repetition_penalty' in numbers or self.encoder_no_repeat_ngram
    if reads_source and (model.fixed_length is not None or has_own_source_ids(model)):
      raise UserError(
        'encoder_repetition_penalty and encoder_no_repeat_ngram need a source with the words of the'
        ' output, which this model does not have: leave them out'
      )

    # Make the law.
    law = Processing(
      numbers=numbers,
      bias=bias if has_bias else None,
      sequences=sequences,
      sequence_bias=np.array(list(several.values()), np.float32),
      begin=not_first if not_first.any() else None,
      forced_end=self.forced_end,
      ngram=int(self.no_repeat_ngram),
      source_ngram=int(self.encoder_no_repeat_ngram),
      begins_later=self.forced_begin is not None,
      ends=model.eos_ids,
    )
    if not law.is_on:
      return ()
    # They go to the device at once, since a stream would bring them there at each step.
    return (jax.tree.map(jnp.asarray, law),)


def _read_list(name: str, values: Any) -> list[Any]:
  if values is None:
    return []
  if isinstance(values, str) or not isinstance(values, Iterable):
    raise UserError(f'{name}={quote(values)} is not possible: give a list')
  return list(values)


def _read_tokens(name: str, ids: Any, least: int = 0) -> tuple[int, ...]:
  """Returns a list of token ids as a tuple."""
  return tuple(count(name, one, least, 'ids of tokens') for one in _read_list(name, ids))


def _read_sequence(name: str, ids: Any) -> tuple[int, ...]:
  """Returns a token, or a sequence of several, as a tuple."""
  if isinstance(ids, list | tuple | np.ndarray):
    tokens = _read_tokens(name, ids)
  else:
    tokens = _read_tokens(name, [ids])
  if not 1 <= len(tokens) <= LONGEST:
    raise UserError(f'{name}: {quote(ids)} is not possible: give 1 to {LONGEST} tokens each')
  return tokens


def _read_biases(setting: Any) -> dict[tuple[int, ...], float]:
  """Returns the bias of each sequence; the last one, if a sequence is listed twice."""
  pairs = setting.items() if isinstance(setting, Mapping) else _read_list('bias', setting)
  biases = {}
  for pair in pairs:
    if not (isinstance(pair, list | tuple) and len(pair) == 2):
      raise UserError(f'bias={quote(setting)} is not possible: give {{tokens: number}}, or pairs')
    bias = each('bias', pair[1], -1e9, 1e9, 'finite numbers')
    biases[_read_sequence('bias', pair[0])] = float(bias)
  return biases


@struct.pytree
class TextState:
  """The text of each row, its settings, and the words that it has."""

  numbers: dict[str, Array]  # each [b]
  limit: Int[Array, ' b']  # most new tokens
  prompt: Int[Array, ' b']  # tokens of the prompt
  length: Int[Array, ' b']  # tokens of prompt and output
  text: Int[Array, 'b t']  # both, if the settings need n-grams or sequences; else empty
  # These are tables; None where no setting needs one.
  seen: Any  # bool[b, v]: words of prompt and output
  counts: Any  # int[b, v]: how often the output has each word
  in_source: Any  # bool[b, v]: words of the source
  source: Int[Array, 'b s']  # its n-grams are not written; else empty
  source_length: Int[Array, ' b']


@dataclasses.dataclass(frozen=True)
class NodeTexts:
  """The text that ends at each node."""

  above: Bool[Array, 'b n n']  # [i, j]: j is below the root, and is i or an ancestor of i
  length: Int[Array, 'b n']
  last: Int[Array, 'b n l']  # the last tokens, the node's own at the end; NONE before the text
  before: Int[Array, 'b n l']  # the last tokens at the node's parent


@struct.pytree
class Processing:
  """The law that `Processors` make for a model, in the order of `generate`."""

  numbers: dict[str, Any]  # the settings that are on, each one number or [b]
  bias: Any  # float[v], minus infinity for forbidden words; None: there is none
  sequences: Any  # int[k, l], each row one sequence at the end of its row
  sequence_bias: Any  # float[k]
  begin: Any  # bool[v]: words that are not written first; None: there are none
  forced_end: tuple[int, ...] | None = struct.static()
  ngram: int = struct.static()
  source_ngram: int = struct.static()
  begins_later: bool = struct.static()  # after a start token, the first token is a forced one
  ends: tuple[int, ...] = struct.static()

  @property
  def is_on(self) -> bool:
    """True if it changes anything."""
    kinds = (self.bias is not None, self.begin is not None, self.forced_end, self.numbers)
    return any((*kinds, len(self.sequences), self.ngram, self.source_ngram))

  @property
  def reach(self) -> int:
    """Tokens that must be known at the end of a text."""
    return max(self.ngram - 1, self.source_ngram - 1, self.sequences.shape[1] - 1, 0)

  def take(self, rows: Any) -> 'Processing':
    """See `Law.take`."""
    numbers = dict(self.numbers)
    for name, x in numbers.items():
      if x.ndim:
        numbers[name] = x[rows]
    return dataclasses.replace(self, numbers=numbers)

  def init(self, model: Model, prompt: Prompt, max_len: int) -> TextState:
    """See `Law.init`."""
    b = len(prompt.tokens)
    tokens, length = jnp.asarray(prompt.tokens), jnp.asarray(prompt.length, jnp.int32)
    limit = prompt.limit
    if limit is None:
      limit = jnp.full(b, max_len, jnp.int32)
    source, source_length = tokens, length
    if prompt.inputs is not None and prompt.inputs.ndim == 2:
      source, source_length = jnp.asarray(prompt.inputs), prompt.source_length(model)

    # Keep only what the settings need: the text, and tables of words.
    text = tokens[:, :0]
    if self.reach:
      text = jnp.pad(tokens, ((0, 0), (0, max_len)))
    seen = counts = in_source = None
    words = (b, model.vocab_size)
    if 'repetition_penalty' in self.numbers or self.ngram == 1:
      seen = _mark(jnp.zeros(words, bool), tokens, length)
    if 'presence_penalty' in self.numbers or 'frequency_penalty' in self.numbers:
      counts = jnp.zeros(words, jnp.int32)
    if 'encoder_repetition_penalty' in self.numbers or self.source_ngram == 1:
      in_source = _mark(jnp.zeros(words, bool), source, source_length)
    return TextState(
      numbers={name: jnp.broadcast_to(x, (b,)) for name, x in self.numbers.items()},
      limit=jnp.asarray(limit),
      prompt=length,
      length=length,
      text=text,
      seen=seen,
      counts=counts,
      in_source=in_source,
      source=source if self.source_ngram > 1 else source[:, :0],
      source_length=source_length,
    )

  def observe(self, state: TextState, emitted: Emitted) -> TextState:
    """See `Law.observe`."""
    tokens, count = emitted.tokens, emitted.count
    text, seen, counts = state.text, state.seen, state.counts
    if self.reach:
      text = Text(text, state.length).append(tokens, count).tokens
    if seen is not None:
      seen = _mark(seen, tokens, count)
    if counts is not None:
      index = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
      words = jnp.where(index < count[:, None], tokens, counts.shape[1])
      counts = jax.vmap(lambda row, word: row.at[word].add(1, mode='drop'))(counts, words)
    length = state.length + count
    return dataclasses.replace(state, length=length, text=text, seen=seen, counts=counts)

  def __call__(
    self, state: TextState, draft: Draft, logits: Float[Array, 'b n v']
  ) -> Float[Array, 'b n v']:
    """See `Law`."""
    texts = self._texts_at_nodes(state, draft)
    logits = self._add_biases(texts, logits)
    logits = self._penalise(state, draft, texts, logits)
    logits = self._forbid_repeats(state, draft, texts, logits)
    return self._begin_and_end(state, texts, logits)

  def _texts_at_nodes(self, state: TextState, draft: Draft) -> NodeTexts:
    """Looks up the text of each node: its own token, its ancestors' tokens, then the text's end."""
    tree, tokens = draft.topology, draft.tokens
    b, n = tokens.shape
    below_root = jnp.arange(n, dtype=jnp.int32) > 0
    above = jnp.broadcast_to(with_rows(tree.mask, 3), (b, n, n)) & below_root[None, None]
    length = state.length[:, None] + with_rows(tree.depths, 2)
    reach = self.reach
    # The text's last tokens, then the nodes below the root; `up` points to the one before each.
    place = state.length[:, None] - reach + jnp.arange(reach, dtype=jnp.int32)[None]
    end = tokens[:, :0]
    if reach:
      end = jnp.take_along_axis(state.text, place.clip(0), axis=1)
      end = jnp.where(place >= 0, end, NONE)
    words = jnp.concatenate([jnp.full((b, 1), NONE, tokens.dtype), end, tokens[:, 1:]], axis=1)
    parents = jnp.broadcast_to(with_rows(tree.parents, 2), (b, n))
    back = jnp.broadcast_to(jnp.arange(reach, dtype=jnp.int32), (b, reach))
    up = jnp.concatenate([jnp.zeros((b, 1), jnp.int32), back, parents[:, 1:] + reach], axis=1)
    at = jnp.broadcast_to(reach + jnp.arange(n, dtype=jnp.int32), (b, n))
    last = []
    for _ in range(reach + 1):
      last.append(jnp.take_along_axis(words, at, axis=1))
      at = jnp.take_along_axis(up, at, axis=1)
    last = jnp.stack(last[::-1], axis=-1)
    return NodeTexts(above, length, last[..., 1:], last[..., :-1])

  def _add_biases(self, texts: NodeTexts, logits: Float[Array, 'b n v']) -> Float[Array, 'b n v']:
    """Adds the biases of words, and of a sequence's last word where its other words precede."""
    if self.bias is not None:
      logits = logits + jnp.asarray(self.bias, logits.dtype)[None, None]
    if not len(self.sequences):
      return logits
    sequences = jnp.asarray(self.sequences)
    before = sequences[:, :-1]
    own = texts.last[..., texts.last.shape[-1] - before.shape[1] :]
    is_there = ((own[:, :, None] == before[None, None]) | (before == NONE)[None, None]).all(-1)
    # As in `generate`, a text must be as long as the whole sequence.
    is_there &= texts.length[..., None] >= (sequences != NONE).sum(-1, dtype=jnp.int32)[None, None]
    amount = jnp.where(is_there, jnp.asarray(self.sequence_bias, logits.dtype), 0)
    return _over_nodes(lambda row, more: row.at[sequences[:, -1]].add(more))(logits, amount)

  def _penalise(
    self, state: TextState, draft: Draft, texts: NodeTexts, logits: Float[Array, 'b n v']
  ) -> Float[Array, 'b n v']:
    """Applies the penalties of the text up to the root, then recomputes the words of ancestors."""
    penalties = [name for name in self.numbers if name in NUMBERS and NUMBERS[name].is_penalty]
    if not penalties:
      return logits

    # The text up to the root: the same words at all nodes of a row.
    tables = {}
    for name in ('seen', 'counts', 'in_source'):
      if getattr(state, name) is not None:
        tables[name] = getattr(state, name)
    of_root = {name: table[:, None] for name, table in tables.items()}
    penalised = _apply_penalties(state.numbers, logits, **of_root)
    tokens, above = draft.tokens, texts.above
    b, n = tokens.shape
    if n == 1 or penalties == ['encoder_repetition_penalty']:
      return penalised

    # The words of ancestors are in the text too, and are counted as often as they occur there.
    own = {}
    for name, table in tables.items():
      own[name] = jnp.take_along_axis(table, tokens, axis=1)[:, None]
    if 'seen' in own:
      own['seen'] = jnp.ones_like(own['seen'])
    if 'counts' in own:
      same = (tokens[:, :, None] == tokens[:, None]).astype(jnp.float32)
      more = jnp.einsum('bik,bkj->bij', above.astype(jnp.float32), same)
      own['counts'] = own['counts'] + more.astype(jnp.int32)
    words = jnp.broadcast_to(tokens[:, None], (b, n, n))
    corrected = _apply_penalties(state.numbers, jnp.take_along_axis(logits, words, axis=2), **own)
    place = jnp.where(above, words, logits.shape[-1])
    set_words = _over_nodes(lambda row, at, x: row.at[at].set(x, mode='drop'))
    return set_words(penalised, place, corrected)

  def _forbid_repeats(
    self, state: TextState, draft: Draft, texts: NodeTexts, logits: Float[Array, 'b n v']
  ) -> Float[Array, 'b n v']:
    """Rules out tokens that would repeat an n-gram of the text, or write one of the source."""
    if self.source_ngram == 1:
      logits = jnp.where(state.in_source[:, None], -jnp.inf, logits)
    elif self.source_ngram:
      logits = _forbid_followers(
        state.source, state.source_length, self.source_ngram, texts.last, logits
      )
    if not self.ngram:
      return logits
    if self.ngram == 1:
      logits = jnp.where(state.seen[:, None], -jnp.inf, logits)
    else:
      logits = _forbid_followers(state.text, state.length, self.ngram, texts.last, logits)
    tokens, again = draft.tokens, texts.above
    if tokens.shape[1] == 1:
      return logits
    # N-grams that end with an ancestor: the tokens before it equal the tokens before the next one.
    first = texts.last.shape[-1] - (self.ngram - 1)
    own, others = texts.last[..., first:], texts.before[..., first:]
    again &= (own[:, :, None] == others[:, None]).all(-1)
    place = jnp.where(again, tokens[:, None], logits.shape[-1])
    return _over_nodes(lambda row, at: row.at[at].set(-jnp.inf, mode='drop'))(logits, place)

  def _begin_and_end(
    self, state: TextState, texts: NodeTexts, logits: Float[Array, 'b n v']
  ) -> Float[Array, 'b n v']:
    """Rules out early ends, and words at the beginning; forces the first token and the last."""
    numbers = {name: x[:, None] for name, x in state.numbers.items()}
    words = jnp.arange(logits.shape[-1], dtype=jnp.int32)[None, None]
    length, new = texts.length, texts.length - state.prompt[:, None]
    is_end = is_among(words, self.ends)
    for name, counted in (('min_length', length), ('min_new_tokens', new)):
      if name in numbers:
        early = counted < numbers[name]
        logits = jnp.where(early[..., None] & is_end, -jnp.inf, logits)
    if 'forced_begin' in numbers:
      only = jnp.where(words == numbers['forced_begin'][..., None], 0, -jnp.inf)
      logits = jnp.where((length == 1)[..., None], only.astype(logits.dtype), logits)
    if self.forced_end is not None:
      only = jnp.where(is_among(words, self.forced_end), 0, -jnp.inf).astype(logits.dtype)
      logits = jnp.where((new == state.limit[:, None] - 1)[..., None], only, logits)
    if 'decay_start' in numbers:
      late = (new - numbers['decay_start']).clip(0)
      gain = numbers['decay_factor'].astype(logits.dtype) ** late.astype(logits.dtype) - 1
      gain = gain.clip(max=MOST)  # infinity times a logit of 0 is NaN
      more = _bounded(logits, logits + jnp.abs(logits) * gain[..., None])
      logits = jnp.where(is_end & jnp.isfinite(logits) & (late > 0)[..., None], more, logits)
    if self.begin is not None:
      is_later = self.begins_later & (state.prompt == 1)
      is_first = new == is_later[:, None].astype(new.dtype)
      ruled = is_first[..., None] & jnp.asarray(self.begin)[None, None]
      logits = jnp.where(ruled, -jnp.inf, logits)
    return logits


def _apply_penalties(
  numbers: Mapping[str, Array],
  x: Float[Array, 'b n m'],
  seen: Any = None,  # bool[b, n or 1, m], as the others
  counts: Any = None,
  in_source: Any = None,
) -> Float[Array, 'b n m']:
  """Returns the logits of some words with the penalties applied."""

  def number(name: str) -> Array:
    return numbers[name].astype(x.dtype)[:, None, None]

  if 'encoder_repetition_penalty' in numbers:
    p = number('encoder_repetition_penalty')
    x = jnp.where(in_source, _bounded(x, jnp.where(x < 0, x / p, x * p)), x)
  if 'repetition_penalty' in numbers:
    p = number('repetition_penalty')
    x = jnp.where(seen, _bounded(x, jnp.where(x < 0, x * p, x / p)), x)
  if counts is not None and 'presence_penalty' in numbers:
    x = jnp.where(counts > 0, x - number('presence_penalty'), x)
  if counts is not None and 'frequency_penalty' in numbers:
    x = x - number('frequency_penalty') * counts.astype(x.dtype)
  return x


def _bounded(x: Float[Array, '*b'], changed: Float[Array, '*b']) -> Float[Array, '*b']:
  """Returns changed logits; finite ones, which any factor may have multiplied, stay finite."""
  return jnp.where(jnp.isfinite(x), changed.clip(-MOST, MOST), changed)


def _forbid_followers(
  text: Int[Array, 'b t'],
  length: Int[Array, ' b'],
  ngram: int,
  last: Int[Array, 'b n l'],
  logits: Float[Array, 'b n v'],
) -> Float[Array, 'b n v']:
  """Rules out, at each node, the tokens that followed its last `ngram - 1` ones in the text.

  Such places are few in most texts, so a loop takes one after the other.
  """
  t, before = text.shape[1], ngram - 1
  own = last[..., last.shape[-1] - before :]
  place = jnp.arange(t, dtype=jnp.int32)[None, None]
  matches = place + before < length[:, None, None]
  for i in range(before):
    matches &= jnp.roll(text, -i, axis=1)[:, None] == own[..., i, None]
  follower = jnp.roll(text, -before, axis=1)

  def rule_out(carry: tuple[Array, Array]) -> tuple[Array, Array]:
    matches, logits = carry
    first = jnp.where(matches, place, t).min(axis=-1)
    token = jnp.take_along_axis(follower, first, axis=1, mode='clip')
    token = jnp.where(first < t, token, logits.shape[-1])
    one = _over_nodes(lambda row, at: row.at[at].set(-jnp.inf, mode='drop'))
    return matches & (place != first[..., None]), one(logits, token)

  return jax.lax.while_loop(lambda carry: carry[0].any(), rule_out, (matches, logits))[1]


def _over_nodes(change: Any) -> Any:
  """Maps a change of a node's words over nodes and rows, so that rows stay on their devices."""
  return jax.vmap(jax.vmap(change))


def _mark(
  table: Bool[Array, 'b v'], tokens: Int[Array, 'b m'], count: Int[Array, ' b']
) -> Bool[Array, 'b v']:
  """Marks the first `count` tokens of each row."""
  index = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
  words = jnp.where((index < count[:, None]) & (tokens >= 0), tokens, table.shape[1])
  return jax.vmap(lambda row, word: row.at[word].set(True, mode='drop'))(table, words)
