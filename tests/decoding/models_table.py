"""All kinds of models in one table, as small as possible: tests of caches run on each of them.

They have no end tokens, so every row has max_len tokens. Their parameters are random and far from
neutral values, so that outputs vary. Text has six words, of which the first is suppressed, so the
law of a few tokens can be written down.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fastdec as fd
from fastdec.models.experts import ExpertsConfig
from fastdec.models.fconv import FConv, FConvConfig
from fastdec.models.image_transformer import ImageTransformer, ImageTransformerConfig
from fastdec.models.lm import LM, LMConfig
from fastdec.models.t5 import T5, T5Config
from fastdec.models.transformer import Transformer, TransformerConfig

WORDS = 6
TEXT = {'vocab_size': WORDS, 'eos_ids': (), 'suppressed_ids': (0,), 'dtype': 'float64'}
STACKS = {
  'd_model': 8, 'd_ff': 12, 'heads': 2, 'encoder_layers': 1, 'decoder_layers': 1, 'dropout': 0.0,
}  # fmt: skip
LAYERS = ((8, 3), (6, 4))  # of convolutions: (channels, width)
TRANSFORMER = Transformer(
  TransformerConfig(**TEXT, **STACKS, is_tied=False, embedding_norm=True, first_position=2)
)
FCONV = FConv(FConvConfig(
  **TEXT, d_embed=8, d_out=8, encoder_layers=((8, 3),), decoder_layers=LAYERS, max_positions=64,
))  # fmt: skip
SMALL = {'d_model': 8, 'd_ff': 12, 'layers': 2, 'heads': 1}
DYNAMIC = {'rope': 'dynamic', 'rope_factor': 2.0, 'rope_original': 4}
LONGROPE = {
  'rope': 'longrope', 'rope_original': 6, 'rope_scale': 1.2, 'rope_share': 0.5,
  'rope_short': (1.0, 1.5), 'rope_long': (2.0, 7.0),
}  # fmt: skip
OPTIONS = {
  'tied': False, 'norms': 'both', 'joined_qk_norm': True, 'embedding_scale': 2.0,
  'residual_scale': 1.5,
  'score_scale': 0.4, 'logit_scale': 2.0, 'score_cap': 3.0, 'logit_cap': 9.0, 'unrotated': (0,),
  'windows': (0, 3), 'local_theta': 50.0,
}  # fmt: skip
EXPERTS = ExpertsConfig(count=4, chosen=2, d_ff=6, bias=True, limit=2.0, dense=(1,))
MODELS = {
  'lm with windows': LM(
    LMConfig(**TEXT, d_model=8, d_ff=12, layers=2, heads=2, key_heads=1, windows=(0, 3))
  ),
  # Texts are longer than the length at which these two change their rotations.
  'lm of dynamic rope': LM(LMConfig(**TEXT, **SMALL, **DYNAMIC)),
  'lm of many options': LM(LMConfig(**TEXT, **SMALL, **OPTIONS)),
  'lm of longrope': LM(LMConfig(**TEXT, **SMALL, **LONGROPE)),
  'lm of experts': LM(LMConfig(**TEXT, **SMALL, experts=EXPERTS, sinks=True)),
  't5': T5(T5Config(**TEXT, **STACKS, is_tied=False, d_kv=4, buckets=8, max_distance=5)),
  'transformer': TRANSFORMER,
  'fconv': FCONV,
  'image': ImageTransformer(
    ImageTransformerConfig(**STACKS, source_size=1, size=3, block_length=4, dtype='float64')
  ),
  'image that forecasts': ImageTransformer(
    ImageTransformerConfig(
      **{**STACKS, 'd_model': 16},
      source_size=1,
      size=3,
      block_length=9,
      grid=True,
      forecast=True,
      dtype='float64',
    )
  ),
  'ensemble': fd.Ensemble((TRANSFORMER, FCONV)),
}

NOISE = {
  'lm of many options': 0.12,
  'image that forecasts': 0.015,  # a forecast is a sum of large numbers
}

_rng = np.random.default_rng(0)
SOURCES = _rng.integers(1, WORDS, (3, 5)).astype(np.int32)
SOURCES[1, 3:] = 0  # padding
LENGTHS = np.array([5, 3, 1], np.int32)  # of prompts, where the model has no source
PICTURES = _rng.integers(0, 256, (3, 1, 1, 3)).astype(np.uint8)


@dataclasses.dataclass(frozen=True)
class Case:
  """A model with parameters, and three rows to decode."""

  model: Any
  params: Any
  noisy: Any  # parameters of a draft, which often agrees

  def decode(self, strategy: Any, max_len: int, key: Any = None) -> Any:
    """The three rows, decoded."""
    return fd.decode(
      self.model, self.params, **self.rows(), strategy=strategy, max_len=max_len, key=key
    )

  def rows(self) -> dict[str, Any]:
    """The inputs of `fd.decode`."""
    if self.model.fixed_length is not None:
      return {'inputs': PICTURES}
    return (
      {'inputs': SOURCES}
      if self.model.start_id is not None
      else {'inputs': SOURCES, 'prompt_lengths': LENGTHS}
    )

  def greedy_after(self, known: list[tuple[int, list[int]]], count: int) -> list[list[int]]:
    """The noisy parameters' greedy text after all known tokens, which it reads as a prompt.

    Args:
      known: (row, the tokens that it has emitted) for each continuation.
      count: number of tokens of each continuation.
    """
    rows = np.array([row for row, _ in known])
    begun = [self.rows().get('prompt_lengths', np.zeros(3, int))[row] for row in rows]
    lengths = np.array([n + len(tokens) for n, (_, tokens) in zip(begun, known, strict=True)])
    text = np.ones((len(known), lengths.max()), np.int32)
    for i, (row, tokens) in enumerate(known):
      text[i, : begun[i]] = SOURCES[row, : begun[i]]
      text[i, begun[i] : lengths[i]] = tokens
    inputs = {'inputs': text}
    if self.model.start_id is not None:
      inputs = {'inputs': self.rows()['inputs'][rows], 'prefix': text}
    out = fd.decode(
      self.model, self.noisy, **inputs, prompt_lengths=lengths, strategy=fd.Greedy(), max_len=count
    )
    return np.asarray(out.tokens).tolist()


@functools.cache
def made(name: str) -> Case:
  """A case of the table. Call it in float64."""
  model = MODELS[name]
  members = model.models if isinstance(model, fd.Ensemble) else (model,)
  params = tuple(random_params(member, seed) for seed, member in enumerate(members))
  params = params if isinstance(model, fd.Ensemble) else params[0]
  return Case(model, params, _noisy(params, NOISE.get(name, 0.07)))


def random_params(model: Any, seed: int) -> Any:
  """Parameters far from neutral values. Call it in float64."""
  rng = np.random.default_rng(seed)
  fresh = model.init(jax.random.key(seed))
  # in NumPy, as each operation of JAX would be compiled for each shape
  return jax.tree.map(
    lambda x: jnp.asarray(3 * np.asarray(x, float) + rng.normal(scale=0.1, size=x.shape)), fresh
  )


def _noisy(params: Any, scale: float) -> Any:
  rng = np.random.default_rng(9)
  return jax.tree.map(
    lambda x: jnp.asarray(np.asarray(x) + rng.normal(scale=scale, size=x.shape)), params
  )
