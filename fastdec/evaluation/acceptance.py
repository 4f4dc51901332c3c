"""Acceptance of a draft model by its target: alpha of Leviathan et al. 2022, measured in two ways.

  by beta         the mean over contexts of beta = sum_x min(p(x), q(x)), the chance that a token
                  drawn from q is accepted (section 3.2); at temperature 0 it is 1 if both models
                  have the same most likely word, else 0
  by acceptance   the share of accepted tokens among the drafted tokens that calls reached

The formulas of `fd.theory` assume that alpha is constant and that acceptances are independent. If
they are not, the two figures differ.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from fastdec.decoding.inputs import make_prompt
from fastdec.decoding.protocol import Decoded, Prompt
from fastdec.decoding.sampling import Sampling, argmax
from fastdec.decoding.score import POSITIONS, read_targets
from fastdec.models.api import suppress
from fastdec.struct import Bound


def betas(
  target: tuple[Any, Any], draft: tuple[Any, Any], inputs: Any, texts: Decoded, temperature: float
) -> Float[np.ndarray, ' n']:
  """Computes beta of every context that the target met in its own texts, by forcing both models.

  The first token of a text comes from the prompt and is never drafted, so it has no beta. Words
  that the draft's vocabulary lacks count as impossible for it.

  Args:
    target, draft: (model, params); a draft without an encoder sees only the text.
    inputs: as in `decode`, prompts of one length.
    texts: the target's output.
    temperature: of both distributions; 0 compares their most likely words.
  """
  prompt = make_prompt(target[0], inputs, None, None)
  betas_bt = _betas(
    Bound(*target),
    Bound(*draft),
    prompt,
    jnp.asarray(texts.tokens),
    temperature or 1.0,
    temperature == 0,
  )
  place = np.arange(betas_bt.shape[1])
  return np.asarray(betas_bt)[(place > 0) & (place < np.asarray(texts.lengths)[:, None])]


@functools.partial(jax.jit, static_argnames='is_greedy')
def _betas(
  target: Bound,
  draft: Bound,
  prompt: Prompt,
  texts: Int[Array, 'b t'],
  temperature: Any,
  is_greedy: bool,
) -> Float[Array, 'b t']:
  sampling = Sampling(temperature)
  words = target.module.vocab_size
  suppressed = target.module.suppressed_ids

  def at(hidden: tuple[Array, Array]) -> Float[Array, ' b']:
    target_hidden, draft_hidden = hidden
    p = target.module.unembed(target.params, target_hidden)
    q = draft.module.unembed(draft.params, draft_hidden)
    q = jnp.pad(q[:, :words], ((0, 0), (0, max(0, words - q.shape[1]))), constant_values=-jnp.inf)
    p, q = suppress(p, suppressed), suppress(q, suppressed)
    if is_greedy:
      return (argmax(p) == argmax(q)).astype(jnp.float32)
    return jnp.minimum(jnp.exp(sampling.log_probs(p)), jnp.exp(sampling.log_probs(q))).sum(-1)

  hidden = []
  for bound in (target, draft):
    known = jnp.minimum(texts, bound.module.vocab_size - 1)
    hidden.append(read_targets(bound.module, bound.params, prompt, known).swapaxes(0, 1))
  return jax.lax.map(at, tuple(hidden), batch_size=min(texts.shape[1], POSITIONS)).T


def tokens_per_call(texts: Decoded, chosen: Any = slice(None)) -> tuple[float, ...]:
  """Computes tokens a call, and the ends of the interval that holds 95 % of 1000 samples of texts.

  There is no interval for one text, or if a sample has no calls. Without calls the figure is nan.

  Args:
    texts: the output of a strategy.
    chosen: indices of the texts that count, or a mask.
  """
  later, calls = (np.asarray(texts.lengths) - 1)[chosen], np.asarray(texts.calls)[chosen]
  figure = float('nan')
  if calls.any():
    figure = float(later.sum() / calls.sum())
  drawn = np.random.default_rng(0).integers(0, len(calls), (1000, len(calls)))
  if len(calls) < 2 or not calls[drawn].any(1).all():
    return (figure,)
  ratios = later[drawn].sum(1) / calls[drawn].sum(1)
  return (figure, *np.percentile(ratios, (2.5, 97.5)).tolist())


def accepted_share(texts: Decoded, gamma: int) -> float:
  """Computes alpha by acceptance from the blocks that calls on gamma drafts wrote; nan without any.

  A block of s tokens means s - 1 accepted drafts, and a rejected one if s <= gamma. The last token
  of a text may have been drafted or not: that draft is not counted.

    gamma 3, blocks 4 2 2:   3 accepted, 1 accepted and 1 not, 1 accepted          5 of 6
  """
  accepted, rejected = _count_judged(texts, gamma)
  judged = accepted.sum() + rejected.sum()
  if not judged:
    return float('nan')
  return float(accepted.sum() / judged)


def accepted_by_place(texts: Decoded, places: int) -> tuple[float, ...]:
  """Computes the share of accepted drafts at each place of a chain, if all before it are accepted.

  It is nan for a place that no call reached. The last call of a text counts as in `accepted_share`.

    chains of 3, blocks 4 2 2:   place 1: 3 of 3, place 2: 1 of 2, place 3: 1 of 1
  """
  accepted, rejected = _count_judged(texts, places)
  with np.errstate(invalid='ignore'):
    return tuple((accepted / (accepted + rejected)).tolist())


def _count_judged(
  texts: Decoded, places: int
) -> tuple[Int[np.ndarray, ' places'], Int[np.ndarray, ' places']]:
  """Counts the drafts that calls accepted and rejected at each place of a chain, from 1 on."""
  sizes = np.asarray(texts.block_sizes)
  calls = np.asarray(texts.calls)[:, None]
  number = np.arange(sizes.shape[1])
  all_calls = sizes[number < calls]
  all_but_last = sizes[number < calls - 1]
  place = np.arange(1, places + 1)[:, None]
  return (all_calls > place).sum(1), (all_but_last == place).sum(1)


def repeated_share(texts: Decoded, n: int = 4) -> float:
  """Returns the share of n-grams that had occurred earlier in the same text; nan without any."""
  repeated = total = 0
  for row, length in zip(np.asarray(texts.tokens), np.asarray(texts.lengths), strict=True):
    grams = [tuple(row[i : i + n]) for i in range(length - n + 1)]
    total += len(grams)
    repeated += len(grams) - len(set(grams))
  if not total:
    return float('nan')
  return repeated / total
