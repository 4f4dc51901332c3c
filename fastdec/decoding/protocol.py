"""The words of the loop, and the protocols of its two exchangeable parts.

target    the model whose output is wanted
drafter   guesses tokens: the draft, a tree whose node 0, the root, is the newest emitted token
call      one run of the target over all nodes, in the loop (encoder and prefill are not counted)
rule      keeps the longest acceptable path from the root (accepted), and names the token after it
          (bonus)
block     the tokens emitted by one call: the accepted drafts and the bonus
row       one sequence of the batch
p, q      the target's law of the next token, and the drafter's
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from fastdec import struct
from fastdec.decoding.topology import Topology, take_node
from fastdec.errors import UserError
from fastdec.models.api import Capacity, Model, Nodes, source_length, source_pad
from fastdec.struct import Bound

Promise = Literal['exact', 'law', 'relaxed']  # from the strictest to the loosest


if TYPE_CHECKING:
  HostArray = (
    Any  # compiled functions see Arrays only; a union would need an assertion in each of them
  )
else:
  HostArray = Array | np.ndarray


@struct.pytree
class Prompt:
  """The encoder's inputs (None without an encoder) and the decoder's first tokens.

  Its arrays are NumPy's (`HostArray`) until a compiled function takes them. Putting small arrays on
  the device one by one takes as long as several calls of a small model.
  """

  inputs: HostArray | None
  # right-padded; encoder-decoder: the start token, then any forced prefix
  tokens: Int[HostArray, 'b t']
  length: Int[HostArray, ' b']  # at least 1
  empty: Bool[HostArray, ' b']  # rows with nothing to decode: they end at once
  # most tokens that a row may emit; None: as many as there are slots for
  limit: Int[HostArray, ' b'] | None = None
  # tokens after the widest prompt that caches have slots for (`sizes`); None: for all
  slots: int | None = struct.static(default=None)
  # tokens that all rows begin with, fewer than any row has (`inputs.find_shared`)
  shared: int = struct.static(default=0)
  one_source: bool = struct.static(default=False)  # all rows have the same inputs
  chunk: int = struct.static(default=256)  # tokens read at once, at most
  # most slots that caches may ever have (`sizes`); None: as follows from max_len
  most: int | None = struct.static(default=None)

  def source_length(self, model: Model) -> Int[Array, ' b']:
    """Number of tokens of each row's source, a text, without the padding at its end."""
    assert self.inputs is not None and self.inputs.ndim == 2
    return source_length(jnp.asarray(self.inputs), source_pad(model))


# A row's logits had a best token; the laws left none; the model's own had none.
FINE, STUCK, BROKEN = range(3)
LOGPROB_FIELDS = ('logprobs', 'top_logprobs', 'top_ids')  # fields of `Decoded`


class Noted(int):
  """A token's id that knows its log-probability, by the model's own distribution.

  Attributes:
    logprob: of the token.
    top_logprobs: {token: log-probability} of the likeliest tokens of its place.
  """

  logprob: float
  top_logprobs: dict[int, float]


@struct.pytree
class Decoded:
  """The result of a decode.

  lengths == 1 + block_sizes.sum(1): the first token comes from the prompt, not from a call. `calls`
  is the number of block sizes above 0. A beam search may continue after its best hypothesis has
  ended. There `calls` is the number of steps, and block_sizes are the ones of that hypothesis,
  perhaps fewer.
  """

  # end token included, pad id after; neither prompt nor start token
  tokens: Int[Array | np.ndarray, 'b t']
  lengths: Int[Array | np.ndarray, ' b']
  block_sizes: Int[Array | np.ndarray, 'b t']  # tokens emitted by each call of the target
  calls: Int[Array | np.ndarray, ' b']
  draft_calls: Int[Array | np.ndarray, ' b']  # calls of the drafter's own model
  # false: a token was chosen by logits without a best one (`has_best`), or nothing was found
  finite: Bool[Array | np.ndarray, ' b']
  # beams: of the best hypothesis, the one in `tokens`
  scores: Float[Array | np.ndarray, ' b'] | None = None
  nbest_tokens: Int[Array | np.ndarray, 'b w t'] | None = None  # beams: the w best, best first
  nbest_scores: Float[Array | np.ndarray, 'b w'] | None = None
  # With `logprobs`: of each token by the model's own distribution (`score`), and the n likeliest
  # tokens of its place; 0 after the end
  logprobs: Float[Array | np.ndarray, 'b t'] | None = None
  top_logprobs: Float[Array | np.ndarray, 'b t n'] | None = None
  top_ids: Int[Array | np.ndarray, 'b t n'] | None = None
  # true: the laws left no token to write, so that `finite` is false; None: no row is
  stuck: Bool[Array | np.ndarray, ' b'] | None = None
  # the settings that may have ruled the tokens out
  ruled_by: tuple[str, ...] = struct.static(default=())

  def resized(self, max_len: int, pad_id: int) -> 'Decoded':
    """Returns the same with room for `max_len` tokens a row; no row may have more."""
    xp = np if isinstance(self.tokens, np.ndarray) else jnp

    def sized(x: Any, value: int, axis: int) -> Any:
      more = [(0, max(max_len - x.shape[i], 0) if i == axis else 0) for i in range(x.ndim)]
      kept = x[(slice(None),) * axis + (slice(max_len),)]
      return xp.pad(kept, more, constant_values=value)

    places = {'tokens': (pad_id, 1), 'nbest_tokens': (pad_id, 2)}
    places |= dict.fromkeys(('block_sizes', *LOGPROB_FIELDS), (0, 1))
    fields = {name: (getattr(self, name), *how) for name, how in places.items()}
    new = {name: sized(*one) for name, one in fields.items() if one[0] is not None}
    return dataclasses.replace(self, **new)

  def written(self, row: int) -> list[int]:
    """Returns a row's tokens; `Noted` ones if the decode noted log-probabilities."""
    logprobs = {}
    if self.logprobs is not None:
      logprobs = {name: np.asarray(getattr(self, name)[row]) for name in LOGPROB_FIELDS}
    return listed(np.asarray(self.tokens[row]), 0, int(self.lengths[row]), logprobs)

  def checked(self) -> 'Decoded':
    """Returns itself if its tokens can be trusted.

    Raises:
      UserError: tokens of a row were chosen by logits that are not finite, or there was no token
        left to choose.
    """
    check_finite(self.finite, self.stuck, self.ruled_by)
    return self

  @property
  def mean_block_size(self) -> float:
    """Tokens emitted per call, over all rows; nan if no row needed a call."""
    calls = int(np.sum(self.calls))
    return float(np.sum(np.asarray(self.lengths) - 1) / calls) if calls else float('nan')


def listed(
  tokens: Int[np.ndarray, ' t'], begin: int, end: int, logprobs: Mapping[str, np.ndarray]
) -> list[int]:
  """Returns some of a row's tokens; `Noted` ones if there are logprobs, by `LOGPROB_FIELDS`."""
  ids = tokens[begin:end].tolist()
  if not logprobs:
    return ids
  columns = (logprobs[name][begin:end].tolist() for name in LOGPROB_FIELDS)
  tokens_noted = []
  for token, own, values, likeliest in zip(ids, *columns, strict=True):
    one = Noted(token)
    one.logprob, one.top_logprobs = own, dict(zip(likeliest, values, strict=True))
    tokens_noted.append(one)
  return tokens_noted


def has_best(logits: Float[Array, '*b v']) -> Bool[Array, '*b']:
  """True if logits have a best token: none is NaN or infinite, and not all are minus infinity."""
  return jnp.isfinite(logits.max(axis=-1))


def finish_reason(model: Model, tokens: Sequence[int]) -> Literal['end', 'length']:
  """Returns 'end' for an output that ended by itself, 'length' for one that max_len cut off."""
  is_whole = tokens[-1] in model.eos_ids or len(tokens) == model.fixed_length
  return 'end' if is_whole else 'length'


def find_fault(raw_logits: Float[Array, '*b v'], logits: Float[Array, '*b v']) -> Int[Array, '*b']:
  """Returns STUCK if the laws left `logits` no best token, BROKEN if the model did; else FINE."""
  fault = jnp.where(has_best(raw_logits), STUCK, BROKEN)
  return jnp.where(has_best(logits), FINE, fault).astype(jnp.int32)


def check_finite(finite: Any, stuck: Any, ruled_by: Sequence[str]) -> None:
  """Raises UserError if tokens of a row were chosen by logits without a best (`has_best`).

  Args:
    finite, stuck: bool[b], as in `Decoded`.
    ruled_by: settings that rule out tokens.
  """
  finite = np.asarray(finite)
  stuck = np.zeros_like(finite) if stuck is None else np.asarray(stuck)
  broken = int((~finite & ~stuck).sum())
  if broken:
    raise UserError(
      f'the logits of {broken} of {len(finite)} rows were NaN or infinite, so that what they chose'
      " means nothing: check the weights, or compute in dtype='float32' or 'bfloat16' if this is"
      ' float16'
    )
  if stuck.any():
    names = ruled_by or ('the laws of the target',)
    together = ', '.join(names[:-1]) + ' and ' * (len(names) > 1) + names[-1]
    verb, change = ('rules', 'it') if len(names) == 1 else ('together rule', 'one of them')
    raise UserError(
      f'nothing is left to write in {int(stuck.sum())} of {len(finite)} rows, because {together}'
      f' {verb} out every token there: change {change}'
    )


@dataclasses.dataclass(frozen=True)
class Prefill:
  """The target's results on the prompt, before the first call."""

  prompt: Prompt
  memory: Any  # the encoder's output, or None
  hidden: Float[Array, 'b t d']  # hidden states of all prompt positions
  taps: tuple[Float[Array, 'b t _'], ...]  # states of the layers `Drafter.taps` at these positions
  root: Int[Array, ' b']  # the first token, from the prompt's last position
  capacity: Capacity  # of the target's cache: enough for a drafter's own cache too
  max_len: int  # most tokens that a row may emit

  @property
  def last_hidden(self) -> Float[Array, 'b d']:
    """Hidden state of each row's last prompt position."""
    return take_node(self.hidden, self.prompt.length - 1)


@dataclasses.dataclass(frozen=True)
class Draft:
  """Guesses below the root. tokens[:, 0] is the root itself."""

  tokens: Int[Array, 'b n']
  topology: Topology
  # q, the law each node was drawn from, given the siblings before it: 1 at the token of a node that
  # was not drawn, 0 where nothing was drafted
  probabilities: Float[Array, 'b n v'] | None = None
  calls: int | Int[Array, ' b'] = 0  # calls of the drafter's own model, to be counted
  # how likely each node will be kept, for `Adaptive`: the root 1, and no node more than its
  # parent; None: the drafter cannot say
  chances: Float[Array, 'b n'] | None = None

  def score(self, call: Callable[[Array, Nodes, Any], Any], cache: Any) -> Any:
    """Returns what one call of the target makes of the nodes and the cache."""
    return call(self.tokens, self.topology.nodes, cache)


@dataclasses.dataclass(frozen=True)
class Accepted:
  """The rule's verdict."""

  node: Int[Array, ' b']  # the last accepted node; 0: none but the root
  bonus: Int[Array, ' b']


@dataclasses.dataclass(frozen=True)
class Step:
  """The results of one call, for the drafter to observe."""

  draft: Draft
  hidden: Float[Array, 'b n d']
  taps: tuple[Float[Array, 'b n _'], ...]  # as in `Prefill`, of every node
  logits: Float[Array, 'b n v']  # costs nothing if unread
  accepted: Accepted
  path: Int[Array, 'b m']  # nodes from the root to the last accepted one
  # tokens emitted = nodes of `path` committed; 0: the row had finished before
  count: Int[Array, ' b']
  root: Int[Array, ' b']  # the newest emitted token, root of the next draft
  tokens: Int[Array, 'b t']  # emitted so far, valid before `length`
  length: Int[Array, ' b']

  def block(self, n: int) -> Int[Array, 'b n']:
    """Returns the tokens that this call emitted: the first `count` of each row are valid."""
    places = (self.length - self.count)[:, None] + jnp.arange(n, dtype=jnp.int32)[None]
    return jnp.take_along_axis(self.tokens, places, axis=1, mode='clip')

  def on_path(self, tree: Any) -> Any:
    """Returns the entries of arrays [b, n, ...] at the nodes of `path`: [b, m, ...]."""

    def take(x: Array) -> Array:
      return jnp.take_along_axis(
        x, self.path.reshape(*self.path.shape, *(1,) * (x.ndim - 2)), axis=1
      )

    return jax.tree.map(take, tree)


@runtime_checkable
class Drafter(Protocol):
  """Guesses the tokens that the target will emit next.

  A drafter is a frozen pytree (`fastdec.struct.pytree`): static settings, its own parameters as
  leaves. Its memory between calls is its state, another pytree. Every array of the state has the b
  rows of the batch first: rows may leave a batch, and others take their places. The three functions
  are traced once, inside jit.

  With a lossless rule, guesses never change the output, only the number of calls.

  One more member is optional: `taps`, a static tuple of numbers (`models/taps.py`). It names the
  layers of the target whose states the drafter reads, in `Prefill.taps` and `Step.taps`.
  """

  @property
  def nodes(self) -> int:
    """Number of nodes of each draft, the root included: static."""
    ...

  def init(self, target: Bound, prefill: Prefill) -> Any:
    """Returns the state after the prompt.

    Args:
      target: the model and its parameters.
      prefill: the target's results on the prompt: hidden states [b, t, d], the memory, the first
        root [b], and the capacity of its cache, which also suits the drafter's own.

    Returns:
      The state for the first `propose`.

    Raises:
      UserError: this drafter cannot draft for this target, whose states may have another width.
    """
    ...

  def propose(
    self, target: Bound, state: Any, root: Int[Array, ' b'], keys: Array | None
  ) -> tuple[Draft, Any]:
    """Drafts below the root.

    Args:
      target: as in `init`.
      state: as `init` or `observe` returned it.
      root: each row's newest token. It is emitted, and the target has not read it yet.
      keys: one random key a row for this call, [b]; None if the decode has none. Use each at most
        once.

    Returns:
      The draft of `nodes` nodes, tokens int32[b, n] with tokens[:, 0] == root; and the state, for
      `observe`. The topology may differ from row to row and from call to call; its number of nodes
      may not. Siblings without q must be different tokens: a rule that draws would draw below
      both of two equal ones and keep the luckier, which bends the law. Where nodes are drawn, the
      shape below a node must not depend on what was drawn there.
    """
    ...

  def observe(self, target: Bound, state: Any, step: Step) -> Any:
    """Returns the state after the target's call.

    Args:
      target: as in `init`.
      state: as `propose` returned it.
      step: the draft, the target's results on every node, the accepted path, and the emitted
        tokens. Its logits cost nothing unless they are used. A row with step.count 0 has finished:
        its part of the state is never used again, and may become anything.

    Returns:
      The state for the next `propose`.
    """
    ...


@runtime_checkable
class Heads(Protocol):
  """Prediction heads, as `HeadsDrafter` and the strategies need them: a frozen, hashable value."""

  d_model: int  # width of the hidden states that they read
  depth: int  # tokens that they draft below the root
  rooted: bool  # true if `logits` reads the root's embedding
  markov: int  # rank of a bias from the token before, by a method `bias` (`heads.context`); or 0

  def drafting(self, params: Any, depth: int) -> tuple['Heads', Any]:
    """Returns heads and parameters for the first `depth` tokens below the root only."""
    ...

  def logits(
    self,
    params: Any,
    hidden: Float[Array, 'b d'],
    project: Callable[[Array], Array],
    root: Float[Array, 'b e'] | None = None,
  ) -> Float[Array, 'b h v']:
    """Returns each head's logits.

    Heads without their own projection use the target's, `project`; rooted ones read `root`."""
    ...


@runtime_checkable
class Rule(Protocol):
  """Decides which part of a draft is kept, and which token follows it.

  A rule is a frozen pytree (`fastdec.struct.pytree`). Settings that do not change shapes are array
  leaves, so a sweep over them compiles one program. One more member is optional: `promise`, the
  relation of the output to the target's own (`promise_of`).
  """

  def __call__(
    self,
    keys: Array | None,
    draft: Draft,
    logits: Float[Array, 'b n v'],
    acceptable: Bool[Array, 'b n'],
  ) -> Accepted:
    """Chooses a path from the root, and the token after it.

    Args:
      keys: one random key a row for this call, [b]; None if the decode has none.
      draft: tokens [b, n], their topology and, from a drafter that samples, the laws they were
        drawn from.
      logits: the target's, of the token that follows each node; minus infinity for ids that are
        never emitted.
      acceptable: nodes that may be kept. False for nodes below an end token, beyond max_len, with
        an id that is never emitted, or drafted only to be scored. The root is always acceptable.

    Returns:
      node: int32[b], the last node of the kept path, 0 for only the root. It and all its ancestors
        must be acceptable.
      bonus: int32[b], the token to emit after it. The loop drops it if the path ends the row.

    Raises:
      UserError: while the program is traced, if the rule lacks the keys, chain or laws it needs.
    """
    ...


def promise_of(rule: Any) -> Promise:
  """Returns the promise of a rule on the output, for any drafts:

    exact     it is the target's greedy output, up to rounding
    law       it has the law of tokens that are sampled from the target one by one
    relaxed   nothing

  A rule's own property `promise` gives it. It is not inherited: a subclass that accepts otherwise
  must state its promise again, and promises nothing until it does.
  """
  return rule.promise if 'promise' in vars(type(rule)) else 'relaxed'
