"""All methods of decoding in one table, from which the tests in tests/decoding take them.

Register a method in `METHODS`: a name, and a function that makes the strategy from a `Kit` of parts
that fit the model to be decoded. The tests then check that it writes what greedy decoding writes:

  test_strategies.py   on a Transformer and an FConv, random and trained, in float64; with any other
                       rows; after any prefix
  test_loop.py         its drafter, on `HashLM`, whose oracle is plain Python; step by step as in
                       one program
  test_pool.py         in a pool of rows that come and go
  test_finite.py       that it reports rows of broken logits, and rows with nothing left to write
  folders/             what `transformers` writes, on mixtures of experts and encoder-decoders

`VARIANTS` are further settings of the same methods, and lossless too. So are `NETWORKS`;
methods/test_draft_networks.py tests what they remember. `OTHERS` do not write the greedy text:
test_pool.py has them, and they have tests of their own. `DEEP` and `DRAWN` are for the drafts of
test_deep.py, which are often right: the former write the greedy text, the latter sample from the
model's law.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fastdec as fd
from fastdec.decoding.strategy import Strategy
from fastdec.heads.block import BlockNetwork
from fastdec.heads.blockwise import BlockwiseHeads
from fastdec.heads.eagle import EagleNetwork
from fastdec.heads.medusa import MedusaHeads
from fastdec.models.lm import LMConfig
from fastdec.models.stacks import StackConfig
from tests.decoding.fakes import HashHeads, HashLM, Imitation

TREE = [[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0], [1, 0, 1]]


@dataclasses.dataclass(frozen=True)
class Kit:
  """The parts that methods are made of, for one model to be decoded."""

  # (module, params) by kind: 'separate', 'paper', 'medusa', 'rooted', ...
  heads: Callable[[str], tuple[Any, Any]]
  draft: tuple[Any, Any]  # (model, params) of a draft model
  # (module, params) of a draft network by kind: 'eagle', 'block' (of 4)
  network: Callable[[str], tuple[Any, Any]]
  words: int  # size of the vocabulary
  pool: Any = None  # n-grams of DEEPEST tokens


Make = Callable[[Kit], Strategy]

METHODS: dict[str, Make] = {
  'greedy': lambda kit: fd.Greedy(),
  'blockwise': lambda kit: fd.Blockwise(kit.heads('separate'), 7),
  'two-calls': lambda kit: fd.BlockwiseTwoCalls(kit.heads('separate'), 4),
  'tree': lambda kit: fd.Medusa(kit.heads('separate'), TREE),
  'medusa': lambda kit: fd.Medusa(kit.heads('medusa'), TREE),
  'speculative': lambda kit: fd.Speculative(kit.draft, 3),
  'lookup': lambda kit: fd.PromptLookup(ngram=2, k=4),
  'suffix': lambda kit: fd.Suffix(longest=4, depth=3, nodes=6),
  'jacobi': lambda kit: fd.Jacobi(4),
  'coupled jacobi': lambda kit: fd.CoupledJacobi(4),
  'lookahead': lambda kit: fd.Lookahead(window=3, ngram=3, guesses=2),
}


VARIANTS: dict[str, Make] = {
  'blockwise paper 10': lambda kit: fd.Blockwise(kit.heads('paper'), 10),
  'blockwise medusa 4': lambda kit: fd.Blockwise(kit.heads('medusa'), 4),
  'blockwise separate 10, top 1': lambda kit: fd.Blockwise(
    kit.heads('separate'), 10, fd.MinBlock(fd.TopN(1), 1)
  ),
  'blockwise separate 10, centred': lambda kit: fd.Blockwise(kit.heads('separate'), 10, window=2),
  'blockwise rooted 10': lambda kit: fd.Blockwise(kit.heads('rooted'), 10),
  'blockwise rooted medusa': lambda kit: fd.Blockwise(kit.heads('rooted medusa')),
  'tree rooted': lambda kit: fd.Medusa(kit.heads('rooted'), TREE),
  'two calls, centred': lambda kit: fd.BlockwiseTwoCalls(kit.heads('separate'), 4, window=2),
  'two calls rooted': lambda kit: fd.BlockwiseTwoCalls(kit.heads('rooted'), 4),
  # all ids, the pad included
  'every id separate': lambda kit: fd.Medusa(
    kit.heads('separate'), [[rank] for rank in range(kit.words)]
  ),
  'speculative, adaptive': lambda kit: fd.Speculative(kit.draft, 4, adaptive=True),
  'lookup 3 10': lambda kit: fd.PromptLookup(),
  'lookahead 4 5 3': lambda kit: fd.Lookahead(window=4, ngram=5, guesses=3),
  'adaptive suffix': lambda kit: fd.Adaptive(
    fd.Suffix(longest=4, depth=3, nodes=6), costs={1: 1, 3: 1.1, 6: 1.3}
  ),
  'adaptive lookup': lambda kit: fd.Adaptive(fd.PromptLookup(2, 5), costs={1: 1, 3: 1.2, 5: 1.3}),
  'adaptive heads': lambda kit: fd.Adaptive(
    fd.Medusa(kit.heads('separate'), TREE), costs={1: 1, 2: 1.1, len(TREE) + 1: 1.3}
  ),
  'union of heads': lambda kit: fd.Union(
    fd.Medusa(kit.heads('separate'), TREE), fd.Blockwise(kit.heads('separate'), 4)
  ),
}

NETWORKS: dict[str, Make] = {
  'eagle': lambda kit: fd.Eagle(kit.network('eagle'), depth=3, width=2, nodes=6),
  'eagle, a chain': lambda kit: fd.Eagle(kit.network('eagle'), depth=4),
  'eagle, a static tree': lambda kit: fd.Eagle(kit.network('eagle'), choices=TREE),
  'block': lambda kit: fd.BlockDraft(kit.network('block'), choices=6),
  'block, a chain': lambda kit: fd.BlockDraft(kit.network('block')),
  'block, a static tree': lambda kit: fd.BlockDraft(kit.network('block'), choices=TREE),
  'adaptive': lambda kit: fd.Adaptive(
    fd.Eagle(kit.network('eagle'), depth=3, width=2, nodes=6), costs={1: 1, 3: 1.1, 6: 1.2}
  ),
  'union': lambda kit: fd.Union(
    fd.PromptLookup(ngram=2, k=4), fd.Eagle(kit.network('eagle'), depth=3, width=2, nodes=6)
  ),
}
GROWN = {name: NETWORKS[name] for name in ('eagle', 'block', 'union', 'adaptive')}

DEEPEST = 6  # tokens below the root, where drafts are right often
DEEP_TREE = [[0] * n for n in range(1, DEEPEST + 1)]
DEEP_TREE += [[1], [0, 1], [0, 0, 1], [0, 0, 0, 1], [1, 0], [0, 1, 0]]

BRANCHED_LATE = (1, 1, 2, 2, 1, 1)  # children of a node, level by level

DEEP: dict[str, Make] = {
  'blockwise': lambda kit: fd.Blockwise(kit.heads('separate'), DEEPEST + 1),
  'medusa': lambda kit: fd.Medusa(kit.heads('medusa'), DEEP_TREE),
  'speculative': lambda kit: fd.Speculative(kit.draft, DEEPEST),
  'speculative, adaptive': lambda kit: fd.Speculative(kit.draft, DEEPEST + 2, adaptive=True),
  'lookup in a pool': lambda kit: fd.PromptLookup(ngram=2, k=DEEPEST + 1, pool=kit.pool),
  'lookahead with a pool': lambda kit: fd.Lookahead(2, DEEPEST, 4, pool=kit.pool),
  'early exit': lambda kit: fd.EarlyExit(layers=1, gamma=DEEPEST),
  'eagle, a chain': lambda kit: fd.Eagle(kit.network('eagle'), depth=DEEPEST),
  'eagle, a growing tree': lambda kit: fd.Eagle(kit.network('eagle'), DEEPEST, width=3, nodes=16),
  'eagle, a static tree': lambda kit: fd.Eagle(kit.network('eagle'), choices=DEEP_TREE),
  'block, a chain': lambda kit: fd.BlockDraft(kit.network('block')),
  'block, a growing tree': lambda kit: fd.BlockDraft(kit.network('block'), choices=16),
  'block, a static tree': lambda kit: fd.BlockDraft(kit.network('block'), choices=DEEP_TREE),
  'union': lambda kit: fd.Union(
    fd.BlockDraft(kit.network('block')), fd.Eagle(kit.network('eagle'), DEEPEST, width=3, nodes=16)
  ),
}

# These draw from the law at this temperature, cut to the likeliest words.
LAW = {'temperature': 0.4, 'top_k': 3, 'top_p': 0.98}
SAMPLING = fd.Sampling(**LAW)
REJECTION = {'sampling': SAMPLING, 'rule': fd.Rejection()}
AS_BLOCK = {'sampling': SAMPLING, 'rule': fd.BlockVerification()}
DRAWN: dict[str, Make] = {
  'blockwise': lambda kit: fd.Blockwise(kit.heads('separate'), DEEPEST + 1, sampling=SAMPLING),
  'medusa': lambda kit: fd.Medusa(kit.heads('medusa'), DEEP_TREE, sampling=SAMPLING),
  'speculative': lambda kit: fd.Speculative(kit.draft, DEEPEST, **REJECTION),
  'speculative, as a block': lambda kit: fd.Speculative(kit.draft, DEEPEST, **AS_BLOCK),
  'speculative, adaptive': lambda kit: fd.Speculative(
    kit.draft, DEEPEST + 2, **AS_BLOCK, adaptive=True
  ),
  'early exit': lambda kit: fd.EarlyExit(layers=1, gamma=DEEPEST, **AS_BLOCK),
  'lookup in a pool': lambda kit: fd.PromptLookup(2, DEEPEST + 1, sampling=SAMPLING, pool=kit.pool),
  'lookahead with a pool': lambda kit: fd.Lookahead(
    2, DEEPEST, 4, sampling=SAMPLING, pool=kit.pool
  ),
  'eagle, a chain': lambda kit: fd.Eagle(kit.network('eagle'), DEEPEST, **AS_BLOCK),
  'eagle, a growing tree': lambda kit: fd.Eagle(
    kit.network('eagle'), DEEPEST, width=3, nodes=16, sampling=SAMPLING
  ),
  'block, a chain': lambda kit: fd.BlockDraft(kit.network('block'), **REJECTION),
  'block, a chain, as a block': lambda kit: fd.BlockDraft(kit.network('block'), **AS_BLOCK),
  'block, a growing tree': lambda kit: fd.BlockDraft(
    kit.network('block'), choices=16, sampling=SAMPLING
  ),
  'eagle, a drawn tree, recursive rejection': lambda kit: fd.Eagle(
    kit.network('eagle'), choices=DEEP_TREE, rule=fd.RecursiveRejection(), sampling=SAMPLING
  ),
  'eagle, a drawn tree, traversal': lambda kit: fd.Eagle(
    kit.network('eagle'), choices=BRANCHED_LATE, rule=fd.Traversal(), sampling=SAMPLING
  ),
  'eagle, a drawn tree, univer': lambda kit: fd.Eagle(
    kit.network('eagle'), choices=DEEP_TREE, rule=fd.UniVer(), sampling=SAMPLING
  ),
  'block, a drawn tree, recursive rejection': lambda kit: fd.BlockDraft(
    kit.network('block'),
    choices=BRANCHED_LATE,
    rule=fd.RecursiveRejection('independent'),
    sampling=SAMPLING,
  ),
  'block, a drawn tree, traversal': lambda kit: fd.BlockDraft(
    kit.network('block'), choices=DEEP_TREE, rule=fd.Traversal('independent'), sampling=SAMPLING
  ),
  'block, a drawn tree, univer': lambda kit: fd.BlockDraft(
    kit.network('block'), choices=BRANCHED_LATE, rule=fd.UniVer(), sampling=SAMPLING
  ),
  'union': lambda kit: fd.Union(
    fd.BlockDraft(kit.network('block')),
    fd.Eagle(kit.network('eagle'), DEEPEST, width=3, nodes=16),
    sampling=SAMPLING,
  ),
}

OTHERS: dict[str, Make] = {
  'sampling': lambda kit: fd.Sample(temperature=3.0),
  'beam': lambda kit: fd.Beam(size=3, n_best=2),
}

LOSSLESS = METHODS | VARIANTS | NETWORKS


def fresh_kit(model: Any, params: Any) -> Kit:
  """Parts for any model of text, in float64: untrained heads and draft networks, and a draft model
  that is often right."""
  d, words = model.d_model, model.vocab_size
  rng = np.random.default_rng(0)
  noisy = jax.tree.map(lambda x: x * rng.normal(1, 0.05, x.shape), params)
  layers: Any = StackConfig(d, 32, heads=2, decoder_layers=1, dtype='float64')
  if model.start_id is None:
    layers = LMConfig(d_model=d, d_ff=32, layers=1, heads=2, dtype='float64')
  seeing = {'layers': layers, 'vocab_size': words, 'd_target': d, 'd_embed': d}
  modules = {
    'separate': BlockwiseHeads(k=7, d_model=d, d_ff=16),
    'medusa': MedusaHeads(depth=3, d_model=d, vocab_size=words),
    'eagle': EagleNetwork(**seeing, taps=(0, 1), fuses=True),
    'block': BlockNetwork(**seeing, k=4, markov=5),
  }

  @functools.cache
  def made(kind: str) -> tuple[Any, Any]:
    fresh = modules[kind].init(jax.random.key(0))
    return modules[kind], jax.tree.map(lambda x: 3 * x.astype(jnp.float64), fresh)

  return Kit(heads=made, draft=(model, noisy), network=made, words=words)


@functools.cache
def hash_kit() -> Kit:
  """Parts for `HashLM`: heads and draft networks that are right by luck, and a draft model that is
  right half the time."""
  words = HashLM().vocab_size
  medusa = MedusaHeads(depth=9, d_model=1, vocab_size=words)

  def heads(layout: str) -> tuple[Any, Any]:
    return (medusa, medusa.init(jax.random.key(0))) if layout == 'medusa' else (HashHeads(), {})

  return Kit(heads, draft=(Imitation(), {'lies': jnp.int32(2)}), network=hash_network, words=words)


@functools.cache
def hash_network(kind: str) -> tuple[Any, Any]:
  """A draft network for `HashLM`. It has an embedding and a projection of its own, as `HashLM` has
  none."""
  words, width = HashLM().vocab_size, 4
  layers = LMConfig(d_model=width, d_ff=4, layers=1, heads=1, key_heads=1)
  sizes = {'layers': layers, 'vocab_size': words, 'd_target': 1, 'd_embed': width, 'fuses': True}
  module = EagleNetwork(**sizes) if kind == 'eagle' else BlockNetwork(**sizes, k=4, markov=2)
  with jax.enable_x64(False):  # whichever test asks first
    embedding, output = jax.random.normal(jax.random.key(1), (2, words, width))
    return module, module.init(jax.random.key(0)) | {'embedding': embedding, 'output': output}
