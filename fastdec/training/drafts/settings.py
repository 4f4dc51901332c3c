"""Settings of draft networks, from which a training begins.

Settings have `depth` (guesses of a chain) and `begin`, which returns the network with its first
parameters. `EagleConfig` and `BlockConfig` describe a network for any base; `TrainedDraft` names a
folder with a finished one.
"""

import dataclasses
import math
import pathlib
from typing import Annotated, Any, Literal

import numpy as np
from jaxtyping import Array, Int

from fastdec.errors import UserError
from fastdec.fields import Between, Count, Layers, Zero
from fastdec.folders.drafts import draft_content, load_draft
from fastdec.heads.block import BlockNetwork
from fastdec.heads.correlator import CorrelatorConfig
from fastdec.heads.draft import DraftNetwork, check_target
from fastdec.heads.eagle import EagleNetwork
from fastdec.heads.shortlist import most_frequent
from fastdec.models.api import Params
from fastdec.models.stacks import StackConfig
from fastdec.models.taps import check_taps
from fastdec.struct import Bound
from fastdec.training.drafts.start import INITS, layers_like, start_params
from fastdec.training.stage import NEWER

Edge = Literal['none', 'markov', 'rnn', 'selector', 'correlator']
CHOICES = {'selector': 16, 'correlator': 8}  # candidates, if no number is given
Several = Annotated[int, Between(2, 999)]  # tokens of a block
Words = Int[np.ndarray, ' n']  # tokens that the base has written


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworkConfig:
  """A draft network: what both kinds have (fastdec/heads/draft.py)."""

  layers: Layers = 1  # of the base's kind and sizes
  taps: tuple[int, ...] = ()  # layers of the base whose states are read; (): its last state
  words: Zero = 0  # of a draft vocabulary, the most frequent ones of the training text; 0: all
  dropout: Annotated[float, Between(0, 0.99)] = 0.0
  # 'target': the layers begin as the base's last ones; or 'fresh'; or the folder of a trained draft
  init: str = 'target'
  entry: str = 'joined'  # eagle: or 'beside' (EAGLE-3); block: or 'masks' (DFlash)
  published: bool = False  # all else as the authors of this entry arrange it

  def __post_init__(self) -> None:
    if self.begins_trained and not (self.init and pathlib.Path(self.init).is_dir()):
      raise UserError(
        f'config.draft.init={self.init!r} is not a folder: give one with a trained draft, or'
        f' {" or ".join(INITS)}'
      )

  @property
  def begins_trained(self) -> bool:
    """True if `init` names a trained draft."""
    return self.init not in INITS

  @property
  def key(self) -> dict[str, Any]:
    """Settings that count in a stage's name, as in `stage.plain`; a trained draft counts by its
    content."""
    settings: dict[str, Any] = {'is': type(self).__name__}
    for field in dataclasses.fields(self):
      if field.metadata != NEWER or getattr(self, field.name) != field.default:
        settings[field.name] = getattr(self, field.name)
    if self.begins_trained:
      settings['init'] = draft_content(self.init)
    return settings

  def network(self, model: Any, written: Words | None = None) -> DraftNetwork:
    """Returns the network for a base.

    Args:
      model: the base.
      written: tokens of the training text; None: only the sizes count.

    Raises:
      UserError: the base lacks these layers or words, or is of a kind that has no drafts.
    """
    raise NotImplementedError

  def begin(self, target: Bound, key: Array, written: Words) -> Bound:
    """Returns the network with the parameters that its training begins with.

    Args:
      target: the base and its parameters.
      key: draws fresh parameters.
      written: tokens of the training text, which has the words of the draft.

    Raises:
      UserError: as `network`; or `init` names a draft of other settings, or of other words.
    """
    module, ids = self.network(target.module, written), None
    if module.words is not None:
      ids = most_frequent(target.module, written, module.words)
      module = dataclasses.replace(module, words=len(ids))  # a text may have fewer words
    if not self.begins_trained:
      return Bound(module, start_params(module, target, key, self.init, ids))

    stored, params = read_trained(self.init)
    before, now = _shape_settings(stored), _shape_settings(module)
    changed = ', '.join(name for name in now if before.get(name) != now[name])
    if before != now:
      raise UserError(
        f'config.draft differs from the draft in {self.init} ({changed}): give the same settings'
      )
    if ids is not None and not np.array_equal(params['ids'], ids):
      raise UserError(
        f'{self.init} drafts words that are not the most frequent ones of this text: give the text'
        ' that it was trained on'
      )
    return Bound(module, params)

  def _sizes(self, model: Any) -> dict[str, Any]:
    """Returns the sizes of the network that both kinds have."""
    check_taps(self.taps, model.layers)
    if self.words > model.vocab_size:
      raise UserError(
        f'config.draft.words={self.words} is not possible: the base has {model.vocab_size} words'
      )
    layers: Any = layers_like(model, self.layers)
    dropout = {'dropout': self.dropout}
    if isinstance(layers, StackConfig):
      dropout |= {'attention_dropout': 0.0, 'activation_dropout': 0.0}
    sizes: dict[str, Any] = {'layers': dataclasses.replace(layers, **dropout), 'entry': self.entry}
    sizes |= {'vocab_size': model.vocab_size, 'd_target': model.d_model}
    sizes['words'] = self.words or None
    if self.taps:
      sizes |= {'taps': self.taps, 'fuses': True, 'norms_taps': not self.published}
    return sizes


@dataclasses.dataclass(frozen=True, kw_only=True)
class EagleConfig(NetworkConfig):
  """A layer that reads the base's hidden state and the next token, and then its own."""

  guesses: Annotated[int, Between(1, 999)] = 7  # for which it is evaluated and calibrated

  @property
  def depth(self) -> int:
    """Guesses of a chain."""
    return self.guesses

  def network(self, model: Any, written: Words | None = None) -> EagleNetwork:
    """Returns the network for a base; see `NetworkConfig.network`."""
    return EagleNetwork(recycles_normed=not self.published, **self._sizes(model))


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockConfig(NetworkConfig):
  """The rows of a block in one pass, and a bias from the token before each."""

  k: Several = 8  # the root and 7 guesses
  # rows see no later ones (JetSpec)
  causal: bool = dataclasses.field(default=False, metadata=NEWER)
  # kernel of convolutions over the rows (DFlash 2: 2); 0: none
  conv: Zero = dataclasses.field(default=0, metadata=NEWER)
  edge: Edge = dataclasses.field(default='markov', metadata=NEWER)
  markov: Zero = 64  # rank of the edge's vectors; 0: none
  markov_kind: Literal['vanilla', 'gated', 'rnn'] = 'vanilla'
  candidates: Zero = 0  # words of each row that the bias may reorder in decoding; 0: all

  @property
  def depth(self) -> int:
    """Guesses of a chain."""
    return self.k - 1

  def network(self, model: Any, written: Words | None = None) -> BlockNetwork:
    """Returns the network for a base; see `NetworkConfig.network`."""
    sizes = self._sizes(model)
    if self.entry == 'masks':
      # The mask is a word that the text lacks.
      sizes |= {'unknown_id': model.pad_id, 'drops_first': self.published}
      if written is not None:
        unread = np.flatnonzero(np.bincount(written, minlength=model.vocab_size) == 0)
        sizes['unknown_id'] = int(unread[-1]) if len(unread) else model.pad_id
    if self.published:
      sizes['layers'] = dataclasses.replace(sizes['layers'], qk_norm=True)
    sizes |= {'markov': self.markov, 'markov_kind': self.markov_kind}
    sizes |= {'candidates': self.candidates or None, 'causal': 'all' if self.causal else 'none'}
    if self.conv:
      sizes |= {'conv': self.conv, 'conv_group': math.gcd(model.d_model, 16)}
    if self.edge == 'none':
      sizes['markov'] = 0
    elif self.edge != 'markov':  # other sizes are about those of their papers
      sizes['edge'] = self.edge
    if self.edge == 'rnn':
      sizes['gru'] = 4 * self.markov
    if self.edge in CHOICES:
      sizes['candidates'] = self.candidates or CHOICES[self.edge]
    if self.edge == 'correlator':
      d = model.d_model
      heads = math.gcd(d, 4)
      sizes['correlator'] = CorrelatorConfig(d, layers=2, heads=heads, d_ff=2 * d, scale=10.0)
    return BlockNetwork(k=self.k, **sizes)


@dataclasses.dataclass(frozen=True)
class TrainedDraft:
  """A finished draft that is trained further: same network, same words."""

  folder: str
  depth: Count  # guesses for which it is evaluated and calibrated

  @property
  def key(self) -> dict[str, Any]:
    """What counts in a stage's name."""
    return {'is': type(self).__name__, 'draft': draft_content(self.folder), 'depth': self.depth}

  def begin(self, target: Bound, key: Array, written: Words) -> Bound:
    """Returns the stored network; see `NetworkConfig.begin`."""
    draft = Bound(*read_trained(self.folder))
    check_target(draft, target.module)
    return draft


def read_trained(folder: str) -> tuple[DraftNetwork, Params]:
  """Reads a draft to train it further: its parameters are float32, without temperatures."""
  stored, _ = load_draft(folder)  # computes in the type that it was trained for
  _, params = load_draft(folder, dtype='float32')
  return stored, {name: x for name, x in params.items() if name != 'warmth'}


def _shape_settings(network: DraftNetwork) -> dict[str, Any]:
  """Returns the settings of a network that shape its parameters."""
  settings: dict[str, Any] = {'kind': type(network), 'layers': type(network.layers)}
  for part, module in (('', network), ('layers.', network.layers)):
    for field in dataclasses.fields(module):
      is_free = field.name in ('layers', 'dtype', 'candidates') or field.name.endswith('dropout')
      if not is_free:
        settings[part + field.name] = getattr(module, field.name)
  return settings
