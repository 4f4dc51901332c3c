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
from fastdec.decoding.methods.block import BlockDrafter
from fastdec.decoding.methods.eagle import Read
from fastdec.heads.words import ids_of
from fastdec.hub.published import publish_draft
from fastdec.models.api import causal
from fastdec.models.attention import node_mask
from fastdec.models.taps import apply_with
from fastdec.struct import Bound

CLOSE = {'rtol': 0, 'atol': 1e-3}  # logits have a standard deviation of 3 and more
PROMPTS = ('p17_', 'p9_')
EAGLES = ('eagle1', 'eagle3', 'eagle3_speculators', 'eagle3_windows')
BLOCKS = (
  'dflash', 'dspark', 'dflash_windows', 'dflash_windows_noncausal', 'dflash_windows_specforge',
  'dspark_confidence', 'domino', 'jetspec', 'dflash2', 'lilicorr',
)  # fmt: skip
PARALLEL = ('peagle', 'peagle_specforge')
LATTICES = ('dflash2', 'lilicorr')
LOOPS = ('domino', 'dflash2', 'jetspec')


class Case:
  """A folder of the reference, for one prompt."""

  def __init__(self, folder, prefix):
    self.arrays = {
      k.removeprefix(prefix): v
      for k, v in np.load(folder / 'cases.npz').items()
      if k.startswith(prefix)
    }
    self.folder, self.target = folder, Bound(*fd.load(folder / 'target'))
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
@pytest.mark.parametrize('family', EAGLES + BLOCKS + PARALLEL)
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
@pytest.mark.wide(
  'p17_-dflash', 'p17_-dspark', 'p17_-dflash_windows_noncausal', 'p9_-domino', 'p9_-dflash2'
)
def test_a_block_draft_computes_what_its_authors_code_does(family, case):
  used = slice(int(case.module.drops_first), int(case.module.drops_first) + case.module.depth)
  names = {'base': 'draft_logits', 'again': 'round2_logits'}
  is_corrected = 'corrected_logits' in case.arrays
  if is_corrected:
    names = {'base': 'base_logits', 'again': 'round2_base_logits'}
  of_guesses = used if len(case[names['base']]) == case.module.rows else slice(None)
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
    if family == 'lilicorr':  # whose edges are between candidates
      continue
    assert tokens == list(case[guesses])
    if is_corrected:
      np.testing.assert_allclose(with_bias, case[f'{prefix}corrected_logits'][used], **CLOSE)
    if case.module.has_confidence:
      np.testing.assert_allclose(np.stack(sure), case[f'{prefix}confidence_logits'], **CLOSE)


@jax.jit
def rows_up_to(draft, target, features, following, cache):
  rows, cache = draft.module.see(draft.params, target, features, following, cache)
  return rows, cache.commit(None, jnp.full(1, features.shape[1], jnp.int32))


@pytest.mark.parametrize('family', PARALLEL)
@pytest.mark.wide('p17_-peagle')
def test_a_parallel_draft_computes_what_its_authors_code_does(family, case):
  drafter = fd.BlockDraft((case.module, case.params), k=6).drafter
  draft, cache = drafter.draft, case.cache()
  rounds = (
    (np.append(case.prompt[1:], case.greedy[0]), 'target_features', 'draft_logits', 'block_tokens'),
    (case.greedy[1:4], 'round2_features', 'round2_logits', 'round2_tokens'),
  )
  for following, features, logits, tokens in rounds:
    following = jnp.asarray(following)[None]
    rows, cache = rows_up_to(draft, case.target, case.features(case[features]), following, cache)
    read = jax.jit(lambda *args: draft.module.read(draft.params, *args))
    states = read(case.target, following[:, -1], rows[:, -1], cache)
    guessed = logits_of(draft, case.target, states)[0]
    np.testing.assert_allclose(guessed, case[logits][-5:], **CLOSE)
    np.testing.assert_array_equal(ids_of(case.params, guessed.argmax(-1)), case[tokens])
    if features == 'target_features':
      true = logits_of(draft, case.target, rows)[0]
      np.testing.assert_allclose(true, case[logits][: case.n], **CLOSE)


@jax.jit
def scores_of(draft, target, states, last, root):
  """Returns the candidates of each guess, the scores of the first ones, and those of each after
  each candidate before."""
  drafter = BlockDrafter(draft, draft.module.k)
  found = drafter.lattice(target, states, last, draft.module.logits(draft.params, target, states))
  first, carry = found.correct(0, root[:, None], found.carry)
  pairs = []
  each = jax.tree.map(lambda x: jnp.repeat(x, first.shape[-1], axis=1), carry)
  for i in range(1, draft.module.depth):
    pairs.append(found.correct(i, found.ids[:, i - 1], each)[0][0])
  return found.ids[0], first[0, 0], jnp.stack(pairs)


def best_paths(ids, first, pairs, count):
  """Returns the likeliest paths through all guesses and their scores, by trying all of them."""
  log = lambda scores: np.asarray(jax.nn.log_softmax(scores, axis=-1), np.float64)
  total = log(first)
  for pair in log(pairs):
    total = total[..., None] + pair
  order = np.argsort(-total, axis=None)[:count]
  places = np.stack(np.unravel_index(order, total.shape), axis=1)
  return np.asarray(ids)[np.arange(len(ids)), places], total.ravel()[order]


@pytest.mark.parametrize('family', LATTICES)
@pytest.mark.wide('p9_-*')
def test_the_edges_of_a_lattice_have_the_scores_of_its_authors_code(family, case):
  names = ('start_scores', 'pair_scores')
  if family == 'lilicorr':
    names = ('start_factors', 'pair_factors')
  draft, root = Bound(case.module, case.params), jnp.full(1, case.greedy[0], jnp.int32)
  features = case.features(case['target_features'])
  states, _ = block_of(draft, case.target, features, case.cache(), root[0])
  ids, first, pairs = scores_of(draft, case.target, states, features[:, -1], root)
  np.testing.assert_array_equal(ids, case['candidate_ids'])
  place = int(first.argmax())
  walked = [ids[0, place]]
  for i, pair in enumerate(pairs, start=1):
    place = int(pair[place].argmax())
    walked.append(ids[i, place])
  assert walked == list(case['block_tokens'])
  for ours, theirs in zip((first, pairs), names, strict=True):
    np.testing.assert_allclose(ours, case[theirs], **CLOSE)
  paths, scores = best_paths(ids, first, pairs, len(case['best_paths']))
  np.testing.assert_array_equal(paths, case['best_paths'])
  np.testing.assert_allclose(scores, case['best_path_scores'], **CLOSE)


@jax.jit
def proposed(drafter, target, cache, features, root):
  """Returns the tokens of a draft, their parents, which of them are acceptable, and chances."""
  draft, _ = drafter.propose(target, Read(cache, features[:, -1]), root[None], None)
  tree = draft.topology
  return draft.tokens, jnp.asarray(tree.parents), jnp.asarray(tree.acceptable), draft.chances


def paths_of(tokens, parents):
  """Returns the tokens below the root on the path to each node."""
  paths = [()]
  for token, parent in zip(tokens[1:], parents[1:], strict=True):
    paths.append((*paths[parent], int(token)))
  return sorted(paths)


@pytest.mark.parametrize('family', ['jetspec'])
@pytest.mark.wide('p9_-*')
def test_trees_of_families_are_those_of_its_authors_code(family, case):
  draft, cache = (case.module, case.params), case.cache()
  features = case.features(case['target_features'])
  for at, sizes, prefix in ((0, (8, 16), ''), (3, (16,), 'round2_')):
    if at:
      features = case.features(case['round2_features'])
    root = jnp.int32(case.greedy[at])
    _, cache = block_of(Bound(*draft), case.target, features, cache, root)
    for nodes in sizes:
      drafter = fd.BlockDraft(draft, choices=nodes, width=4, families=True).drafter
      tokens, parents, *_ = proposed(drafter, case.target, cache, features, root)
      name = f'{prefix}tree{nodes}_'
      wanted = paths_of(case[f'{name}tokens'], case[f'{name}parents'])
      assert paths_of(tokens[0], parents[0]) == wanted


@pytest.mark.parametrize('family', ['jetspec'])
@pytest.mark.wide('p9_-*')
def test_trees_of_families_write_what_the_authors_loop_writes(family, case):
  draft = fd.BlockDraft((case.module, case.params), choices=16, width=4, families=True)
  wanted = case['generate_tokens']
  out = fd.decode(*case.target, [case.prompt.tolist()], draft, max_new_tokens=len(wanted))
  np.testing.assert_array_equal(out.tokens[0], wanted)
  sizes = [size for size in np.asarray(out.block_sizes[0]).tolist() if size]
  assert sizes == case['generate_block_sizes'].tolist()


@pytest.mark.parametrize('family', ['dspark_confidence'])
@pytest.mark.wide('p9_-*')
def test_a_chain_ends_where_its_authors_code_ends_it(family, case):
  draft, cache = Bound(case.module, case.params), case.cache()
  thresholds = np.load(case.folder / 'cases.npz')['thresholds']
  for at, prefix in ((0, ''), (3, 'round2_')):
    features = case.features(case[f'{prefix}features' if at else 'target_features'])
    root = jnp.int32(case.greedy[at])
    _, cache = block_of(draft, case.target, features, cache, root)
    lengths = []
    for least in thresholds:
      drafter = fd.BlockDraft(tuple(draft), confidence=float(least)).drafter
      tokens, _, acceptable, chances = proposed(drafter, case.target, cache, features, root)
      np.testing.assert_array_equal(tokens[0, 1:], case[f'{prefix or "block_"}tokens'])
      lengths.append(int(acceptable[0].sum()) - 1)

      # A token is kept if those before it are: `Adaptive` has the product.
      sure = 1 / (1 + np.exp(-case[f'{prefix}confidence_logits']))
      np.testing.assert_allclose(chances[0], np.cumprod([1, *sure]), rtol=1e-4)
    assert lengths == case[f'{prefix}verify_lengths'].tolist()


@pytest.mark.parametrize('family', LOOPS)
@pytest.mark.wide('p9_-*')
def test_a_chain_writes_what_the_authors_loop_writes(family, case):
  draft = fd.BlockDraft((case.module, case.params))
  wanted = case['generate_tokens']
  (ends,) = np.nonzero(wanted == case.target.module.eos_ids[0])  # their loop does not stop there
  wanted = wanted[: ends[0] + 1] if len(ends) else wanted
  out = fd.decode(*case.target, [case.prompt.tolist()], draft, max_new_tokens=len(wanted))
  np.testing.assert_array_equal(out.tokens[0][: len(wanted)], wanted)


@pytest.mark.parametrize('family', ['jetspec', 'dflash2', 'domino', 'lilicorr', 'peagle_specforge'])
@pytest.mark.wide('lilicorr')
def test_a_draft_is_written_as_it_was_read(family, shared, tmp_path):
  from safetensors.numpy import load_file

  folder = shared / 'reference' / 'drafts' / family
  module, params = fd.load_draft(folder / 'draft')
  publish_draft(tmp_path / 'draft', (module, params), 4)
  written = load_file(tmp_path / 'draft' / 'model.safetensors')
  read = load_file(folder / 'draft' / 'model.safetensors')
  assert written.keys() == read.keys()
  for name, tensor in read.items():
    np.testing.assert_array_equal(written[name], tensor)
  again = fd.load_draft(tmp_path / 'draft')
  assert again[0].__dict__ | {'k': module.k} == module.__dict__
  jax.tree.map(np.testing.assert_array_equal, again[1], params)
