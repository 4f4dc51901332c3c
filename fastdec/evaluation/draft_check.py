"""Checks that a draft fits its target, by the share of the target's tokens that it guesses first.

A draft that does not fit is only slow: texts stay correct. A correctly loaded draft of EAGLE-3 or
DFlash guesses 60 to 85 % of its target's tokens. If a layer is off by one, a norm is missing or the
base of rotations is wrong, it guesses less than 30 %.
"""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fastdec.decoding.decode import decode
from fastdec.decoding.inputs import check_inputs
from fastdec.decoding.methods.greedy import Greedy
from fastdec.errors import UserNote
from fastdec.heads.block import BlockNetwork
from fastdec.heads.draft import check_target
from fastdec.heads.eagle import EagleNetwork
from fastdec.heads.tower import own_cache
from fastdec.models.api import Model, Params, causal, source_of, suppress
from fastdec.models.attention import node_mask
from fastdec.models.taps import apply_with
from fastdec.struct import Bound

TOKENS = 64
LEAST = 0.3  # a lower share means a mistake in loading, or hardly any training


def check_draft(
  model: Model,
  params: Params,
  draft: tuple[Any, Params],
  inputs: Any,
  prompt_lengths: Any = None,
  tokens: int = TOKENS,
) -> float:
  """Returns the share of the target's greedy tokens that the draft guesses from the text before.

  If it is below `LEAST`, a warning (`UserNote`) names the usual causes.

  Args:
    model, params: the target.
    draft: (module, params), from `load_draft`.
    inputs, prompt_lengths: the prompts, as in `decode`; longer texts make the share more certain.
    tokens: number of tokens that the target writes for each row.

  Returns:
    The share; nan if no row has two tokens or more.

  Raises:
    UserError: the draft's sizes do not fit the target, or the inputs cannot be decoded.
  """
  check_target(Bound(*draft), model)
  max_len, prompt, _ = check_inputs(model, inputs, prompt_lengths, None, tokens, None)
  out = decode(model, params, inputs, Greedy(), prompt_lengths, max_len=max_len)
  before, written = np.asarray(prompt.length), np.asarray(out.lengths)
  text = np.full((len(before), prompt.tokens.shape[1] + max_len), model.pad_id, np.int32)
  for row, (n, m) in enumerate(zip(before, written, strict=True)):
    text[row, :n] = prompt.tokens[row, :n]
    text[row, n : n + m] = out.tokens[row, :m]
  guesses = np.asarray(_first_guesses(Bound(model, params), Bound(*draft), prompt.inputs, text))
  places = np.arange(text.shape[1])[None]
  # A draft never guesses the first token, which comes from the prompt.
  is_guessed = (places > before[:, None]) & (places < (before + written)[:, None])
  if not is_guessed.any():
    return float('nan')
  share = float((guesses == text)[is_guessed].mean())
  if share < LEAST:
    warnings.warn(
      f'this draft guesses {share:.0%} of {is_guessed.sum()} tokens that its target wrote, while a'
      ' correct one guesses 60 % and more: if it is trained, its layers may be numbered differently'
      ' (taps), a norm may be missing or one too many, or the base of its rotations (rope_theta)'
      ' may be wrong',
      UserNote,
      stacklevel=2,
    )
  return share


@jax.jit
def _first_guesses(
  target: Bound, draft: Bound, inputs: Array | None, text: Int[Array, 'b t']
) -> Int[Array, 'b t']:
  """Returns the draft's guess for each position from 2 on, from the text before it."""
  model, params = target
  module = draft.module
  b, t = text.shape
  memory = model.encode(params, inputs)
  cache = model.init_cache(params, memory, b, t)
  hidden, taps, _ = apply_with(model, module.taps)(params, text, causal(t), cache)
  features = module.features(draft.params, hidden, taps)
  find_logits = _eagle_logits if isinstance(module, EagleNetwork) else _block_logits
  logits = find_logits(target, draft, source_of(model)(memory), text, features)
  allowed = suppress(module.in_target_words(draft.params, logits), model.suppressed_ids)
  return jnp.pad(allowed.argmax(-1).astype(text.dtype), ((0, 0), (2, 0)))[:, :t]


def _eagle_logits(
  target: Bound, draft: Bound, source: Any, text: Int[Array, 'b t'], features: Float[Array, 'b t d']
) -> Float[Array, 'b t w']:
  """Returns the logits at each position, whose row also reads the token after it."""
  module: EagleNetwork = draft.module
  params, (b, t) = draft.params, text.shape
  cache = module.init_cache(params, source, b, t)
  nodes = causal(t)
  mask = node_mask(nodes, cache.length, own_cache(cache).slots)
  positions = cache.length[:, None] + nodes.depths[None]
  embedded = module.embedded(params, target, jnp.roll(text, -1, axis=1))
  states, _ = module.read(params, embedded, features, positions, mask, cache, cache.length)
  return module.logits(params, target, states)


def _block_logits(
  target: Bound, draft: Bound, source: Any, text: Int[Array, 'b t'], features: Float[Array, 'b t d']
) -> Float[Array, 'b m w']:
  """Returns the logits of a block's first guess, with its root at each position but the first."""
  module: BlockNetwork = draft.module
  params, (b, t) = draft.params, text.shape
  cache = module.init_cache(params, source, b, t + module.rows)
  positions = cache.length[:, None] + jnp.arange(t, dtype=jnp.int32)[None]
  known = module.remember(params, features, positions, cache)

  def guess(at: Int[Array, '']) -> Float[Array, 'b w']:
    root, last = text[:, at], features[:, at - 1]
    cache = known.commit(None, jnp.full(b, at, jnp.int32))
    state = module.read(params, target, root, last, cache)[:, 0]
    logits = module.logits(params, target, state)
    if not module.markov:
      return logits
    bias, _ = module.bias(params, root, None, state, jnp.zeros((b, module.markov), state.dtype))
    return logits + bias.astype(logits.dtype)

  return jax.lax.map(guess, jnp.arange(1, t, dtype=jnp.int32)).swapaxes(0, 1)
