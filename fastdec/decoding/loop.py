"""The one loop: propose -> score -> accept -> commit -> observe.

`init` runs the prompt, `step` is one call of the target; `decode` wraps them in `lax.while_loop`
until all rows are done. Rows are independent: each has its own lengths, and a finished one freezes.
Only the drafter decides on guesses, only the rule on acceptance, and laws change what the target
says (`law`): the loop has no `if` for them.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from fastdec import struct
from fastdec.decoding import law
from fastdec.decoding.prefill import capacity_of, memory_of, read_text
from fastdec.decoding.protocol import (
  FINE,
  Accepted,
  Draft,
  Drafter,
  Prefill,
  Prompt,
  Rule,
  Step,
  find_fault,
)
from fastdec.decoding.sampling import is_among
from fastdec.decoding.text import Text
from fastdec.decoding.topology import Topology, take_node, with_rows
from fastdec.kernels.sharding import constrain
from fastdec.models.api import Nodes, suppress
from fastdec.models.taps import apply_with
from fastdec.struct import Bound


@struct.pytree
class DecodeState:
  """State between two iterations.

  While a row runs, cache.length == prompt + length - 1: the root is emitted, and not yet in the
  cache.
  """

  tokens: Int[Array, 'b t']  # emitted so far, valid before `length`, pad id after
  length: Int[Array, ' b']
  limit: Int[Array, ' b']  # most tokens that the row may emit, at most t
  root: Int[Array, ' b']  # the newest emitted token
  done: Bool[Array, ' b']
  block_sizes: Int[Array, 'b t']  # tokens emitted by each call
  calls: Int[Array, ' b']
  draft_calls: Int[Array, ' b']
  fault: Int[Array, ' b']  # the first of the logits that chose tokens (`find_fault`)
  cache: Any
  drafter: Any  # the drafter's own state
  laws: Any  # the states of the target's laws, which know the text up to the root
  keys: Array | None  # one a row


def init(
  target: Bound, drafter: Drafter, rule: Rule, prompt: Prompt, max_len: int, keys: Array | None
) -> DecodeState:
  """Runs the prompt, and returns the state before the first call.

  The inputs are encoded and the prompt is scored, both once. The prompt's last position yields the
  first token, chosen like every later bonus. It is the first root: emitted, and not yet in the
  cache.

  Args:
    target: the model, its parameters, and the changes of its law.
    drafter: guesses tokens. This function uses its `nodes`, `taps` and `init`.
    rule: chooses the first token, as the bonus of a draft that is only the root.
    prompt: b rows of t tokens, right-padded, of at least one token each.
    max_len: most tokens that a row may emit, its end included; a static int of at least 1. A row
      may have a lower limit of its own, as data: `prompt.limit`. The cache has slots for
      `prompt.slots` of them at first.
    keys: one random key a row (a typed key array [b]), for a rule or a drafter that draws; None if
      neither does.

  Returns:
    The state in which every row has emitted one token. These rows are done: rows whose first token
    is an end token, rows whose limit is 1, and empty rows. The latter emit the first of the model's
    end tokens, or padding if it has none.

  Raises:
    UserError: while the program is traced, if the drafter or the rule cannot work with this target
      or without keys.
  """
  model, params = target
  b = len(prompt.tokens)
  capacity = capacity_of(prompt, max_len, drafter.nodes)
  memory = memory_of(target, prompt)
  cache = model.init_cache(params, memory, b, capacity)
  taps_read = getattr(drafter, 'taps', ())
  hidden, taps, cache = read_text(target, prompt, cache, taps_read)

  # The rule chooses the first token as the bonus of a draft that consists only of the last one.
  zeros = jnp.zeros(b, jnp.int32)
  last = take_node(prompt.tokens, prompt.length - 1)[:, None]
  raw_logits = model.unembed(params, take_node(hidden, prompt.length - 1)[:, None])
  allowed_logits = suppress(raw_logits, model.suppressed_ids)
  nothing_drafted, laws = Draft(last, Topology.chain(1)), law.begin(target, prompt, max_len)
  logits = law.change(target, laws, nothing_drafted, allowed_logits)
  first_keys = None if keys is None else jax.vmap(jax.random.fold_in)(keys, zeros)
  root = rule(first_keys, nothing_drafted, logits, jnp.ones((b, 1), bool)).bonus
  end = model.eos_ids[0] if model.eos_ids else model.pad_id
  root = jnp.where(prompt.empty, end, root)

  prefill = Prefill(prompt, memory, hidden, taps, root, capacity, max_len)
  limit = zeros + max_len if prompt.limit is None else prompt.limit
  first = law.Emitted(root[:, None], zeros + 1, zeros[:, None], raw_logits)
  return DecodeState(
    tokens=jnp.full((b, max_len), model.pad_id, jnp.int32).at[:, 0].set(root),
    length=zeros + 1,
    limit=limit,
    root=root,
    done=is_among(root, model.eos_ids) | prompt.empty | (limit <= 1),
    block_sizes=jnp.zeros((b, max_len), jnp.int32),
    calls=zeros,
    draft_calls=zeros,
    fault=jnp.where(prompt.empty, FINE, find_fault(allowed_logits[:, 0], logits[:, 0])),
    cache=cache,
    drafter=drafter.init(target, prefill),
    laws=law.observe(target, laws, first),
    keys=keys,
  )


def step(target: Bound, drafter: Drafter, rule: Rule, state: DecodeState) -> DecodeState:
  """Makes one call of the target for all rows: propose, score, accept, commit, observe.

  Each node is judged by the target's law, as `laws` change it for the text that ends at that node.
  Rows are independent. A finished row takes part in the call, because shapes are static. But the
  call does not change it: its tokens, length, root, counts and the length of its cache stay. Its
  cache beyond that length, and its drafter's state, no longer matter.

  Args:
    target, drafter, rule: the same as in `init`.
    state: b rows, from `init` or from the step before.

  Returns:
    The state after the call. A running row has emitted from 1 to m tokens more, m =
    topology.max_depth + 1: the accepted drafts and the bonus. The bonus is left out if the last
    accepted draft ends the row, as an end token or by the row's limit.

  Raises:
    UserError: as `init`.
  """
  model, params = target
  draft_keys = rule_keys = None
  if state.keys is not None:
    pairs = jax.vmap(jax.random.split)(jax.vmap(jax.random.fold_in)(state.keys, state.length))
    draft_keys, rule_keys = pairs[:, 0], pairs[:, 1]

  # Propose: guesses below the root.
  draft, drafter_state = drafter.propose(target, state.drafter, state.root, draft_keys)
  topology = draft.topology

  # Score: one call of the target over all nodes, the root included.
  apply = apply_with(model, getattr(drafter, 'taps', ()))

  def call(tokens: Array, nodes: Nodes, cache: Any) -> tuple[Array, tuple[Array, ...], Array, Any]:
    *states, cache = apply(params, tokens, nodes, cache)
    # On a mesh, states are whole on each device, however a drafter splits what it makes of them.
    hidden, taps = jax.tree.map(lambda x: constrain(x, 'data'), states)
    return hidden, taps, model.unembed(params, hidden), cache

  hidden, taps, raw_logits, cache = draft.score(call, state.cache)
  allowed_logits = suppress(raw_logits, model.suppressed_ids)
  logits = law.change(target, state.laws, draft, allowed_logits)

  # Accept: the rule names the last node of a path, and the bonus after it.
  acceptable = _find_acceptable(draft, state, model.eos_ids, model.suppressed_ids)
  accepted = rule(rule_keys, draft, logits, acceptable)
  path = topology.path_to(accepted.node)
  block = _cut_block(state, draft, path, accepted, model.eos_ids)
  text = Text(state.tokens, state.length).append(block.tokens, block.count)

  # Each emitted token was chosen by the logits of the node before it; the other logits of the call
  # do not matter.
  is_read = jnp.arange(path.shape[1], dtype=jnp.int32)[None] < block.count[:, None]
  faults = jnp.take_along_axis(find_fault(allowed_logits, logits), path, axis=1)
  fault = jnp.where(state.fault == FINE, jnp.where(is_read, faults, FINE).max(axis=1), state.fault)

  # Commit: the cache keeps the root and the accepted path. The nodes of a chain are in order
  # already, so without a path nothing is copied.
  cache = cache.commit(None if topology.is_chain else path, block.count)

  # Observe: the drafter sees the results of the call, and the laws read on.
  root = jnp.where(state.done, state.root, block.last)
  results = Step(
    draft=draft, hidden=hidden, taps=taps, logits=logits, accepted=accepted, path=path,
    count=block.count, root=root, tokens=text.tokens, length=text.length,
  )  # fmt: skip
  emitted = law.Emitted(results.block(path.shape[1]), block.count, path, raw_logits)
  runs = (~state.done).astype(jnp.int32)
  sizes = Text(state.block_sizes, state.calls).append(block.count[:, None], runs)
  is_end = is_among(block.last, model.eos_ids) | (text.length >= state.limit)
  return dataclasses.replace(
    state,
    tokens=text.tokens,
    length=text.length,
    root=root,
    done=state.done | is_end,
    block_sizes=sizes.tokens,
    calls=sizes.length,
    draft_calls=state.draft_calls + draft.calls * runs,
    fault=fault,
    cache=cache,
    drafter=drafter.observe(target, drafter_state, results),
    laws=law.observe(target, state.laws, emitted),
  )


def _find_acceptable(
  draft: Draft, state: DecodeState, eos_ids: tuple[int, ...], suppressed_ids: tuple[int, ...]
) -> Bool[Array, 'b n']:
  """Finds nodes that may be emitted: not below an end, within the row's limit, not suppressed."""
  topology = draft.topology
  ancestors = with_rows(topology.mask, 3) & ~jnp.eye(topology.n, dtype=bool)[None]
  below_end = (ancestors & is_among(draft.tokens, eos_ids)[:, None, :]).any(-1)
  tokens_left = state.limit - state.length
  is_within_limit = with_rows(topology.depths, 2) <= tokens_left[:, None]
  is_allowed = with_rows(topology.acceptable, 2) & ~is_among(draft.tokens, suppressed_ids)
  return is_allowed & ~below_end & is_within_limit


@dataclasses.dataclass(frozen=True)
class _Block:
  """The tokens that a call emits."""

  tokens: Int[Array, 'b m']
  count: Int[Array, ' b']  # how many of them are valid: 0 in finished rows
  last: Int[Array, ' b']  # the newest token; meaningless in finished rows


def _cut_block(
  state: DecodeState,
  draft: Draft,
  path: Int[Array, 'b m'],
  accepted: Accepted,
  eos_ids: tuple[int, ...],
) -> _Block:
  """Returns the accepted drafts and, unless they end the row, the bonus."""
  depths = jnp.broadcast_to(draft.topology.depths, draft.tokens.shape)
  drafts = take_node(depths, accepted.node)  # number of accepted ones
  last = take_node(draft.tokens, accepted.node)
  is_cut = ((drafts > 0) & is_among(last, eos_ids)) | (state.length + drafts >= state.limit)

  tokens = jnp.pad(jnp.take_along_axis(draft.tokens, path[:, 1:], axis=1), ((0, 0), (0, 1)))
  index = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None]
  tokens = jnp.where(index == drafts[:, None], accepted.bonus[:, None], tokens)
  return _Block(
    tokens=tokens,
    count=jnp.where(state.done, 0, drafts + (~is_cut).astype(jnp.int32)),
    last=jnp.where(is_cut, last, accepted.bonus),
  )
