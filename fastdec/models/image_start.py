"""Initial parameters of an Image Transformer, which already do what it would learn last.

Intensities that differ little have similar embeddings. Self-attention looks at neighbours,
cross-attention at the source pixel in the same place. Waves in the first half of the width encode
an intensity, waves in the second half a position.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

INTENSITIES = 256
GAIN = 4.0  # of the first queries: most weight is on the nearest pixels
SHARP = 24.0  # as GAIN, for self-attention that starts at neighbours: a head looks at one token
# The most informative tokens, as (rows down, intensities along): the pixel before, the pixel above,
# the channels between, ... (three intensities are a pixel)
NEIGHBOURS = (
  *((0, -3), (-1, 0), (0, -2), (0, -4)),
  *((-1, -1), (-1, 3), (-1, -3), (0, -6)),
  *((-1, 1), (0, -5), (-1, -2), (-1, 2)),
)
LONGEST = 100.0  # longest wavelength of the position signal, over 2 pi; images are smaller


def start_embedding(d: int, reserved: int = 0) -> Float[Array, 'v d']:
  """Returns the start of embeddings and output: sines and cosines of the intensity, of unit norm.

  Their periods are 8 to 1,024. They fill the first half of the width, except its last `reserved`
  entries; the position signal has the other half. So intensities that differ little are similar
  from the first step.
  """
  values = to_waves(np.arange(INTENSITIES, dtype=np.float32), (d // 2 - reserved) // 2)
  return jnp.pad(values, ((0, 0), (0, d - values.shape[-1])))


def to_waves(intensities: Float[Array | np.ndarray, '*b'], waves: int) -> Float[Array, '*b w']:
  """Returns `waves` sines, then `waves` cosines, of unit norm; intensities may be fractions."""
  periods = np.geomspace(8, 1024, waves).astype(intensities.dtype)
  periods = periods.reshape(*(1,) * intensities.ndim, waves)
  angles = 2 * np.pi * intensities[..., None] / periods
  sines_cosines = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)
  return sines_cosines * waves**-0.5


def start_cross_attention(h: int, d: int) -> dict[str, Any]:
  """Returns the start of cross-attention, in which every head compares positions.

  So a token looks at the source pixel in its own place, and adds that pixel's state unchanged. A
  model that must learn where to look learns it last.
  """
  p = d // h
  identity = np.eye(d, dtype=np.float32)
  waves = _choose_waves(d, p)
  places = np.stack([np.pad(identity[waves], ((0, p - len(waves)), (0, 0)))] * h)  # [h, p, d]
  return {
    'q': {'kernel': jnp.asarray(GAIN * places)},
    'kv': {'kernel': jnp.asarray(np.stack([places, identity.reshape(h, p, d)]))},
    'out': {'kernel': jnp.asarray(identity)},
  }


def start_self_attention(layer: int, h: int, d: int) -> Float[np.ndarray, '2 h p d']:
  """Returns the start of self-attention's queries and keys: each head looks at one neighbour.

  Its query is the position signal, turned so that it matches the neighbour's (`NEIGHBOURS`). Values
  and outputs are learnt.
  """
  # Keys are the position signal itself.
  waves, identity = _choose_waves(d, d // h), np.eye(d, dtype=np.float32)
  each = len(waves) // 4
  scales = np.exp(-np.arange(d // 8) * np.log(LONGEST) / max(d // 8 - 1, 1))[:each]
  queries, keys = np.zeros((h, d // h, d), np.float32), np.zeros((h, d // h, d), np.float32)
  keys[:, : len(waves)] = identity[waves]

  # Queries turn it by the offset of the head's neighbour, along the rows and along the columns. The
  # input in a place is the token before it, hence along + 1.
  for head in range(h):
    down, along = NEIGHBOURS[(layer * h + head) % len(NEIGHBOURS)]
    for axis, offset in enumerate((down, along + 1)):
      turn, at = scales * offset, slice(2 * each * axis, 2 * each * (axis + 1))
      sine, cosine = np.split(identity[waves[at]], 2)
      cos, sin = np.cos(turn)[:, None], np.sin(turn)[:, None]
      turned = np.concatenate([cos * sine + sin * cosine, cos * cosine - sin * sine])
      queries[head, at] = SHARP * turned
  return np.stack([queries, keys])


def _choose_waves(d: int, p: int) -> Int[np.ndarray, ' w']:
  """Returns the indices of the shortest waves of the position signal, at most p of them.

  They are sines and cosines of the row, then of the column."""
  each = np.arange(max(1, min(p // 4, d // 8)))
  parts = []
  for part in range(4):
    parts.append(d // 2 + part * (d // 8) + each)
  return np.concatenate(parts)
