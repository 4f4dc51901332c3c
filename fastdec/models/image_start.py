"""The parameters that an Image Transformer starts with: what it would learn last is there from the
first step.

Intensities that are near are alike; self-attention looks at neighbours, cross-attention at the
source pixel in its own place. A position is told by waves in the second half of the width, an
intensity by waves in the first.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

INTENSITIES = 256
GAIN = 4.0  # of the first queries: most weight is on the nearest pixels
SHARP = 24.0  # as GAIN, of self-attention that starts at neighbours: it looks at single tokens
# Tokens that say most of the one to come, as rows down and intensities along: that of the pixel
# before, of the one above, the channels between, ... (three intensities are a pixel)
NEIGHBOURS = (
  *((0, -3), (-1, 0), (0, -2), (0, -4)),
  *((-1, -1), (-1, 3), (-1, -3), (0, -6)),
  *((-1, 1), (0, -5), (-1, -2), (-1, 2)),
)
LONGEST = 100.0  # wavelength of the position signal, over 2 pi: an image is no larger


def ordered_intensities(d: int, room: int = 0) -> Float[Array, 'v d']:
  """Where embeddings and output start: sines and cosines of the intensity, of unit norm, with
  periods of 8 to 1,024, in the first half of the width, but for some room; the position signal has
  the other half. Near intensities are alike from the first step.
  """
  values = as_waves(np.arange(INTENSITIES, dtype=np.float32), (d // 2 - room) // 2)
  return jnp.pad(values, ((0, 0), (0, d - values.shape[-1])))


def as_waves(intensities: Float[Array | np.ndarray, '*b'], waves: int) -> Float[Array, '*b w']:
  """Sines, then cosines, of intensities, which need not be whole numbers: `waves` of each, of unit
  norm together."""
  periods = (
    np.geomspace(8, 1024, waves).astype(intensities.dtype).reshape(*(1,) * intensities.ndim, waves)
  )
  angles = 2 * np.pi * intensities[..., None] / periods
  return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1) * waves**-0.5


def looking_across(h: int, d: int) -> dict[str, Any]:
  """Where cross-attention starts: every head compares positions, so that a token looks at the
  source's pixel in its own place, and adds what it finds there as it is. A model that must learn
  where to look learns it last.
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
  """Where self-attention starts: each head of each layer at a neighbour of its own (`NEIGHBOURS`),
  by turning the position signal. Queries and keys; what heads do with what they find is learnt.
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
  """Where the position signal has the shortest waves that p numbers have room for: sines and
  cosines of the row, then of the column."""
  each = np.arange(max(1, min(p // 4, d // 8)))
  return np.concatenate([d // 2 + part * (d // 8) + each for part in range(4)])
