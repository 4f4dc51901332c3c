"""Whether every exact strategy writes what greedy decoding writes, token for token, on random
models in float32."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax

import fastdec as fd
from experiments.gpu.models import Case, case_of, lively
from experiments.gpu.page import RandomPage, hash_of
from experiments.lab.cells import Cell
from experiments.lab.page import Group
from experiments.lab.report import Column, Drawn, Table
from fastdec.decoding.protocol import Decoded
from fastdec.decoding.strategy import Strategy
from fastdec.evaluation.agreement import check_partings, partings
from fastdec.heads.block import BlockNetwork
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.heads.eagle import EagleNetwork
from fastdec.heads.medusa import MedusaHeads
from fastdec.models.lm import LMConfig

K = 4
TREE = [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0], [1, 0, 1]]


@dataclasses.dataclass(frozen=True)
class ExactCell(Cell):
  """A strategy on a model."""

  model: str
  strategy: str
  same: float | None = None  # share of texts that are greedy decoding's
  parted: int | None = None
  largest_gap: float | None = None
  tokens_per_call: float | None = None
  texts: int | None = None

  @property
  def key(self) -> tuple[str, str]:
    return self.model, self.strategy

  @property
  def name(self) -> str:
    return f'exact-{self.model}-{self.strategy.replace(" ", "-").replace(",", "")}'


@dataclasses.dataclass(frozen=True)
class Kit:
  """Random drafts for one model."""

  model: Any
  params: Any

  def heads(self, kind: str) -> tuple[Any, Any]:
    """Stern's or Medusa's."""
    config = self.model.config
    if kind == 'medusa':
      module: Any = MedusaHeads(depth=3, d_model=config.d_model, vocab_size=config.vocab_size)
    else:
      module = BlockwiseHeads(k=K, d_model=config.d_model, d_ff=config.d_model, dropout=0.0)
    return module, module.init(jax.random.key(1))

  def network(self, kind: str) -> tuple[Any, Any]:
    """A draft network, which reads no source."""
    config = self.model.config
    layers = LMConfig(d_model=config.d_model, d_ff=config.d_ff, layers=1, heads=config.heads)
    sizes = {'layers': layers, 'vocab_size': config.vocab_size, 'd_target': config.d_model}
    module: Any = EagleNetwork(**sizes) if kind == 'eagle' else BlockNetwork(**sizes, k=K, markov=2)
    return module, module.init(jax.random.key(2))

  def draft(self) -> tuple[Any, Any]:
    """The model itself, its parameters a little off: often right."""
    return self.model, lively(self.params, seed=9, gain=1.0, noise=0.05)


STRATEGIES: dict[str, Callable[[Kit], Strategy]] = {
  'blockwise': lambda kit: fd.Blockwise(kit.heads('stern')),
  'blockwise, two calls': lambda kit: fd.BlockwiseTwoCalls(kit.heads('stern')),
  'blockwise, tree': lambda kit: fd.Medusa(kit.heads('stern'), TREE),
  'medusa, tree': lambda kit: fd.Medusa(kit.heads('medusa'), TREE),
  'speculative': lambda kit: fd.Speculative(kit.draft(), gamma=K),
  'prompt lookup': lambda kit: fd.PromptLookup(ngram=2, k=K),
  'eagle, chain': lambda kit: fd.Eagle(kit.network('eagle'), depth=K),
  'eagle, tree': lambda kit: fd.Eagle(kit.network('eagle'), depth=3, width=2, nodes=6),
  'block draft, chain': lambda kit: fd.BlockDraft(kit.network('block')),
  'block draft, tree': lambda kit: fd.BlockDraft(kit.network('block'), choices=6),
  'beam of 1': lambda kit: fd.Beam(1),
}


class ExactPage(RandomPage[ExactCell]):
  """One group a strategy and model."""

  kind = ExactCell
  shares_programs = True  # they are small

  def __init__(self, *args: Any, **kwargs: Any) -> None:
    super().__init__(*args, **kwargs)
    self._greedy: dict[str, tuple[Case, Decoded]] = {}

  def groups(self) -> list[Group[ExactCell]]:
    plans = [
      ExactCell(model, name) for model in self.experiment.exact.models for name in STRATEGIES
    ]
    return [Group(plan.name, f'exact: {plan.model}, {plan.strategy}', (plan,)) for plan in plans]

  def models_of(self, plan: ExactCell) -> str:
    sizes = dataclasses.replace(self.experiment.exact, models=())
    return hash_of(sizes, plan.model, plan.strategy, self.experiment.seed)

  def measure(self, group: Group[ExactCell], missing: Sequence[ExactCell]) -> list[ExactCell]:
    """The cell.

    Raises:
      UserError: the strategy's texts part from greedy decoding's, and rounding does not explain it.
    """
    (plan,) = missing
    case, plain = self.greedy(plan.model)
    ours = self.decode(case, STRATEGIES[plan.strategy](Kit(case.model, case.params)))
    gaps, texts = partings((case.model, case.params), case.inputs, ours, plain), len(case.inputs)
    check_partings(gaps, texts, 'float32')
    figures = {
      'same': 1 - len(gaps) / texts,
      'parted': len(gaps),
      'largest_gap': float(gaps.max()) if gaps.size else None,
      'tokens_per_call': float(ours.mean_block_size),
      'texts': texts,
    }
    models = self.models_of(plan)
    return [dataclasses.replace(plan, **figures, models=models, conditions=self.conditions)]

  def greedy(self, model: str) -> tuple[Case, Decoded]:
    """A random model, and what it writes greedily; decoded once for all strategies."""
    if model not in self._greedy:
      # pyright: ignore[reportArgumentType]
      case = case_of(model, self.experiment.exact, self.experiment.seed)
      self._greedy[model] = case, self.decode(case, fd.Greedy())
    return self._greedy[model]

  def decode(self, case: Case, strategy: Strategy) -> Decoded:
    """The texts of a strategy."""
    tokens = self.experiment.exact.tokens
    return jax.device_get(
      fd.decode(case.model, case.params, case.inputs, strategy, max_len=tokens).checked()
    )

  def summary(self, cell: ExactCell) -> str:
    return f'{cell.model}, {cell.strategy}: {cell.same:.1%} of texts are those of greedy decoding'


EXACT = Table(
  '',
  (
    Column('Model', 'model', names_row=True),
    Column('Strategy', 'strategy', names_row=True),
    Column('Same texts', 'same', '.1f', ' %', 100),
    Column('Texts', 'texts'),
    Column('part at near ties', 'parted'),
    Column('at gaps up to', 'largest_gap', '.1e'),
    Column('Tokens a call', 'tokens_per_call', '.2f'),
  ),
  ('Random weights over few words, so that drafts are right now and then. Texts may part only where'
   ' two tokens are'
   ' within 1e-4 in logits; a strategy that parts elsewhere has failed.',),
)  # fmt: skip


def tables(cells: Sequence[ExactCell]) -> list[Drawn]:
  """The table."""
  return [EXACT.of(cells)]
