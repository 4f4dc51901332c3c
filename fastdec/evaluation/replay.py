"""Replay of texts: the calls that a strategy would make to write them, without the model's layers.

At temperature 0 every lossless strategy writes the same text. So what a call accepts follows from
the text and from the model's states on it, which one pass over the whole text computes. Here the
loop runs with the strategy's own drafter, and with a target that knows both: it gives each node the
state at its position in the text, and the text's next token. A drafter that reads only the accepted
path sees what it would see in a decode, so the blocks are the same as in the decode, for chains,
trees that grow, copies and unions.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fastdec import struct
from fastdec.cache.kv import KVCache
from fastdec.decoding.inputs import make_prompt, pad_ids
from fastdec.decoding.law import Emitted
from fastdec.decoding.methods.coupled_jacobi import CoupledJacobi
from fastdec.decoding.methods.jacobi import Jacobi
from fastdec.decoding.methods.lookahead import Lookahead
from fastdec.decoding.methods.lookup import PromptLookup
from fastdec.decoding.methods.suffix import Suffix
from fastdec.decoding.protocol import Decoded, Draft, Prompt, promise_of
from fastdec.decoding.request import Settings, prepare
from fastdec.decoding.rules.matching import Drawn
from fastdec.decoding.run import Run
from fastdec.decoding.score import read_again
from fastdec.decoding.strategy import LoopStrategy, read_streaming
from fastdec.decoding.topology import with_rows
from fastdec.errors import UserError
from fastdec.models.api import Model, Nodes, Params, check_model, vocabulary_projection
from fastdec.models.taps import Taps, number_taps
from fastdec.struct import Bound

ROWS = 8  # texts replayed at once by `tokens_a_call`
_read_again = jax.jit(read_again, static_argnames='taps')


def replay(
  model: Model,
  params: Params,
  inputs: Any,
  texts: Sequence[Sequence[int]] | Decoded,
  strategy: Any,
  prompt_lengths: Any = None,
  prefix: Any = None,
  constraint: Any = None,
  processors: Any = None,
) -> Decoded:
  """Returns what `decode` with a strategy would return that writes these texts, up to rounding.

  The target's layers read each text once, in parallel. Only the drafter is called step by step.

  Args:
    model, params, inputs, prompt_lengths, prefix: as in `decode`.
    texts: outputs of the model, one for each row, with their ends; or a `Decoded`. Give greedy
      texts for greedy decoding, and drawn ones to see which guesses sampling accepts.
    strategy: a lossless one that guesses, such as `PromptLookup`, `Eagle`, `Medusa`, `Speculative`
      or `Union`.
    constraint: of the texts; only `Forced` reads it. All other laws have done their work.
    processors: of the texts; a constraint begins after the token that they force at the beginning.

  Raises:
    UserError: as `decode`; a strategy whose calls do not follow from the text.
  """
  run = begin_replay(
    model, params, inputs, texts, strategy, prompt_lengths, prefix, constraint, processors
  )
  run.advance()
  decoded = run.finish(run.decoded, run.prompt)
  return decoded.resized(int(np.max(decoded.lengths)), model.pad_id)


def tokens_a_call(
  target: Bound, strategy: Any, texts: Sequence[tuple[str, Sequence[int], Sequence[int]]]
) -> dict[str, float]:
  """Replays texts of the target, and returns the tokens of a call, of each category and of 'all'.

  Args:
    target: the model and its parameters.
    strategy: with the draft.
    texts: category, ids of the prompt (of a translator its source), and ids of the text.
  """
  model, params = target
  names = [*sorted({category for category, *_ in texts}), 'all']
  tokens, calls = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
  for first in range(0, len(texts), ROWS):
    categories, prompts, written = zip(*texts[first : first + ROWS], strict=True)
    decoded = replay(model, params, list(prompts), list(written), strategy)
    for row, category in enumerate(categories):
      for name in (category, 'all'):
        tokens[name] += int(decoded.lengths[row]) - 1
        calls[name] += int(decoded.calls[row])
  return {name: tokens[name] / max(calls[name], 1) for name in names}


def can_replay(strategy: LoopStrategy) -> bool:
  """True if a text decides what the strategy accepts."""
  rule = strategy.effective_rule
  compares = promise_of(rule) == 'exact' or type(rule) is Drawn
  return compares and not isinstance(strategy, Lookahead | Jacobi | CoupledJacobi)


def begin_replay(
  model: Model,
  params: Params,
  inputs: Any,
  texts: Sequence[Sequence[int]] | Decoded,
  strategy: Any,
  prompt_lengths: Any = None,
  prefix: Any = None,
  constraint: Any = None,
  processors: Any = None,
) -> Run:
  """Returns a run that replays the texts: `advance` makes the calls. Arguments as in `replay`."""
  check_model(model, params)
  strategy = read_streaming(strategy)
  if not can_replay(strategy):
    raise UserError(
      f'{type(strategy).__name__} with the rule {type(strategy.effective_rule).__name__} cannot be'
      ' replayed, because what it accepts does not follow from a text: decode with it, or give a'
      ' different strategy'
    )
  if strategy.sampling is not None:
    strategy = strategy.with_sampling(None)
  prompt = make_prompt(model, inputs, prompt_lengths, prefix)
  if isinstance(texts, Decoded):  # whose width is that of other batches with its limit
    tokens, lengths = np.asarray(texts.tokens), np.asarray(texts.lengths)
  else:
    lengths = [*map(len, texts)]
    tokens, _ = pad_ids('texts', texts, model.vocab_size, model.pad_id)
  if len(prompt.tokens) != len(tokens):
    raise UserError(f'{len(tokens)} texts for {len(prompt.tokens)} inputs: give one for each')

  # The model reads the texts, and the loop writes them again. Copies need no states.
  taps = number_taps(getattr(strategy.drafter, 'taps', ()), getattr(model, 'layers', None))
  prompt, tokens = jax.tree.map(jnp.asarray, (prompt, tokens))
  hidden, states = jnp.zeros((*tokens.shape, 1)), ()
  if not isinstance(strategy, PromptLookup | Suffix):
    hidden, states = _read_again(Bound(model, params), prompt, tokens, taps)
  known = {'hidden': hidden, **dict(zip(map(str, taps), states, strict=True))}
  waits = True if getattr(processors, 'forced_begin', None) is not None else None
  following = Following(tokens, waits)
  settings = Settings(max_len=[*lengths], processors=following, constraint=constraint)
  request = prepare(
    model, {**params, 'known': known}, inputs, strategy, settings, prompt_lengths, prefix
  )

  # A text ends where it ends: a token that ends other texts may be within it. Batches whose texts
  # have one width share a program.
  target = dataclasses.replace(request.target, module=Reciting(model))
  prompt = dataclasses.replace(request.prompt, empty=np.zeros_like(request.prompt.empty))
  return Run.begin(
    dataclasses.replace(request, target=target, prompt=prompt, max_len=tokens.shape[1])
  )


@dataclasses.dataclass(frozen=True)
class Reciting:
  """A model that knows its states on the text: they are among its parameters, as 'known'."""

  model: Any
  eos_ids = ()

  def __getattr__(self, name: str) -> Any:
    return getattr(self.model, name)

  def init_cache(self, params: Params, memory: Any, rows: int, slots: Any) -> KVCache:
    return KVCache.of((), rows)  # it only counts tokens

  def apply(
    self, params: Params, tokens: Int[Array, 'b n'], nodes: Nodes, cache: KVCache, taps: Taps = ()
  ) -> Any:
    places = cache.length[:, None] + with_rows(nodes.depths, 2)

    def at(name: str) -> Float[Array, 'b n _']:
      # A beginning that all rows share is read in one row.
      states = params['known'][name][: len(tokens)]
      return jnp.take_along_axis(states, places[..., None], axis=1, mode='clip')

    return at('hidden'), tuple(at(str(tap)) for tap in taps), cache

  def unembed(self, params: Params, hidden: Float[Array, '*b d']) -> Float[Array, '*b v']:
    """Returns zeros: `Following` says what follows."""
    # XLA would spend seconds on a constant of this size.
    zeros = 0 * hidden[..., :1].astype(jnp.float32)
    return jnp.broadcast_to(zeros, (*hidden.shape[:-1], self.model.vocab_size))

  def project(self, params: Params, hidden: Float[Array, '*b d']) -> Float[Array, '*b v']:
    """Applies the model's projection, which heads and networks may share."""
    return vocabulary_projection(self.model)(params, hidden)


@struct.pytree
class Following:
  """The law that allows only the text's next token. Its state counts each row's tokens so far."""

  texts: Int[Array, 'b t']
  forced_begin: bool | None = struct.static(default=None)  # True: a constraint begins after it

  def laws(self, model: Model, rows: int, waits: bool = False) -> tuple['Following', ...]:
    return (self,)

  def init(self, model: Model, prompt: Prompt, max_len: int) -> Int[Array, ' b']:
    return jnp.zeros(len(prompt.tokens), jnp.int32)

  def __call__(
    self, state: Int[Array, ' b'], draft: Draft, logits: Float[Array, 'b n v']
  ) -> Float[Array, 'b n v']:
    places = state[:, None] + with_rows(draft.topology.depths, 2)
    next_bn = jnp.take_along_axis(self.texts, places, axis=1, mode='clip')
    is_next = jnp.arange(logits.shape[-1], dtype=jnp.int32)[None, None] == next_bn[..., None]
    return jnp.where(is_next, logits, -jnp.inf)

  def observe(self, state: Int[Array, ' b'], emitted: Emitted) -> Int[Array, ' b']:
    return state + emitted.count

  def take(self, rows: Any) -> 'Following':
    return dataclasses.replace(self, texts=self.texts[rows])
