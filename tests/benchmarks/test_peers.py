"""Our parameters mean the same in the peers: they write the same tokens."""

import json

import jax
import numpy as np
import pytest

import fastdec as fd
from benchmarks import peers
from fastdec.models.transformer import Transformer, TransformerConfig

HABITS = [{}, {'positions': 'learned', 'attention_bias': True, 'activation': 'gelu'}]
TOKENS = 12


@pytest.fixture(params=HABITS, ids=['defaults', 'learned positions, biases, gelu'])
def model(request):
  """A model whose parameters are all random, those of norms and biases too."""
  sizes = {'d_model': 32, 'd_ff': 64, 'heads': 2, 'encoder_layers': 1, 'decoder_layers': 2}
  made = Transformer(TransformerConfig(vocab_size=300, max_positions=64, **sizes | request.param))
  leaves, tree = jax.tree.flatten(made.init(jax.random.key(0)))
  keys = jax.random.split(jax.random.key(1), len(leaves))
  noisy = [x + 0.3 * jax.random.normal(key, x.shape) for x, key in zip(leaves, keys, strict=True)]
  return made, tree.unflatten(noisy)


# transformers is an extra of its own, and decodes with PyTorch
NEEDS = {'ctranslate2': ('ctranslate2',), 'transformers': ('transformers', 'torch')}


@pytest.mark.parametrize('peer', NEEDS)
def test_a_random_model_writes_the_same_tokens_in_a_peer(model, peer):
  for package in NEEDS[peer]:
    reason = f"{package} is not installed (pip install 'fastdec[benchmark]')"
    pytest.importorskip(package, reason=reason)
  sources = np.random.default_rng(0).integers(2, 300, (16, 9), np.int32)
  sources[0, 5:] = 0  # padding
  out = fd.decode(*model, sources, fd.Greedy(), max_len=TOKENS)
  ours = [row[:n].tolist() for row, n in zip(np.asarray(out.tokens), out.lengths, strict=True)]
  assert len({token for row in ours for token in row}) > 4  # texts are varied
  ways = getattr(peers, peer)(*model, TOKENS)
  exact = [way for name, way in ways.items() if 'float32' in name]
  assert exact and all(way(sources, 1) == ours for way in exact)


@pytest.mark.wide('greedy')
@pytest.mark.parametrize('beams', [(1,), (1, 2)], ids=['greedy', 'both'])
def test_rows_of_each_search_and_batch_without_any_peer(script, tmp_path, beams):
  words = ['--texts=2', '--batches', 2, '--beams', *beams, '--tokens=4', '--rounds=1']
  process = script('peers.py', f'--out={tmp_path}/peers.jsonl', *words)
  assert process.returncode == 0, process.stderr
  rows = [json.loads(line) for line in (tmp_path / 'peers.jsonl').read_text().splitlines()]
  ours = [row for row in rows if row['engine'] == 'fastdec']
  searches = [('greedy', 2), ('beam 2', 2)][: len(beams)]
  assert [(row['search'], row['batch']) for row in ours] == searches
  assert all(row['times_ours'] == 1 and row['ms_a_token'] > 0 for row in ours)
  assert [row['same_as_greedy'] for row in ours] == [1, None][: len(beams)]
  assert '| greedy | 2 | fastdec | 1 |' in process.stdout


def test_a_model_needs_sentences(script, tmp_path):
  process = script('peers.py', f'--model={tmp_path}')
  assert process.returncode == 2 and 'go together' in process.stderr
