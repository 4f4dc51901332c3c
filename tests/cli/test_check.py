"""The lines about folders: what they hold, need, and write."""

import jax
import numpy as np
import pytest

import fastdec as fd
from fastdec import folders
from fastdec.models.lm import LM, LMConfig


def test_models_heads_and_drafts_are_distinguished(translator, networks, fastdec, tmp_path):
  wide = translator.parent / 'wide'
  ended = fastdec('check', translator, networks['eagle'], wide, '--max-len=3')
  assert ended.code == 0, ended.err
  lines = iter(ended.out.splitlines())
  assert next(lines) == str(translator)
  model = next(lines)
  assert model.startswith('  model: Transformer, ')
  assert 'd_model 8, vocab_size 30, max_positions 32' in model
  assert 'of weights in bfloat16' in next(lines)
  assert next(lines).startswith('  prediction heads: BlockwiseHeads, ')
  assert next(lines) == '  tokenizer: 30 ids'
  assert next(lines) == "  writes: nothing without a source: give --prompt='A sentence.'"
  assert next(lines) == str(networks['eagle'])
  draft = next(lines)
  assert draft.startswith('  draft network: EagleNetwork, ') and 'd_target 8' in draft
  assert next(lines) == str(wide)
  assert 'only holds prediction heads' in next(lines)
  assert next(lines).startswith('  prediction heads: MedusaHeads')
  assert next(lines).startswith('  tokenizer: none (')


@pytest.fixture(scope='module')
def small(tmp_path_factory):
  """A language model without a tokenizer."""
  model = LM(LMConfig(vocab_size=20, d_model=8, d_ff=12, layers=2, heads=2, eos_ids=()))
  folder = tmp_path_factory.mktemp('check') / 'small'
  folders.save(model, model.init(jax.random.key(0)), folder)
  return folder


def test_needs_are_counted_and_texts_are_those_of_greedy_decoding(small, fastdec):
  ended = fastdec('check', small, '--max-len=5')
  lines = ended.out.splitlines()
  model, params = fd.load(small)
  leaves = jax.tree.leaves(params)
  weights, norms = sum(leaf.size for leaf in leaves), 5 * 8
  # a byte a weight and four an output: 20 words; q, k, v, out, gate, up, down of two layers
  int8 = weights - norms + 4 * (20 + 2 * (8 * 5 + 12 * 2)) + 2 * norms
  needs = f'needs: {2 * weights / 1e3:.3g} kB of weights in bfloat16, {int8 / 1e3:.3g} kB in int8'
  assert lines[2] == f'  {needs}, {2 * 2 * 8 * 4} bytes of cache a token'
  out = fd.decode(model, params, np.array([[0]]), fd.Greedy(), max_len=5)
  tokens = out.tokens[0].tolist()
  assert lines[-1] == f'  writes: {tokens} (5 tokens, {len({*tokens})} different ones)'


def test_all_folders_are_described_and_one_that_is_wrong_is_exit_code_2(small, fastdec, tmp_path):
  ended = fastdec('check', tmp_path, small, '--max-len=2')
  assert ended.out.startswith(f'{tmp_path}\n  wrong: {tmp_path} has no config.json: ')
  assert f'\n{small}\n  model: LM, ' in ended.out
  assert f'1 of 2 cannot be decoded with: {tmp_path}' in ended.mistake
