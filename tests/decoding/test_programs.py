"""What is compiled: how large a program is, and how many there are."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec.decoding.decode import _decode
from fastdec.decoding.inputs import checked
from fastdec.models.api import Nodes, causal
from fastdec.models.attention import local_mask, node_mask
from fastdec.models.lm import LM, LMConfig

TINY = LM(
  LMConfig(vocab_size=17, d_model=8, d_ff=8, layers=1, heads=2, windows=(0,), norm_epsilon=1e-5, max_positions=9000)
)


def test_a_long_prompt_s_mask_is_not_in_the_program():
  """8,192 x 8,192 entries would be 64 MiB of constant, and twice as much text."""
  params = jax.eval_shape(TINY.init, jax.random.key(0))
  max_len, prompt, _ = checked(TINY, np.full((1, 8192), 2), None, None, 4, None)
  lowered = _decode.lower(TINY, fd.Greedy(), params, prompt, None, max_len)
  assert len(lowered.as_text()) < 2**20


@pytest.mark.parametrize('slots', [9, 12])
def test_a_chain_s_mask_is_compared_as_it_would_be_stored(slots):
  chain, length = causal(5), jnp.array([0, 3, 4], jnp.int32)
  stored = Nodes(chain.parents, chain.depths, np.tri(5, dtype=bool))
  assert chain.is_chain and not stored.is_chain
  np.testing.assert_array_equal(chain.mask, stored.mask)
  np.testing.assert_array_equal(node_mask(chain, length, slots), node_mask(stored, length, slots))
  np.testing.assert_array_equal(local_mask(chain, length, slots, 2), local_mask(stored, length, slots, 2))
