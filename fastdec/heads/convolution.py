"""Convolutions over the rows of a block, around the sublayers of a draft's layers (DFlash 2).

A sublayer reads y_0 of its normed input x, and y_1 of its output enters the residual:

  y_s[t, c] = sum over o < kernel of (base[s, o, c] + (P x)[t, s, o, c // group]) z_s[t - o, c]

z_0 is x and z_1 the output; before the block's first row they are 0. At first y is z.
"""

from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float

from fastdec.models.layers import Dense


class Convolution(nn.Module):
  """Both convolutions of a sublayer; `rows` of a block are next to one another."""

  rows: int
  kernel: int
  group: int
  dtype: DTypeLike

  @nn.compact
  def __call__(
    self, x: Float[Array, 'b n d']
  ) -> tuple[Float[Array, 'b n d'], Callable[[Array], Array]]:
    """Returns y_0, and the function that makes y_1 of the sublayer's output."""
    d = x.shape[-1]

    def keep_rows(key: Array, shape: tuple[int, ...]) -> Array:
      return jnp.zeros(shape).at[:, 0].set(1.0)

    base = self.param('base', keep_rows, (2, self.kernel, d)).astype(self.dtype)
    features = (2, self.kernel, d // self.group)
    own = Dense(features, False, self.dtype, nn.initializers.zeros, name='taps')(x)
    factors = base[None, None] + jnp.repeat(own, self.group, axis=-1)

    def convolve(z: Float[Array, 'b n d'], side: int) -> Float[Array, 'b n d']:
      blocks = z.reshape(-1, self.rows, d)
      y = factors[:, :, side, 0] * z
      for o in range(1, min(self.kernel, self.rows)):
        earlier = jnp.pad(blocks[:, :-o], ((0, 0), (o, 0), (0, 0))).reshape(z.shape)
        y += factors[:, :, side, o] * earlier
      return y

    return convolve(x, 0), lambda output: convolve(output, 1)
