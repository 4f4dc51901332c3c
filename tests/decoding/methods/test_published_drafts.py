"""Drafts in the published layouts: with our strategies they draft what their authors' code drafts.

With a rule that accepts any draft, the tokens after the root are the chain. A tree is read from the
drafter. The two prompts of each family are one ragged batch.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fastdec as fd
from fastdec.decoding.protocol import Prompt
from fastdec.struct import Bound

PROMPTS = ('p17_', 'p9_')
WIDTH = 20  # of all batches, so that they share programs


@pytest.fixture(autouse=True)
def precisely():
  with jax.default_matmul_precision('highest'):
    yield


def opened(shared, family):
  """Target, draft, and the arrays of both prompts."""
  folder = shared / 'reference' / 'drafts' / family
  if not folder.is_dir():
    pytest.skip(f'no reference at {folder}')
  return fd.load(folder / 'target'), fd.load_draft(folder / 'draft'), np.load(folder / 'cases.npz')


def batch(arrays, known):
  """Both prompts, each with the first `known` tokens of its greedy text, and their lengths."""
  rows = [
    np.concatenate([arrays[f'{p}prompt'], arrays[f'{p}target_greedy'][:known]]) for p in PROMPTS
  ]
  lengths = np.array([len(row) for row in rows])
  return np.stack([np.pad(row, (0, WIDTH - len(row))) for row in rows]).astype(np.int32), lengths


WINDOWS = ('dflash_windows_noncausal', 'dflash_windows_specforge', 'eagle3_windows')
SLOW = pytest.mark.slow  # their chains are in the texts below too


@pytest.mark.parametrize('family', [
  'eagle1', 'eagle3_speculators', 'dspark',
  pytest.param('eagle3', marks=SLOW), pytest.param('dflash', marks=SLOW), 'dflash_windows',
  *(pytest.param(name, marks=SLOW) for name in WINDOWS),
])  # fmt: skip
@pytest.mark.wide('dspark')
def test_chains_are_those_of_the_authors_code(shared, family):
  (model, params), draft, arrays = opened(shared, family)
  what = 'tokens' if family.startswith(('dflash', 'dspark')) else 'chain_tokens'
  first = 'block_tokens' if what == 'tokens' else what
  n = len(arrays[f'p9_{first}'])
  unseen = fd.MinBlock(fd.Exact(), n + 1)
  strategy = (
    fd.BlockDraft(draft, rule=unseen) if what == 'tokens' else fd.Eagle(draft, depth=n, rule=unseen)
  )
  for known, name in ((0, first), (3, f'round2_{what}')):
    prompts, lengths = batch(arrays, known)
    out = fd.decode(model, params, prompts, strategy, prompt_lengths=lengths, max_len=n + 1)
    for row, prompt in enumerate(PROMPTS):
      assert out.tokens[row, 0] == arrays[f'{prompt}target_greedy'][known]
      np.testing.assert_array_equal(out.tokens[row, 1:], arrays[prompt + name])


@pytest.mark.parametrize('family', ['eagle1', 'eagle3'])
@pytest.mark.wide('eagle3')
def test_trees_are_those_of_the_authors_code(shared, family):
  (model, params), draft, arrays = opened(shared, family)
  strategy, target = fd.Eagle(draft, depth=4, width=4, nodes=12), Bound(model, params)
  tokens, lengths = batch(arrays, 0)
  prompt = Prompt(None, jnp.asarray(tokens), jnp.asarray(lengths, jnp.int32), jnp.zeros(2, bool))

  @jax.jit  # one program, not one for each operation
  def first(prompt):
    state = strategy.init(target, prompt, 16, None)
    draft = strategy.drafter.propose(target, state.drafter, state.root, None)[0]
    return draft.tokens, draft.topology.parents, draft.topology.mask

  tokens, parents, mask = first(prompt)
  for row, name in enumerate(PROMPTS):
    np.testing.assert_array_equal(tokens[row], arrays[f'{name}tree_tokens'])
    np.testing.assert_array_equal(parents[row], arrays[f'{name}tree_parents'])
    np.testing.assert_array_equal(mask[row], arrays[f'{name}tree_mask'])


@pytest.mark.parametrize('family', ['eagle3', 'dflash'])
@pytest.mark.wide('dflash')
def test_text_is_that_of_the_authors_loop(shared, family):
  (model, params), draft, arrays = opened(shared, family)
  strategy = (
    fd.BlockDraft(draft) if family == 'dflash' else fd.Eagle(draft, depth=4, width=4, nodes=12)
  )
  prompts, lengths = batch(arrays, 0)
  out = fd.decode(model, params, prompts, strategy, prompt_lengths=lengths, max_len=16)
  for row, name in enumerate(PROMPTS):
    np.testing.assert_array_equal(out.tokens[row], arrays[f'{name}generate_tokens'][:16])
