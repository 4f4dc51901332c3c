"""Speculative decoding with a draft model (Leviathan et al. 2022; Chen et al. 2023)."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fastdec import struct
from fastdec.cache.loops import fori_loop
from fastdec.decoding.drafted_by import check_draft
from fastdec.decoding.inputs import check_positions
from fastdec.decoding.methods.drafts_with_probs import DraftsWithProbs
from fastdec.decoding.prefill import capacity_of, memory_of, read_text
from fastdec.decoding.protocol import Draft, Drafter, Prefill, Prompt, Rule, Step
from fastdec.decoding.sampling import Sampling, argmax, draw, fold_keys
from fastdec.decoding.settings import MOST_NODES, Whole, size
from fastdec.decoding.strategy import DRAFTED, Sizes
from fastdec.decoding.topology import Topology, take_node
from fastdec.errors import UserError
from fastdec.models.api import (
  Cache,
  Model,
  causal,
  has_own_source_ids,
  source_pad,
  source_words,
  suppress,
)
from fastdec.struct import Bound

PADDING = 0.01  # of a vocabulary: the most that models of one tokenizer add to it as padding


@struct.pytree
class Speculative(DraftsWithProbs):
  """Decoding with a smaller model that drafts, while the target verifies.

  Args:
    draft: (model, params): any model with the target's vocabulary, with an encoder only if the
      target has one. Sizes that differ by at most 1 %, with an end token in common, count as one
      vocabulary, padded differently.
    gamma: tokens drafted for each call of the target, at least 1.
    sampling: how tokens are drawn, of target and draft alike; None: the most likely token.
    rule: None: `Exact()` without sampling, else `Rejection()`. Without sampling any rule is
      possible; with it, one that compares distributions: `Rejection` or `BlockVerification`.
    adaptive: gamma is an upper bound, and the length of drafts follows from how many were accepted
      (`ModelDrafter`).
    same_ids: the vocabularies agree on their common ids even if their sizes differ: one is the
      beginning of the other. The draft's ids beyond the target's are not drafted.
  """

  draft: Any
  gamma: Whole = struct.static(default=4)
  sampling: Sampling | None = None
  rule: Rule | None = None
  adaptive: bool = struct.static(default=False)
  same_ids: bool = struct.static(default=False)
  part = 'draft'
  drafts_for = Model
  drafts_by_model = True

  def __post_init__(self) -> None:
    allowed = '1 or more tokens to draft, or decode by Greedy()'
    gamma = size('gamma', self.gamma, 1, allowed, MOST_NODES - 1)
    struct.assign(self, draft=check_draft(self.draft, 'draft', Model), gamma=gamma)
    self.settle()

  @classmethod
  def usual(cls, part: tuple[Any, Any]) -> 'Speculative':
    return cls(part, same_ids=True)

  def sizes(self, drafted: Sizes = None, nodes: Sizes = None) -> Sequence[Any]:
    return [dataclasses.replace(self, gamma=n) for n in drafted or DRAFTED]

  @property
  def drafter(self) -> Drafter:
    return ModelDrafter(self.draft, self.sampling, self.gamma, self.adaptive)

  def check(self, model: Model, prompt: Prompt, max_len: int) -> None:
    draft, _ = self.draft
    check_vocabularies(model, draft, self.same_ids)
    check_draft_model(model, draft, prompt, max_len)


def check_vocabularies(target: Model, draft: Model, same_ids: bool) -> None:
  """Raises UserError if, by sizes and end tokens, the models' ids cannot mean the same tokens."""
  have, want = draft.vocab_size, target.vocab_size
  if same_ids or have == want:
    return
  has_ends = draft.eos_ids or target.eos_ids
  ends_agree = not has_ends or set(draft.eos_ids) & set(target.eos_ids)
  if ends_agree and abs(have - want) <= PADDING * max(have, want):
    return
  raise UserError(
    f"the draft model has {have} tokens and the target {want}: give a draft model with the target's"
    ' tokenizer, or same_ids=True if one vocabulary begins with the whole of the other'
  )


def check_draft_model(target: Model, draft: Model, prompt: Prompt, max_len: int) -> None:
  """Raises UserError if the draft model cannot read the inputs, or has too few positions."""
  if target.start_id is None and draft.start_id is not None:
    raise UserError(
      'the draft model has an encoder, and the target has none: give a decoder-only draft model'
    )
  if draft.start_id is not None and (has_own_source_ids(draft) or has_own_source_ids(target)):
    have, want = source_words(draft), source_words(target)
    if have != want:
      raise UserError(
        f"the draft model's source has {have} words and the target's {want}: give a draft model"
        " with the target's tokenizer"
      )

  # If the draft model has fewer positions than the target, the source and the longest row must fit.
  limit = draft.max_positions
  if limit is None or (target.max_positions is not None and limit >= target.max_positions):
    return
  inputs, s = prompt.inputs, 0
  if draft.start_id is not None and inputs is not None and inputs.ndim == 2:
    s = inputs.shape[1]
  check_draft = functools.partial(
    check_positions, limit=limit, whose="the draft model's", other=', or give another draft model'
  )
  check_draft(s, 1, name='a source')
  own = np.full(prompt.length.shape, max_len) if prompt.limit is None else prompt.limit
  longest = (prompt.length + own).argmax()
  check_draft(int(prompt.length[longest]), int(own[longest]))


# The tokens [b, n] and their distributions [b, n, v] so far, and the draft's cache
Drafting = tuple[Array, Array | None, Cache]


@struct.pytree
class Reading:
  """Progress of the draft model in each row."""

  cache: Cache
  before_root: Int[Array, ' b']
  # 1: the root; 2: the token before it, and the root; 0: the row has finished
  unread: Int[Array, ' b']
  gamma: Int[Array, ' b']  # tokens to draft for the row


@struct.pytree
class ModelDrafter:
  """Drafter of a chain of at most gamma tokens.

  If it is adaptive, each row has its own gamma, from 1 to `gamma`. It grows by 2 after a draft that
  was accepted as a whole, and otherwise shrinks by 1 (the heuristic of Hugging Face's assisted
  generation). The largest gamma decides for the batch. In the other rows the tokens beyond their
  own gamma are not acceptable, so rows stay independent. The target's call always has gamma + 1
  nodes, because that is a shape: only calls of the draft model are saved. `draft_calls` counts the
  calls that the row itself needed.
  """

  draft: Bound
  sampling: Sampling | None  # how tokens are drawn; None: the most likely token
  gamma: int = struct.static()
  adaptive: bool = struct.static(default=False)

  @property
  def nodes(self) -> int:
    return self.gamma + 1

  def init(self, target: Bound, prefill: Prefill) -> Reading:
    model, params = self.draft
    prompt, b = prefill.prompt, len(prefill.prompt.tokens)

    # The source in the draft model's words: unknown ones become its last one. So does the padding.
    source = prompt.inputs
    if source is not None and source.ndim == 2:
      place = jnp.arange(source.shape[1], dtype=jnp.int32)[None]
      is_padding = place >= prompt.source_length(target.module)[:, None]
      source = jnp.minimum(source, source_words(model) - 1)
      source = jnp.where(is_padding, source_pad(model), source)

    # The prompt, with the draft model's own start token
    tokens = self._known(prompt.tokens)
    if model.start_id is not None:
      tokens = tokens.at[:, 0].set(model.start_id)
    prompt = dataclasses.replace(prompt, inputs=source, tokens=tokens)
    if getattr(model, 'reads_length', True):  # even if the target does not
      prompt = dataclasses.replace(prompt, shared=0)

    capacity = capacity_of(prompt, prefill.max_len, self.nodes)
    capacity = dataclasses.replace(capacity, back=self.gamma - 1)
    cache = model.init_cache(params, memory_of(self.draft, prompt), b, capacity)
    _, _, cache = read_text(self.draft, prompt, cache)
    ones = jnp.ones_like(prefill.root)
    return Reading(cache, before_root=prefill.root, unread=ones, gamma=ones * self.gamma)

  def propose(
    self, target: Bound, state: Reading, root: Int[Array, ' b'], keys: Array | None
  ) -> tuple[Draft, Reading]:
    # The first draft, after the tokens that the draft model has not read
    first = jnp.stack([jnp.where(state.unread == 2, state.before_root, root), root], axis=1)
    hidden_bnd, cache = self._read(first, state.cache)
    cache = cache.commit(None, state.unread)
    drafted, q_bv = self._guess(target, take_node(hidden_bnd, (state.unread - 1).clip(0)), keys, 0)

    b, n = root.shape[0], self.nodes
    tokens_bn = jnp.broadcast_to(root[:, None], (b, n)).at[:, 1].set(drafted)
    q_bnv = None
    if q_bv is not None:
      q_bnv = jnp.zeros((b, n, q_bv.shape[-1]), q_bv.dtype).at[:, 1].set(q_bv)

    # The other drafts, each after the draft before
    def guess_next(i: Int[Array, ''], carry: Drafting) -> Drafting:
      tokens_bn, q_bnv, cache = carry
      hidden_bnd, cache = self._read(jax.lax.dynamic_slice_in_dim(tokens_bn, i, 1, axis=1), cache)
      drafted, q_bv = self._guess(target, hidden_bnd[:, 0], keys, i)
      if q_bnv is not None and q_bv is not None:
        q_bnv = q_bnv.at[:, i + 1].set(q_bv)
      return tokens_bn.at[:, i + 1].set(drafted), q_bnv, cache.commit(None, jnp.ones_like(root))

    carry = (tokens_bn, q_bnv, cache)
    tokens_bn, q_bnv, cache = fori_loop(1, self._calls(state), guess_next, carry, nodes=1)
    wanted_bn = jnp.arange(n, dtype=jnp.int32)[None] <= state.gamma[:, None]
    chain = dataclasses.replace(Topology.chain(n), acceptable=wanted_bn)
    if q_bnv is not None:
      q_bnv = jnp.where(wanted_bn[..., None], q_bnv, 0)
    draft = Draft(tokens_bn, chain, q_bnv, calls=state.gamma)
    return draft, dataclasses.replace(state, cache=cache)

  def observe(self, target: Bound, state: Reading, step: Step) -> Reading:
    accepted, runs = step.accepted.node, step.count > 0
    whole = accepted == state.gamma
    # The cache has the root and `read` drafts after it, of which `kept` stay.
    read = self._calls(state) - 1
    kept = jnp.where(runs, jnp.minimum(accepted, state.gamma - 1), 0)
    gamma = state.gamma
    if self.adaptive:
      gamma = (gamma + jnp.where(whole, 2, -1)).clip(1, self.gamma)
    return Reading(
      cache=state.cache.commit(None, kept - read),
      before_root=take_node(step.draft.tokens, accepted),
      unread=jnp.where(runs, 1 + whole.astype(jnp.int32), 0),
      gamma=gamma,
    )

  def _calls(self, state: Reading) -> int | Int[Array, '']:
    """Returns the number of tokens to draft in every row, which is that of draft model calls."""
    if not self.adaptive:
      return self.gamma
    return jnp.where(state.unread > 0, state.gamma, 1).max()

  def _read(self, tokens: Int[Array, 'b n'], cache: Cache) -> tuple[Float[Array, 'b n d'], Cache]:
    hidden, _, cache = self.draft.module.apply(
      self.draft.params, self._known(tokens), causal(tokens.shape[1]), cache
    )
    return hidden, cache

  def _known(self, tokens: Int[Array, 'b n']) -> Int[Array, 'b n']:
    """Replaces tokens beyond the draft model's vocabulary by its last token."""
    return jnp.minimum(tokens, self.draft.module.vocab_size - 1)

  def _guess(
    self, target: Bound, hidden: Float[Array, 'b d'], keys: Array | None, i: int | Int[Array, '']
  ) -> tuple[Int[Array, ' b'], Float[Array, 'b v'] | None]:
    """Returns the draft's i-th token and, if it is drawn, its q over the target's vocabulary."""
    words = target.module.vocab_size
    logits = self.draft.module.unembed(self.draft.params, hidden)[:, :words]
    logits = jnp.pad(logits, ((0, 0), (0, words - logits.shape[1])), constant_values=-jnp.inf)
    logits = suppress(logits, target.module.suppressed_ids)
    if self.sampling is None:
      return argmax(logits), None
    log_q = self.sampling.log_probs(logits)
    return draw(fold_keys(keys, i), log_q), jnp.exp(log_q)
