"""Figures that Leviathan, Kalman and Matias published (2022, arXiv 2211.17192): T5-XXL and others,
on one TPU v4."""

from typing import NamedTuple


class Published(NamedTuple):
  """A row of Tables 2 and 4: predicted by theorem 3.8, and measured at batch 1 over T5X's
  decoding."""

  task: str
  draft: str
  temperature: float
  gamma: int
  alpha: float
  c: float
  predicted: float
  measured: float


SPEEDS = tuple(
  Published(*row)
  for row in (
    ('EnDe', 'T5-small', 0, 7, 0.75, 0.02, 3.2, 3.4),
    ('EnDe', 'T5-base', 0, 7, 0.80, 0.04, 3.3, 2.8),
    ('EnDe', 'T5-large', 0, 7, 0.82, 0.11, 2.5, 1.7),
    ('EnDe', 'T5-small', 1, 7, 0.62, 0.02, 2.3, 2.6),
    ('EnDe', 'T5-base', 1, 5, 0.68, 0.04, 2.4, 2.4),
    ('EnDe', 'T5-large', 1, 3, 0.71, 0.11, 2.0, 1.4),
    ('CNNDM', 'T5-small', 0, 5, 0.65, 0.02, 2.4, 3.1),
    ('CNNDM', 'T5-base', 0, 5, 0.73, 0.04, 2.6, 3.0),
    ('CNNDM', 'T5-large', 0, 3, 0.74, 0.11, 2.0, 2.2),
    ('CNNDM', 'T5-small', 1, 5, 0.53, 0.02, 1.9, 2.3),
    ('CNNDM', 'T5-base', 1, 3, 0.55, 0.04, 1.8, 2.2),
    ('CNNDM', 'T5-large', 1, 3, 0.56, 0.11, 1.6, 1.7),
  )
)

# Table 3: (target, draft) -> alpha at temperatures 0 and 1.
ALPHAS = {
  ('T5-XXL, EnDe', 'unigram'): (0.08, 0.07),
  ('T5-XXL, EnDe', 'bigram'): (0.20, 0.19),
  ('T5-XXL, EnDe', 'T5-small'): (0.75, 0.62),
  ('T5-XXL, EnDe', 'T5-base'): (0.80, 0.68),
  ('T5-XXL, EnDe', 'T5-large'): (0.82, 0.71),
  ('T5-XXL, CNNDM', 'unigram'): (0.13, 0.08),
  ('T5-XXL, CNNDM', 'bigram'): (0.23, 0.16),
  ('GPT-like 97M, LM1B', 'unigram'): (0.03, 0.03),
  ('GPT-like 97M, LM1B', 'bigram'): (0.05, 0.05),
  ('GPT-like 97M, LM1B', 'GPT-like 6M'): (0.88, 0.89),
  ('LaMDA 137B', 'LaMDA 100M'): (0.61, 0.57),
  ('LaMDA 137B', 'LaMDA 2B'): (0.71, 0.71),
  ('LaMDA 137B', 'LaMDA 8B'): (0.75, 0.74),
}
