"""Processors of the target's law: penalties, bias, forbidden and forced tokens, as `generate` has.

`Processors` holds a user's settings; `Processing` is the law that they make for a model
(`decoding.law`). Each row remembers which words its text has, so a call costs a few passes over the
logits whatever the text's length; n-gram rules also scan the text. What the ancestors of a draft's
nodes change is added afterwards.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
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
from fastdec.fields import shown
from fastdec.files import place, read_json
from fastdec.models.api import Model, has_own_source_ids

NONE = -1  # stands before a text, and before a shorter sequence of a table
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
  is_penalty: bool = False  # lowers or raises the words of a text, see `_penalty`


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
  """Changes of a model's law by the text so far, with the names and meanings of `generate`.

  At every node of a draft they see the text that ends there, so all lossless methods stay lossless.
  They change logits; a beam search has them change log-probabilities. The numbers may be arrays,
  one for each row.

  Args:
    repetition_penalty: divides positive logits of tokens that the text has, prompt included, and
      multiplies negative ones.
    presence_penalty: is subtracted from the logits of tokens that were written, prompt excluded.
    frequency_penalty: the same, as often as a token was written.
    no_repeat_ngram: n-grams of this size stand in prompt and text once; 0: no such rule.
    min_length: fewest tokens before an end, the prompt's (or the start token) counted.
    bad_words: tokens, or sequences of them, that are never written; single end tokens are left out.
    bias: {token or tuple of tokens: number added to the logit of the last one, after the others},
      or a list of such pairs.
    forced_begin: the first token, if the text has one token before it (a start, a language).
    forced_end: the token, or several to choose from, at a row's last place.
    min_new_tokens: fewest tokens before an end, the prompt's not counted.
    suppress: tokens that are never written; those that the model does not know are ignored.
    begin_suppress: tokens that are not written first; unknown ones are ignored too.
    encoder_repetition_penalty: above 1 raises the source's tokens, as `repetition_penalty` lowers.
      Without an encoder the prompt is the source.
    encoder_no_repeat_ngram: n-grams of this size that the source has are not written.
    length_decay: (n, factor): after n + i new tokens, i = 1, 2, ..., ends gain
      |logit| * (factor^i - 1).
    ends: the tokens that end a text, in place of the model's own.

  Raises:
    UserError: a setting out of range; in `decode`, another token that the model does not know, or
      another number of rows.
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
    """Reads the settings of `generate` that are processors; others are ignored.

    Args:
      source: a mapping with the words of generation_config.json; or that file, or a folder with it.
        Folders without it have them in config.json.

    Raises:
      UserError: there is no such file; a value out of range.
    """
    settings = source
    if not isinstance(source, Mapping):
      path = place(source)
      files = [path / name for name in CONFIGS] if path.is_dir() else [path]
      settings = read_json(next((file for file in files if file.is_file()), files[-1]))
    words = {name: name for name in NUMBERS} | WORDS
    fields = {}
    for word, value in settings.items():
      if word in words and value is not None:
        fields[words[word]] = value
    return cls(**fields)

  def __post_init__(self) -> None:
    for name, number in NUMBERS.items():
      limits = (number.least, number.most, number.allowed, number.is_whole)
      struct.assign(self, **{name: each(name, getattr(self, name), *limits)})
    for name in ('no_repeat_ngram', 'encoder_no_repeat_ngram'):
      checked = size(name, getattr(self, name), 0, '0 for no such rule, or more', LONGEST)
      struct.assign(self, **{name: checked})
    struct.assign(
      self,
      bad_words=tuple(_sequence('bad_words', one) for one in _listed('bad_words', self.bad_words)),
      bias=_biases(self.bias),
      suppress=_tokens('suppress', self.suppress, NONE),
      begin_suppress=_tokens('begin_suppress', self.begin_suppress, NONE),
    )
    if self.forced_begin is not None:
      begin = each('forced_begin', self.forced_begin, 0, LARGEST, 'a token', True)
      struct.assign(self, forced_begin=begin)
    for name in ('forced_end', 'ends'):
      ends = getattr(self, name)
      if ends is not None:
        ends = ends if isinstance(ends, list | tuple) else (ends,)
        struct.assign(self, **{name: _tokens(name, ends)})
    if self.length_decay is not None:
      struct.assign(self, length_decay=_decay(self.length_decay))

  @property
  def rules_out(self) -> tuple[str, ...]:
    """Names of the settings that rule out tokens, see `LawMaker`; forced tokens are left."""
    values = {name: getattr(self, name) for name in RULING}
    return tuple(
      name for name, x in values.items() if (len(x) if isinstance(x, tuple) else np.any(x))
    )

  def laws(self, model: Model, rows: int, waits: bool = False) -> tuple[Law, ...]:
    """Returns the law that the settings make for a model and a number of rows; () if none is on.

    Raises:
      UserError: a token that the model does not know, or settings of another number of rows.
    """
    # Check that the model knows the tokens.
    for name, ids in (
      ('forced_begin', () if self.forced_begin is None else self.forced_begin),
      ('bias', [token for sequence in self.bias for token in sequence]),
      ('bad_words', [token for sequence in self.bad_words for token in sequence]),
      ('forced_end', self.forced_end or ()),
      ('ends', self.ends or ()),
    ):
      _check_known(model, name, ids)

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

    # Join the biases; minus infinity is that of what is never written. As in `generate`, tokens to
    # suppress that the model does not know are ignored.
    biases = dict(self.bias)
    known, ends = range(model.vocab_size), [(end,) for end in model.eos_ids]
    not_first = {one: True for one in self.begin_suppress if one in known}
    biases |= {(one,): -math.inf for one in self.suppress if one in known}
    biases |= {one: -math.inf for one in self.bad_words if one not in ends}
    single = {one[0]: bias for one, bias in biases.items() if len(one) == 1}
    several = {one: bias for one, bias in biases.items() if len(one) > 1}

    # Rules about the source need one with the output's words.
    reads_source = 'encoder_repetition_penalty' in numbers or self.encoder_no_repeat_ngram
    if reads_source and (model.fixed_length is not None or has_own_source_ids(model)):
      raise UserError(
        'this source has no words of the output, so encoder_repetition_penalty and'
        ' encoder_no_repeat_ngram mean nothing: leave them out'
      )

    # Make the law.
    law = Processing(
      numbers=numbers,
      bias=_table(single, model) if set(single) - set(model.suppressed_ids) else None,
      sequences=_aligned(several),
      sequence_bias=np.array(list(several.values()), np.float32),
      begin=_table(not_first, model) if not_first else None,
      forced_end=self.forced_end,
      ngram=int(self.no_repeat_ngram),
      source_ngram=int(self.encoder_no_repeat_ngram),
      begins_later=self.forced_begin is not None,
      ends=model.eos_ids,
    )
    # They go to the device at once, since a stream would bring them there at each step.
    return (jax.tree.map(jnp.asarray, law),) if law.is_on else ()


def _check_known(model: Model, name: str, ids: Any) -> None:
  """Raises UserError for a token that the model does not know."""
  unknown = [token for token in np.ravel(ids).tolist() if token >= model.vocab_size]
  if unknown:
    raise UserError(
      f'{name} has the token {int(unknown[0])}, and the model knows 0 to {model.vocab_size - 1}:'
      ' use the ids of its tokenizer'
    )


def _listed(name: str, values: Any) -> list[Any]:
  if values is None:
    return []
  if isinstance(values, str) or not isinstance(values, Iterable):
    raise UserError(f'{name}={shown(values)} is not possible: give a list')
  return list(values)


def _tokens(name: str, ids: Any, least: int = 0) -> tuple[int, ...]:
  """Returns a list of token ids."""
  return tuple(count(name, one, least, 'ids of tokens') for one in _listed(name, ids))


def _sequence(name: str, ids: Any) -> tuple[int, ...]:
  """Returns a token, or a sequence of several, as a tuple."""
  is_one = not isinstance(ids, list | tuple | np.ndarray)
  tokens = _tokens(name, [ids] if is_one else ids)
  if not 1 <= len(tokens) <= LONGEST:
    raise UserError(f'{name}: {shown(ids)} is not possible: give 1 to {LONGEST} tokens each')
  return tokens


def _biases(setting: Any) -> dict[tuple[int, ...], float]:
  """Returns the bias of each sequence; of one that is listed twice, the last."""
  pairs = list(setting.items()) if isinstance(setting, Mapping) else _listed('bias', setting)
  biases = {}
  for pair in pairs:
    if not (isinstance(pair, list | tuple) and len(pair) == 2):
      raise UserError(f'bias={shown(setting)} is not possible: give {{tokens: number}}, or pairs')
    bias = each('bias', pair[1], -1e9, 1e9, 'finite numbers', False)
    biases[_sequence('bias', pair[0])] = float(bias)
  return biases


def _decay(pair: Any) -> tuple[np.ndarray, np.ndarray]:
  if not (isinstance(pair, list | tuple) and len(pair) == 2):
    raise UserError(f'length_decay={shown(pair)} is not possible: give (new tokens, factor)')
  allowed = '(new tokens, factor), from 0 and above 0'
  return (
    each('length_decay', pair[0], 0, LARGEST, allowed, True),
    each('length_decay', pair[1], SMALLEST, 1e6, allowed, False),
  )


def _table(values: Mapping[int, Any], model: Model) -> np.ndarray:
  """Returns values of tokens as an entry for each word; 0 or false for the others."""
  table = np.zeros(model.vocab_size, np.result_type(*(type(one) for one in values.values())))
  table[list(values)] = list(values.values())
  return table if table.dtype == bool else table.astype(np.float32)


def _aligned(sequences: Sequence[tuple[int, ...]] | Mapping[tuple[int, ...], Any]) -> np.ndarray:
  """Returns the sequences as rows that end together, NONE before the shorter ones."""
  longest = max(map(len, sequences), default=0)
  rows = [(NONE,) * (longest - len(one)) + one for one in sequences]
  return np.array(rows, np.int32).reshape(len(rows), longest)


@struct.pytree
class TextState:
  """Text of each row, its settings, and the words that it has."""

  numbers: dict[str, Array]  # each [b]
  limit: Int[Array, ' b']  # most new tokens
  prompt: Int[Array, ' b']  # tokens of the prompt
  length: Int[Array, ' b']  # tokens of prompt and output
  text: Int[Array, 'b t']  # both, where n-grams or sequences are looked for; else none
  # These are tables; None where no setting needs one.
  seen: Any  # bool[b, v]: words of both
  counts: Any  # int[b, v]: of the words of the output
  in_source: Any  # bool[b, v]: words of the source
  source: Int[Array, 'b s']  # n-grams of it are not written
  source_length: Int[Array, ' b']


@dataclasses.dataclass(frozen=True)
class NodeTexts:
  """The text that ends at each node."""

  above: Bool[Array, 'b n n']  # [i, j]: j stands below the root, and is i or an ancestor of it
  length: Int[Array, 'b n']
  last: Int[Array, 'b n l']  # the last tokens, the node's own at the end; NONE before the text
  before: Int[Array, 'b n l']  # the same of the node's parent


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
  begins_later: bool = struct.static()  # after a start alone, the first token is a forced one
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
    taken = {name: x[rows] if x.ndim else x for name, x in self.numbers.items()}
    return dataclasses.replace(self, numbers=taken)

  def init(self, model: Model, prompt: Prompt, max_len: int) -> TextState:
    """See `Law.init`."""
    b = len(prompt.tokens)
    length = jnp.asarray(prompt.length, jnp.int32)
    tokens = jnp.asarray(prompt.tokens)
    added = max_len if self.reach else 0
    source, source_length = tokens, length
    if prompt.inputs is not None and prompt.inputs.ndim == 2:
      source, source_length = jnp.asarray(prompt.inputs), prompt.source_length(model)
    words = (b, model.vocab_size)
    counted = 'presence_penalty' in self.numbers or 'frequency_penalty' in self.numbers
    has_seen = 'repetition_penalty' in self.numbers or self.ngram == 1
    reads_source = 'encoder_repetition_penalty' in self.numbers or self.source_ngram == 1
    limit = jnp.full(b, max_len, jnp.int32) if prompt.limit is None else jnp.asarray(prompt.limit)
    return TextState(
      numbers={name: jnp.broadcast_to(x, (b,)) for name, x in self.numbers.items()},
      limit=limit,
      prompt=length,
      length=length,
      text=jnp.pad(tokens, ((0, 0), (0, added))) if self.reach else tokens[:, :0],
      seen=_marked(jnp.zeros(words, bool), tokens, length) if has_seen else None,
      counts=jnp.zeros(words, jnp.int32) if counted else None,
      in_source=_marked(jnp.zeros(words, bool), source, source_length) if reads_source else None,
      source=source if self.source_ngram > 1 else source[:, :0],
      source_length=source_length,
    )

  def observe(self, state: TextState, emitted: Emitted) -> TextState:
    """See `Law.observe`."""
    tokens, count, counts = emitted.tokens, emitted.count, state.counts
    if counts is not None:
      index = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
      words = jnp.where(index < count[:, None], tokens, counts.shape[1])
      counts = jax.vmap(lambda row, word: row.at[word].add(1, mode='drop'))(counts, words)
    text = state.text
    if self.reach:
      text = Text(text, state.length).append(tokens, count).tokens
    return dataclasses.replace(
      state,
      length=state.length + count,
      text=text,
      seen=None if state.seen is None else _marked(state.seen, tokens, count),
      counts=counts,
    )

  def __call__(
    self, state: TextState, draft: Draft, logits: Float[Array, 'b n v']
  ) -> Float[Array, 'b n v']:
    """See `Law`."""
    texts = self._texts_at_nodes(state, draft)
    logits = self._biased(texts, logits)
    logits = self._penalised(state, draft, texts, logits)
    logits = self._without_repeats(state, draft, texts, logits)
    return self._begun_and_ended(state, texts, logits)

  def _texts_at_nodes(self, state: TextState, draft: Draft) -> NodeTexts:
    """Looks up the text of each node: its own last tokens, those of its ancestors, the text's."""
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

  def _biased(self, texts: NodeTexts, logits: Float[Array, 'b n v']) -> Float[Array, 'b n v']:
    """Adds the bias of words, and that of a sequence's last word after its others."""
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
    return _each_node(lambda row, more: row.at[sequences[:, -1]].add(more))(logits, amount)

  def _penalised(
    self, state: TextState, draft: Draft, texts: NodeTexts, logits: Float[Array, 'b n v']
  ) -> Float[Array, 'b n v']:
    """Applies the penalties by the text up to the root, then anew to the words of ancestors."""
    penalties = {
      name for name, number in NUMBERS.items() if number.is_penalty and name in self.numbers
    }
    if not penalties:
      return logits
    names = ('seen', 'counts', 'in_source')
    tables = {name: getattr(state, name) for name in names if getattr(state, name) is not None}
    penalised = _penalty(state.numbers, logits, **{name: x[:, None] for name, x in tables.items()})
    tokens, above = draft.tokens, texts.above
    b, n = tokens.shape
    if n == 1 or penalties == {'encoder_repetition_penalty'}:
      return penalised
    own = {name: jnp.take_along_axis(x, tokens, axis=1)[:, None] for name, x in tables.items()}
    if 'seen' in own:
      own['seen'] = jnp.ones_like(own['seen'])
    if 'counts' in own:
      same = (tokens[:, :, None] == tokens[:, None]).astype(jnp.float32)
      more = jnp.einsum('bik,bkj->bij', above.astype(jnp.float32), same)
      own['counts'] = own['counts'] + more.astype(jnp.int32)
    words = jnp.broadcast_to(tokens[:, None], (b, n, n))
    corrected = _penalty(state.numbers, jnp.take_along_axis(logits, words, axis=2), **own)
    place = jnp.where(above, words, logits.shape[-1])
    set_words = _each_node(lambda row, at, x: row.at[at].set(x, mode='drop'))
    return set_words(penalised, place, corrected)

  def _without_repeats(
    self, state: TextState, draft: Draft, texts: NodeTexts, logits: Float[Array, 'b n v']
  ) -> Float[Array, 'b n v']:
    """Rules out tokens that would repeat an n-gram of the text, or write one of the source."""
    if self.source_ngram == 1:
      logits = jnp.where(state.in_source[:, None], -jnp.inf, logits)
    elif self.source_ngram:
      logits = _without_followers(
        state.source, state.source_length, self.source_ngram, texts.last, logits
      )
    if not self.ngram:
      return logits
    if self.ngram == 1:
      logits = jnp.where(state.seen[:, None], -jnp.inf, logits)
    else:
      logits = _without_followers(state.text, state.length, self.ngram, texts.last, logits)
    tokens, again = draft.tokens, texts.above
    if tokens.shape[1] == 1:
      return logits
    # N-grams that end with an ancestor: the tokens before it are those before the next token.
    first = texts.last.shape[-1] - (self.ngram - 1)
    own, others = texts.last[..., first:], texts.before[..., first:]
    again &= (own[:, :, None] == others[:, None]).all(-1)
    place = jnp.where(again, tokens[:, None], logits.shape[-1])
    return _each_node(lambda row, at: row.at[at].set(-jnp.inf, mode='drop'))(logits, place)

  def _begun_and_ended(
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


def _penalty(
  numbers: Mapping[str, Array],
  x: Float[Array, 'b n m'],
  seen: Any = None,  # bool[b, n or 1, m], as the others
  counts: Any = None,
  in_source: Any = None,
) -> Float[Array, 'b n m']:
  """Returns logits of some words after the penalties."""

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


def _without_followers(
  text: Int[Array, 'b t'],
  length: Int[Array, ' b'],
  ngram: int,
  last: Int[Array, 'b n l'],
  logits: Float[Array, 'b n v'],
) -> Float[Array, 'b n v']:
  """Rules out, at each node, the tokens that followed its last `ngram - 1` ones in the text.

  There are mostly few such places, so a loop takes them one after the other.
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
    one = _each_node(lambda row, at: row.at[at].set(-jnp.inf, mode='drop'))
    return matches & (place != first[..., None]), one(logits, token)

  return jax.lax.while_loop(lambda carry: carry[0].any(), rule_out, (matches, logits))[1]


def _each_node(change: Any) -> Any:
  """Maps a change of a node's words over nodes and rows, so that rows stay on their devices."""
  return jax.vmap(jax.vmap(change))


def _marked(
  table: Bool[Array, 'b v'], tokens: Int[Array, 'b m'], count: Int[Array, ' b']
) -> Bool[Array, 'b v']:
  """Marks the first `count` tokens of each row."""
  index = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
  words = jnp.where((index < count[:, None]) & (tokens >= 0), tokens, table.shape[1])
  return jax.vmap(lambda row, word: row.at[word].set(True, mode='drop'))(table, words)
