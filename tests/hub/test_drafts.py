"""Published drafts compute what their authors' code computes on the same files: float32, from
features to tokens.

The cases are those of ../shared/reference/drafts, made by the authors' code; without that folder
they are skipped.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec.heads.words import ids_of
from fastdec.models.api import causal
from fastdec.models.attention import node_mask
from fastdec.models.taps import apply_with
from fastdec.struct import Bound

CLOSE = {'rtol': 0, 'atol': 1e-3}  # logits have a standard deviation of 3 and more
PROMPTS = ('p17_', 'p9_')
EAGLES = ('eagle1', 'eagle3', 'eagle3_speculators', 'eagle3_windows')
BLOCKS = (
  'dflash', 'dspark', 'dflash_windows', 'dflash_windows_noncausal', 'dflash_windows_specforge',
  'dspark_confidence', 'domino', 'jetspec',
)  # fmt: skip


class Case:
  """A folder of the reference, for one prompt."""

  def __init__(self, folder, prefix):
    self.arrays = {
      k.removeprefix(prefix): v
      for k, v in np.load(folder / 'cases.npz').items()
      if k.startswith(prefix)
    }
    self.target = Bound(*fd.load(folder / 'target'))
    self.module, self.params = fd.load_draft(folder / 'draft')
    self.prompt, self.greedy = self.arrays['prompt'], self.arrays['target_greedy']
    self.n = len(self.prompt)

  def __getitem__(self, name):
    return self.arrays[name]

  def features(self, states):
    """What the draft reads of the target's states [n, taps * d]."""
    states = jnp.asarray(states)[None]
    taps = jnp.split(states, max(len(self.module.taps), 1), axis=-1)
    return self.module.features(self.params, taps[0], taps)

  def cache(self):
    return self.module.init_cache(self.params, None, 1, self.n + 16)


@pytest.fixture(params=PROMPTS)
def case(request, shared):
  """The case of a test's family; the reference is computed in float32 all the way."""
  family = request.node.callspec.params['family']
  with jax.default_matmul_precision('highest'):
    yield Case(shared / 'reference' / 'drafts' / family, request.param)


@pytest.mark.parametrize('case', PROMPTS[:1], indirect=True)
@pytest.mark.parametrize('family', EAGLES + BLOCKS)
@pytest.mark.wide('dflash-p17_', 'eagle1-p17_', 'eagle3-p17_')
def test_the_target_gives_what_the_draft_reads(family, case):
  """Layers are numbered otherwise in each family; where none are named, a rule says which."""
  model, params = case.target

  @jax.jit
  def apply(params, tokens):
    cache = model.init_cache(params, None, 1, case.n)
    return apply_with(model, case.module.taps)(params, tokens, causal(case.n), cache)

  hidden, taps, _ = apply(params, jnp.asarray(case.prompt)[None])
  states = jnp.concatenate(taps, axis=-1) if case.module.taps else hidden
  np.testing.assert_allclose(states[0], case['target_features'], rtol=1e-5, atol=1e-3)


@jax.jit
def rows_of(draft, target, tokens, features, cache):
  nodes = causal(features.shape[1])
  positions = cache.length[:, None] + nodes.depths[None]
  mask = node_mask(nodes, cache.length, cache.own.slots)
  embedded = draft.module.embedded(draft.params, target, tokens)
  return draft.module.read(draft.params, embedded, features, positions, mask, cache, cache.length)


def read(case, tokens, features, cache):
  """Returns the rows of these tokens; row i has the position cache.length + i. Nothing is
  committed."""
  draft = Bound(case.module, case.params)
  return rows_of(draft, case.target, jnp.asarray(tokens)[None], features, cache)


@jax.jit
def logits_of(draft, target, states):
  return draft.module.logits(draft.params, target, states)


def chain(case, state, cache, length=5):
  """Guesses greedily, one token after another. Returns the logits, and the target's ids."""
  logits, tokens = [], []
  for _ in range(length):
    logits.append(logits_of(Bound(case.module, case.params), case.target, state)[0, 0])
    tokens.append(int(ids_of(case.params, logits[-1].argmax())))
    state, cache = read(case, tokens[-1:], state, cache)
    cache = cache.commit(None, jnp.ones(1, jnp.int32))
  return np.stack(logits), tokens


@pytest.mark.parametrize('family', EAGLES)
@pytest.mark.wide('p17_-eagle1', 'p17_-eagle3_*')
def test_an_autoregressive_draft_computes_what_its_authors_code_does(family, case):
  tokens = np.append(case.prompt[1:], case.greedy[0])
  states, cache = read(case, tokens, case.features(case['target_features']), case.cache())
  np.testing.assert_allclose(states[0], case['draft_hidden'], rtol=1e-5, atol=1e-3)
  logits = logits_of(Bound(case.module, case.params), case.target, states)
  np.testing.assert_allclose(logits[0], case['draft_logits'], **CLOSE)

  cache = cache.commit(None, jnp.full(1, case.n, jnp.int32))
  logits, tokens = chain(case, states[:, -1:], cache)
  np.testing.assert_allclose(logits, case['chain_logits'], **CLOSE)
  assert tokens == list(case['chain_tokens'])

  # Three tokens are committed with true features; the slots of the guesses are written over.
  states, cache = read(case, case.greedy[1:4], case.features(case['round2_features']), cache)
  logits, tokens = chain(case, states[:, -1:], cache.commit(None, jnp.full(1, 3, jnp.int32)))
  np.testing.assert_allclose(logits, case['round2_chain_logits'], **CLOSE)
  assert tokens == list(case['round2_chain_tokens'])


@jax.jit
def corrected(draft, target, states, root):
  """Greedy tokens of a block, their logits with the bias from the token before, and the
  confidences."""
  module, params = draft
  base = module.logits(params, target, states)
  before, carry = jnp.full(1, root, jnp.int32), module.start_carry(states[:, 0])
  rows, tokens, sure = [], [], []
  for i in range(module.depth):
    logits, carry = module.guess_logits(
      params, target, states[:, i], before, carry, as_decoded=True, number=i
    )
    if module.has_confidence:
      sure.append(module.confidence(params, states[:, i], before)[0])
    before = ids_of(params, logits.argmax(-1)).astype(jnp.int32)
    rows.append(logits[0])
    tokens.append(before[0])
  return base[0], jnp.stack(rows), tokens, sure


@jax.jit
def block_of(draft, target, features, cache, root):
  """Reads new features, then a block. Returns the states of the block, and the cache with the
  features."""
  module, params = draft
  new = features.shape[1]
  positions = cache.length[:, None] + np.arange(new, dtype=np.int32)[None]
  cache = module.remember(params, features, positions, cache)
  cache = cache.commit(None, jnp.full(1, new, jnp.int32))
  return module.read(params, target, jnp.full(1, root), features[:, -1], cache), cache


@pytest.mark.parametrize('family', BLOCKS)
@pytest.mark.wide('p17_-dflash', 'p17_-dspark', 'p17_-dflash_windows_noncausal', 'p9_-domino')
def test_a_block_draft_computes_what_its_authors_code_does(family, case):
  used = slice(int(case.module.drops_first), int(case.module.drops_first) + case.module.depth)
  names = {'base': 'draft_logits', 'again': 'round2_logits'}
  is_corrected = 'corrected_logits' in case.arrays
  if is_corrected:
    names = {'base': 'base_logits', 'again': 'round2_base_logits'}
  of_guesses = slice(None) if family == 'jetspec' else used
  draft = Bound(case.module, case.params)
  features, cache = case.features(case['target_features']), case.cache()
  rounds = ((0, names['base'], 'block_tokens', ''), (3, names['again'], 'round2_tokens', 'round2_'))
  for at, base, guesses, prefix in rounds:
    if at:
      features = case.features(case['round2_features'])
    root = jnp.int32(case.greedy[at])
    states, cache = block_of(draft, case.target, features, cache, root)
    if not prefix:
      np.testing.assert_allclose(states[0], case['draft_hidden'][used], rtol=1e-5, atol=1e-3)
    logits, with_bias, tokens, sure = corrected(draft, case.target, states, root)
    np.testing.assert_allclose(logits, case[base][of_guesses], **CLOSE)
    assert tokens == list(case[guesses])
    if is_corrected:
      np.testing.assert_allclose(with_bias, case[f'{prefix}corrected_logits'][used], **CLOSE)
    if case.module.has_confidence:
      np.testing.assert_allclose(np.stack(sure), case[f'{prefix}confidence_logits'], **CLOSE)
