"""Sizes and options of the decoder-only Transformer, `models/lm.py`, by which families differ."""

import dataclasses
import functools
import operator
from collections.abc import Callable

import flax.linen as nn
from jaxtyping import Array, Int

from fastdec.cache.kv import KVCache, LayerKV
from fastdec.cache.ring import LayerRing
from fastdec.errors import UserError
from fastdec.fields import check_choices, check_shares, check_sizes
from fastdec.models.api import Capacity, check_special_ids
from fastdec.models.experts import ExpertsConfig
from fastdec.models.rotary import ROPES, Rope, Turns

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
  'silu': nn.silu,
  'gelu': functools.partial(nn.gelu, approximate=False),
  'gelu_tanh': functools.partial(nn.gelu, approximate=True),
  'relu': nn.relu,
}
NORMS = ('before', 'after', 'both')
DTYPES = ('float32', 'bfloat16', 'float16', 'float64')
POSITIVE = (
  'rope_theta', 'rope_factor', 'rope_low', 'rope_high', 'rope_original', 'rope_share', 'rope_scale',
  'embedding_scale', 'residual_scale', 'score_scale', 'logit_scale', 'score_cap', 'logit_cap',
  'local_theta',
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class LMConfig:
  """Sizes and options; by default it is a small Llama."""

  vocab_size: int = 32000
  d_model: int = 512
  d_ff: int = 1536
  layers: int = 6
  heads: int = 8
  # each is shared by heads / key_heads query heads; None: one for every query head
  key_heads: int | None = None
  head_width: int | None = None  # None: d_model / heads
  activation: str = 'silu'
  norm_epsilon: float = 1e-6
  # how wavelengths are stretched for longer contexts, see `models/rotary.py`; 'default': not
  rope: str = 'default'
  rope_theta: float = 1e4
  rope_factor: float = 1.0  # by which wavelengths are stretched
  # llama3, yarn: waves with fewer than `rope_low` turns in `rope_original` positions are stretched,
  # waves with more than `rope_high` are not, and waves between them are stretched in part
  rope_low: float = 1.0
  rope_high: float = 4.0
  rope_original: int = 8192
  rope_truncate: bool = True  # yarn: both limits are moved to whole pairs
  rope_share: float = 1.0  # the share of a head's entries, the first ones, that are rotated
  rope_scale: float = 1.0  # of rotated queries and keys
  # longrope: the stretch of each pair in texts up to `rope_original` tokens, and in longer ones
  rope_short: tuple[float, ...] = ()
  rope_long: tuple[float, ...] = ()
  qkv_bias: bool = False
  out_bias: bool = False
  mlp_bias: bool = False
  norms: str = 'before'  # RMSNorms 'before' each sublayer, 'after' it (OLMo 2), or 'both' (Gemma)
  qk_norm: bool = False  # RMSNorm on each query and key (Qwen3)
  joined_qk_norm: bool = False  # RMSNorm on the queries and keys of all heads at once (OLMo 2)
  sinks: bool = False  # each head has a learned score for attending to nothing (gpt-oss)
  experts: ExpertsConfig | None = None  # instead of the MLPs
  embedding_scale: float = 1.0
  residual_scale: float = 1.0  # of what each sublayer adds
  score_scale: float | None = None  # of queries times keys; None: 1 / sqrt(width)
  logit_scale: float = 1.0
  # bounds of scores and logits: c * tanh(x / c)
  score_cap: float | None = None
  logit_cap: float | None = None
  unrotated: tuple[int, ...] = ()  # layers without rotary positions (SmolLM3)
  local_theta: float | None = None  # `rope_theta` of layers with a window, unstretched (Gemma 3)
  # number of positions that each layer sees, the token's own included; 0, or (): all before it
  windows: tuple[int, ...] = ()
  tied: bool = True  # logits by the embedding: `init` makes no output matrix
  max_positions: int | None = None
  bos_id: int = 0  # training predicts the first token of a text from it
  eos_ids: tuple[int, ...] = (1,)
  pad_id: int = 0
  suppressed_ids: tuple[int, ...] = ()
  dropout: float = 0.0  # after each sublayer and on the embeddings
  dtype: str = 'float32'  # of the computation; parameters are float32 until cast

  def __post_init__(self) -> None:
    check_choices(self, activation=ACTIVATIONS, rope=ROPES, norms=NORMS, dtype=DTYPES)
    check_sizes(self, 'vocab_size', 'd_model', 'd_ff', 'layers', 'heads', 'kv_heads', 'width')
    check_special_ids(self)
    for name in POSITIVE:
      if getattr(self, name) is not None and not getattr(self, name) > 0:
        raise UserError(f'{name}={getattr(self, name)} is not possible: give a number above 0')
    if not 0 <= self.norm_epsilon < 1:
      raise UserError(f'norm_epsilon={self.norm_epsilon} is not possible: give a number below 1')
    if min(self.windows, default=0) < 0:
      raise UserError(f'windows={self.windows} are not possible: give 0 or more positions')
    check_shares(self, 'dropout')
    if self.head_width is None and self.d_model % self.heads:
      raise UserError(
        f'd_model={self.d_model} is not divisible by heads={self.heads}: give head_width'
      )
    if self.heads % self.kv_heads:
      raise UserError(f'heads={self.heads} is not divisible by key_heads={self.kv_heads}')
    self._check_rope()
    if self.windows and len(self.windows) != self.layers:
      raise UserError(
        f'windows={self.windows} must be one number for each of the {self.layers}'
        ' layers, or none at all'
      )

  def _check_rope(self) -> None:
    rotated = int(self.width * self.rope_share)
    if rotated % 2:
      raise UserError(
        f'{rotated} entries of a head cannot be rotated in pairs: give an even head_width'
      )
    if (self.rope == 'dynamic' and rotated < 4) or (self.rope == 'yarn' and self.rope_theta <= 1):
      raise UserError(
        f'rope={self.rope!r} is not possible with {rotated} rotated entries of a head and'
        f' rope_theta={self.rope_theta}: dynamic needs 4 entries, yarn a rope_theta above 1'
      )
    if self.rope == 'llama3' and self.rope_low >= self.rope_high:
      raise UserError(
        f'rope_low={self.rope_low} and rope_high={self.rope_high} are not possible: rope_low must'
        ' be the smaller one'
      )
    if self.rope == 'longrope':
      for name in ('rope_short', 'rope_long'):
        factors = getattr(self, name)
        if len(factors) != rotated // 2 or not min(factors) > 0:
          raise UserError(
            f'{name}={factors} is not possible: give a number above 0 for each of the'
            f' {rotated // 2} pairs'
          )

  @property
  def kv_heads(self) -> int:
    return self.heads if self.key_heads is None else self.key_heads

  @property
  def width(self) -> int:
    return self.d_model // self.heads if self.head_width is None else self.head_width

  @property
  def layer_windows(self) -> tuple[int, ...]:
    """The window of each layer; 0: it sees everything."""
    return self.windows or (0,) * self.layers

  @property
  def sparse(self) -> tuple[bool, ...]:
    """True for each layer with experts."""
    if self.experts is None:
      return (False,) * self.layers
    return tuple(i not in self.experts.dense for i in range(self.layers))

  def empty_cache(self, rows: int, slots: int | Capacity, copies: int = 1) -> KVCache:
    """Returns an empty cache of all layers, `copies` times.

    A layer with a window is a ring, if that saves slots. The ring holds the window before a call's
    first node, the nodes, and the tokens that may be taken back. While the text is short the ring
    is short too, and grows before any slot is overwritten. If `slots` is a plain number, calls may
    have any width, so no layer is a ring.
    """
    total, layers = operator.index(slots), []
    for window in self.layer_windows * copies:
      kind, size = LayerKV, total
      if window and isinstance(slots, Capacity):
        ring = window - 1 + slots.nodes + slots.back
        if ring < slots.last_total:
          kind, size = LayerRing, min(ring, total)
      layers.append(kind.empty(rows, self.kv_heads, size, self.width, self.dtype))
    return KVCache.of(tuple(layers), rows)

  @property
  def rotary(self) -> Rope:
    return Rope(
      self.rope, self.rope_theta, self.rope_factor, self.rope_low, self.rope_high,
      self.rope_original, self.rope_truncate, self.rope_share, self.rope_scale,
      self.rope_short, self.rope_long,
    )  # fmt: skip

  def turns(
    self, positions: Int[Array, 'b n'], text: Int[Array, 'b #n'] | None = None
  ) -> tuple[Turns | None, ...]:
    """Returns the rotations of each layer, None for a layer without; see `Rope.angles`."""
    whole = self.rotary.turns(positions, self.width, text)
    local = whole
    if self.local_theta is not None:
      local = Rope('default', self.local_theta).turns(positions, self.width)
    turns = []
    for i, window in enumerate(self.layer_windows):
      if i in self.unrotated:
        turns.append(None)
      else:
        turns.append(local if window else whole)
    return tuple(turns)
