"""What Fu et al. 2024 publish: speed-ups over greedy decoding on an A100 and, in the ablation,
tokens a call."""

from typing import NamedTuple


class Ablation(NamedTuple):
  """A row of the paper's ablation; None: not said."""

  what: str
  sizes: tuple[int, int, int] | None  # window, ngram, guesses
  speedup: float
  tokens: float | None


ABLATION = (
  Ablation('prompt lookup', None, 1.44, 1.55),
  Ablation('lookahead, one guess', (30, 5, 1), 1.61, 1.79),
  Ablation('lookahead', (15, 5, 15), 1.78, 1.96),
  Ablation('lookahead, pool from the prompt too', (15, 5, 15), 1.88, 2.05),
  Ablation('lookahead, narrow window', (1, 5, 30), 1.04, None),
)
SPEEDUPS = (
  ('MT-Bench', '1.45 to 1.64'),
  ('GSM8K', '1.70 to 1.89'),
  ('HumanEval, completion', 'up to 2.25'),
)
