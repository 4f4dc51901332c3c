"""Beam search written with lists, one hypothesis at a time, and a model for it: `fd.Beam` is
compared with them."""

import math

import jax.numpy as jnp

from fastdec.decoding.beam.search import Beam
from tests.decoding.fakes import PRIME, HashLM, hash_of


class SmoothLM(HashLM):
  """`HashLM` whose sums of log-probabilities never tie."""

  def unembed(self, params, hidden):
    v = jnp.arange(self.vocab_size).reshape((1,) * (hidden.ndim - 1) + (-1,))
    code = hidden.astype(int) % PRIME
    waves = jnp.sin(code.astype(float) * 0.37 + v.astype(float) * 1.7)
    return ((code * (v * v + 3) + v * 17) % 101).astype(float) / 25 + waves


def law(model, tokens):
  """Log-probabilities of the next token in plain Python: -inf for suppressed tokens."""
  code = hash_of(tokens)
  logits = [
    (code * (v * v + 3) + v * 17) % 101 / 25 + math.sin(code * 0.37 + v * 1.7)
    for v in range(model.vocab_size)
  ]
  total = math.log(sum(map(math.exp, logits)))
  return [-math.inf if v in model.suppressed_ids else x - total for v, x in enumerate(logits)]


def by_hand(model, prompt, beam: Beam, max_len, law=law):
  """(score, tokens) of the finished hypotheses, best first: the search written with lists."""
  each = beam.size // beam.groups
  groups = [{'running': [(0.0, [])], 'finished': [], 'over': False} for _ in range(beam.groups)]
  limit = (
    max_len
    if beam.max_len is None
    else min(max_len, int(beam.max_len[0] * len(prompt) + beam.max_len[1]))
  )
  penalty = lambda n: float(beam.length_penalty(jnp.int32(n)))
  n = 0
  while not all(group['over'] for group in groups):
    n += 1
    chosen = [0] * model.vocab_size
    for group in groups:
      if not group['over']:
        candidates = []
        for total, words in group['running']:
          probabilities = law(model, [*prompt, *words])
          for v, x in enumerate(probabilities):
            x -= beam.unknown_penalty if v == beam.unknown_id else 0
            size = beam.no_repeat_ngram
            grams = [words[i : i + size] for i in range(len(words) - size + 1)]
            if (size and [*words, v][-size:] in grams) or (v in model.eos_ids and n < beam.min_len):
              x = -math.inf
            candidates.append((total + x - beam.diversity * chosen[v], [*words, v]))
        candidates.sort(key=lambda c: -c[0])
        ends = lambda words: words[-1] in model.eos_ids or len(words) >= limit
        ended = [
          (s / penalty(n), words) for s, words in candidates[:each] if ends(words) and s > -math.inf
        ]
        group['finished'] = sorted(group['finished'] + ended, key=lambda c: -c[0])[:each]
        group['running'] = [c for c in candidates if not ends(c[1])][:each]
        group['over'] = is_over(group, beam, each, n, limit, penalty)
      for total, words in group['running']:
        chosen[words[-1]] += len(words) == n and total > -math.inf
  finished = [hypothesis for group in groups for hypothesis in group['finished']]
  distinct = []
  for score, words in sorted(finished, key=lambda hypothesis: -hypothesis[0]):
    if words not in [other for _, other in distinct]:
      distinct.append((score, words))
  return distinct


def is_over(group, beam, each, n, limit, penalty):
  running = [c for c in group['running'] if c[0] > -math.inf]
  if not running:
    return True
  if len(group['finished']) < each:
    return False
  if beam.early_stopping is True:
    return True
  divisor = max(penalty(n), penalty(limit)) if beam.early_stopping == 'never' else penalty(n)
  return running[0][0] / divisor <= group['finished'][-1][0]
