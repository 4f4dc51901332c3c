"""Speculative sampling with two real checkpoints, against the law of the first two tokens that
`transformers` computed in float64 (`../shared/reference`).
"""

from pathlib import Path

import jax
import numpy as np
import pytest

import fastdec as fd
from tests.decoding.rules.test_rejection import RULES, BonusFromTarget, p_value

REFERENCE = Path(__file__).parents[4] / 'shared' / 'reference' / 'hf'
pytestmark = [
  pytest.mark.slow,
  pytest.mark.skipif(not REFERENCE.is_dir(), reason='needs ../shared/reference, which is not here'),
]
ROWS, CHUNKS = 10_000, 5


@pytest.fixture(scope='module')
def reference():
  """Target, draft, prompt, and the law as {(token, token): probability}."""
  expected = np.load(REFERENCE / 'llama_tiny' / 'expected.npz')
  law = {pair: p for pair, p in np.ndenumerate(expected['law2']) if p > 0}
  return (
    fd.load(REFERENCE / 'llama_tiny'),
    fd.load(REFERENCE / 'llama_gqa_tiny'),
    expected['prompt'][:1],
    law,
  )


def seen(reference, rule):
  """Counts how often each pair of tokens was written."""
  target, draft, prompt, law = reference
  strategy = fd.Speculative(draft, gamma=2, sampling=fd.Sampling(1.0), rule=rule)
  counts = dict.fromkeys(law, 0)
  for chunk in range(CHUNKS):
    out = fd.decode(
      *target, prompt.repeat(ROWS, axis=0), strategy, max_len=3, key=jax.random.key(chunk)
    )
    pairs, times = np.unique(np.asarray(out.tokens[:, :2]), axis=0, return_counts=True)
    for (first, second), n in zip(pairs.tolist(), times.tolist(), strict=True):
      counts[first, second if first not in target[0].eos_ids else 0] += n
  return np.array(list(counts.values()), float)


@pytest.mark.parametrize('rule', RULES)
def test_the_joint_law_is_the_reference(reference, rule):
  assert p_value(seen(reference, RULES[rule]), reference[-1]) > 1e-3


def test_a_wrong_rule_has_another_law(reference):
  assert p_value(seen(reference, BonusFromTarget(fd.Rejection())), reference[-1]) < 1e-6
