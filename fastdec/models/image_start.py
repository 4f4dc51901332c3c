"""Initial parameters of an Image Transformer, which hold what it would learn last.

Near intensities are alike. Self-attention looks at neighbours, cross-attention at the source pixel
in its own place. Waves in the first half of the width tell an intensity, waves in the second half a
position.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

INTENSITIES = 256
GAIN = 4.0  # of the first queries: most weight is on the nearest pixels
SHARP = 24.0  # as GAIN, for self-attention that starts at neighbours: it looks at single tokens
# The most informative tokens, as rows down and intensities along: the pixel before, the one above,
# the channels between, ... (three intensities are a pixel)
NEIGHBOURS = (
  *((0, -3), (-1, 0), (0, -2), (0, -4)),
  *((-1, -1), (-1, 3), (-1, -3), (0, -6)),
  *((-1, 1), (0, -5), (-1, -2), (-1, 2)),
)
LONGEST = 100.0  # wavelength of the position signal, over 2 pi: an image is no larger


def ordered_intensities(d: int, reserved: int = 0) -> Float[Array, 'v d']:
  """Returns the start of embeddings and output: sines and cosines of the intensity, of unit norm.

  Their periods are 8 to 1,024. They take the first half of the width, less `reserved`; the position
  signal has the other half. So near intensities are alike from the first step.
  """
  values = as_waves(np.arange(INTENSITIES, dtype=np.float32), (d // 2 - reserved) // 2)
  return jnp.pad(values, ((0, 0), (0, d - values.shape[-1])))


def as_waves(intensities: Float[Array | np.ndarray, '*b'], waves: int) -> Float[Array, '*b w']:
  """Returns `waves` sines, then `waves` cosines, of unit norm; intensities may be fractions."""
  periods = (
    np.geomspace(8, 1024, waves).astype(intensities.dtype).reshape(*(1,) * intensities.ndim, waves)
  )
  angles = 2 * np.pi * intensities[..., None] / periods
  return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1) * waves**-0.5


def looking_across(h: int, d: int) -> dict[str, Any]:
  """Returns the start of cross-attention: every head compares positions.

  So a token looks at the source pixel in its own place, and adds that pixel's state unchanged. A
  model that must learn where to look learns it last.
  """
  p = d // h
  identity = np.eye(d, dtype=np.float32)
  waves = _waves(d, p)
  places = np.stack([np.pad(identity[waves], ((0, p - len(waves)), (0, 0)))] * h)  # [h, p, d]
  return {
    'q': {'kernel': jnp.asarray(GAIN * places)},
    'kv': {'kernel': jnp.asarray(np.stack([places, identity.reshape(h, p, d)]))},
    'out': {'kernel': jnp.asarray(identity)},
  }


def looking_back(layer: int, h: int, d: int) -> Float[np.ndarray, '2 h p d']:
  """Returns the start of self-attention, queries and keys: each head looks at its own neighbour.

  It finds it (`NEIGHBOURS`) by turning the position signal. Values and outputs are learnt.
  """
  places, identity = _waves(d, d // h), np.eye(d, dtype=np.float32)
  each = len(places) // 4
  scales = np.exp(-np.arange(d // 8) * np.log(LONGEST) / max(d // 8 - 1, 1))[:each]
  queries, keys = np.zeros((h, d // h, d), np.float32), np.zeros((h, d // h, d), np.float32)
  keys[:, : len(places)] = identity[places]
  for head in range(h):
    down, along = NEIGHBOURS[(layer * h + head) % len(NEIGHBOURS)]
    for axis, offset in enumerate((down, along + 1)):  # the input in a place is the token before it
      turn, at = scales * offset, slice(2 * each * axis, 2 * each * (axis + 1))
      sine, cosine = np.split(identity[places[at]], 2)
      cos, sin = np.cos(turn)[:, None], np.sin(turn)[:, None]
      queries[head, at] = SHARP * np.concatenate(
        [cos * sine + sin * cosine, cos * cosine - sin * sine]
      )
  return np.stack([queries, keys])


def _waves(d: int, p: int) -> Int[np.ndarray, ' w']:
  """Indices of the position signal's shortest waves, at most p of them.

  They are sines and cosines of the row, then of the column."""
  each = np.arange(max(1, min(p // 4, d // 8)))
  return np.concatenate([d // 2 + part * (d // 8) + each for part in range(4)])
