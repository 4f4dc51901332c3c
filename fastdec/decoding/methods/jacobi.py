"""Jacobi decoding (Santilli et al. 2023): the model's last predictions of k - 1 tokens are guesses.

Each call reads the root and the guesses, a chain, and predicts the token behind each of them. A
guess is accepted, as always, if it equals the model's prediction behind accepted tokens. The
predictions behind the others, perhaps out of date, are the next call's guesses.

    text     The cat
    call 1   guesses  dog dog      the model says   sat in the        accepted: none; bonus: sat
    call 2   guesses  in  the      the model says   on  the mat       accepted: none; bonus: on
    call 3   guesses  the mat      the model says   the mat .         accepted: the mat; bonus: .

A guess is right only if the model says it too early, after wrong tokens. `Lookahead` makes more of
the same predictions. Its window remembers the last N - 1 calls instead of one: a column is an
n-gram, each of whose tokens was predicted after the token before. These n-grams are verified when
their first token comes up, later and elsewhere. Jacobi would be lookahead with N = 2, its window's
only row the guess.
"""

import jax.numpy as jnp
from jaxtyping import Array, Int

from fastdec import struct
from fastdec.decoding.methods.lookahead import guess_words
from fastdec.decoding.protocol import Draft, Drafter, Prefill, Step
from fastdec.decoding.sampling import Sampling, argmax, check_sampling
from fastdec.decoding.settings import Whole, size
from fastdec.decoding.strategy import LoopStrategy
from fastdec.decoding.topology import Topology
from fastdec.struct import Bound


@struct.pytree
class Jacobi(LoopStrategy):
  """Decoding with the model's predictions of the last call as guesses (`methods.jacobi`).

  It needs no training, and is lossless: without `sampling` it is greedy decoding, with it the
  law of `Sample`.

  Args:
    k: block size, at least 2: k - 1 tokens are guessed.
    sampling: how tokens are drawn, for which `decode` needs a key; None: greedy decoding.
  """

  k: Whole = struct.static()
  sampling: Sampling | None = None

  def __post_init__(self) -> None:
    k = size('k', self.k, 2, 'a block size from 2, or decode by Greedy()')
    struct.assign(self, k=k, sampling=check_sampling(self.sampling))

  @property
  def drafter(self) -> Drafter:
    return JacobiDrafter(self.k)


@struct.pytree
class JacobiDrafter:
  """Drafter of the last predictions. Its state is the guesses of each row, k - 1 tokens."""

  nodes: int = struct.static()  # a chain, the root included

  def init(self, target: Bound, prefill: Prefill) -> Int[Array, 'b _']:
    return guess_words(target, prefill, self.nodes - 1)

  def propose(
    self, target: Bound, state: Int[Array, 'b _'], root: Int[Array, ' b'], keys: Array | None
  ) -> tuple[Draft, Int[Array, 'b _']]:
    return Draft(jnp.concatenate([root[:, None], state], axis=1), Topology.chain(self.nodes)), state

  def observe(self, target: Bound, state: Int[Array, 'b _'], step: Step) -> Int[Array, 'b _']:
    """Returns the predictions behind the bonus; the last one is repeated for missing ones."""
    place = step.count[:, None] + jnp.arange(self.nodes - 1, dtype=jnp.int32)[None]
    return jnp.take_along_axis(argmax(step.logits), jnp.minimum(place, self.nodes - 1), axis=1)
