"""Small random models of every kind, lively enough to write varied texts, with what they read."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.gpu.settings import Kind, Sizes
from fastdec.models.fconv import FConv, FConvConfig
from fastdec.models.image_transformer import ImageTransformer, ImageTransformerConfig
from fastdec.models.lm import LM, LMConfig
from fastdec.models.t5 import T5, T5Config
from fastdec.models.transformer import Transformer, TransformerConfig

HEADS = 2
WINDOW = 8  # positions that the first layer of the language model sees, so that its cache is a ring
# on what `init` draws, for varied texts; convolutions, which have no norm, would explode
GAIN = 3.0
NOISE = 0.1  # with which no parameter stays at a neutral value


@dataclasses.dataclass(frozen=True)
class Case:
  """A model, its float32 parameters, and the inputs of `fd.decode`."""

  model: Any
  params: Any
  inputs: np.ndarray


def case_of(kind: Kind, sizes: Sizes, seed: int) -> Case:
  """The random model of a kind; it never ends a text."""
  model = model_of(kind, sizes)
  rng = np.random.default_rng(seed)
  if kind == 'image':
    inputs = rng.integers(0, 256, (sizes.rows, 1, 1, 3)).astype(np.uint8)
  else:
    inputs = rng.integers(2, sizes.words, (sizes.rows, sizes.tokens), np.int32)
  fresh = jax.jit(model.init)(jax.random.key(seed))
  return Case(model, lively(fresh, seed, 1.0 if kind == 'fconv' else GAIN), inputs)


def model_of(kind: Kind, sizes: Sizes) -> Any:
  """The model of a kind."""
  d, layers = sizes.width, sizes.layers
  text: dict[str, Any] = {'vocab_size': sizes.words, 'eos_ids': ()}
  stacks: dict[str, Any] = {
    'd_model': d,
    'd_ff': 2 * d,
    'heads': HEADS,
    'encoder_layers': layers,
    'decoder_layers': layers,
  }
  convolutions = ((d, 3),) * layers
  if kind == 'lm':
    windows = (WINDOW, *(0,) * (layers - 1))
    return LM(
      LMConfig(
        **text, d_model=d, d_ff=2 * d, layers=layers, heads=HEADS, key_heads=1, windows=windows
      )
    )
  if kind == 'transformer':
    return Transformer(TransformerConfig(**text, **stacks))
  if kind == 'fconv':
    sizes_of: dict[str, Any] = {'encoder_layers': convolutions, 'decoder_layers': convolutions}
    return FConv(FConvConfig(**text, d_embed=d, d_out=d, **sizes_of))
  if kind == 't5':
    return T5(T5Config(**text, **stacks, d_kv=d // HEADS))
  return ImageTransformer(ImageTransformerConfig(**stacks, source_size=1, size=4, block_length=16))


def lively(params: Any, seed: int, gain: float, noise: float = NOISE) -> Any:
  """Parameters scaled up, with noise on them: texts of a fresh tied model repeat one token."""
  rng = np.random.default_rng(seed)

  def one(x: Any) -> Any:
    return jnp.asarray(gain * np.asarray(x) + rng.normal(scale=noise, size=x.shape), jnp.float32)

  return jax.tree.map(one, params)
