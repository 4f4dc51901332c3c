"""Jacobi decoding (Santilli et al. 2023): the model's last predictions of k - 1 tokens are guesses.

Each call reads the root and a chain of guesses, and predicts the token after each of them. A guess
is accepted, as always, if it equals the model's prediction after accepted tokens. The predictions
after the other guesses may be out of date; they are the next call's guesses.

    text     The cat
    call 1   guesses  dog dog      the model says   sat in the        accepted: none; bonus: sat
    call 2   guesses  in  the      the model says   on  the mat       accepted: none; bonus: on
    call 3   guesses  the mat      the model says   the mat .         accepted: the mat; bonus: .

A guess is right only if the model predicts it early, after wrong tokens. `Lookahead` gets more from
the same predictions. Its window remembers the last N - 1 calls instead of one. A column of it is an
n-gram, in which each token was predicted after the token before. These n-grams are verified when
their first token comes up later, at any place. Jacobi would be lookahead with N = 2, where the
window has the guess as its only row.
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

  It needs no training and is lossless: the output is that of greedy decoding or, with `sampling`,
  has the distribution of `Sample`.

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
    # The predictions after the bonus are the guesses. The last one fills the places without one.
    place = step.count[:, None] + jnp.arange(self.nodes - 1, dtype=jnp.int32)[None]
    return jnp.take_along_axis(argmax(step.logits), jnp.minimum(place, self.nodes - 1), axis=1)
