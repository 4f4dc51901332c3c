"""What others publish about draft networks, to stand beside ours: on language models, on
accelerators."""

from typing import NamedTuple


class Published(NamedTuple):
  """One row. Tokens a call include the token that the target itself adds; None is what is not
  told."""

  drafter: str
  target: str
  draft: str
  temperature: int
  text: str
  tokens: float | None
  speedup: float | None  # over plain decoding, batch 1
  source: str


SIX, FIVE = 'mean of 6 tasks', 'mean of 5 tasks'
EAGLE2, EAGLE3 = 'Li et al. 2024 (EAGLE-2)', 'Li et al. 2025 (EAGLE-3), Table 1'
DSPARK = 'DSpark 2026, Table 1'
ROWS = tuple(
  Published(*row)
  for row in (
    ('Medusa', 'Vicuna 13B', 'tree', 0, SIX, 2.44, 2.07, EAGLE2),
    ('Hydra', 'Vicuna 13B', 'tree', 0, SIX, 3.40, 2.69, EAGLE2),
    ('EAGLE', 'Vicuna 13B', 'tree', 0, SIX, 3.82, 2.95, EAGLE2),
    ('EAGLE-2', 'Vicuna 13B', 'tree', 0, SIX, 4.65, 4.04, EAGLE2),
    ('EAGLE-2', 'Vicuna 13B', 'tree', 1, SIX, 4.26, 3.65, EAGLE2),
    ('Medusa', 'Vicuna 13B', 'tree', 0, FIVE, 2.51, 2.12, EAGLE3),
    ('Hydra', 'Vicuna 13B', 'tree', 0, FIVE, 3.50, 2.80, EAGLE3),
    ('EAGLE', 'Vicuna 13B', 'tree', 0, FIVE, 3.96, 3.05, EAGLE3),
    ('EAGLE-2', 'Vicuna 13B', 'tree', 0, FIVE, 4.83, 4.22, EAGLE3),
    ('EAGLE-3', 'Vicuna 13B', 'tree', 0, FIVE, 6.62, 5.51, EAGLE3),
    ('EAGLE-3', 'Vicuna 13B', 'tree', 1, FIVE, 5.67, 4.65, EAGLE3),
    ('EAGLE-3', 'Llama 3.1 8B', 'tree', 0, FIVE, 6.23, 4.44, EAGLE3),
    ('EAGLE-3', 'Qwen3 4B', 'chain of 7', 1, 'MT-Bench', 2.39, None, DSPARK),
    ('DFlash', 'Qwen3 4B', 'chain of 7', 1, 'MT-Bench', 3.07, None, DSPARK),
    ('DSpark', 'Qwen3 4B', 'chain of 7', 1, 'MT-Bench', 3.64, None, DSPARK),
    ('EAGLE-3', 'Qwen3 8B', 'chain of 7', 1, 'GSM8K', 5.30, None, DSPARK),
    ('DFlash', 'Qwen3 8B', 'chain of 7', 1, 'GSM8K', 5.33, None, DSPARK),
    ('DSpark', 'Qwen3 8B', 'chain of 7', 1, 'GSM8K', 6.17, None, DSPARK),
    ('EAGLE-3', 'Qwen3 8B', 'chain of 7', 1, 'MT-Bench', 2.66, None, DSPARK),
    ('DFlash', 'Qwen3 8B', 'chain of 7', 1, 'MT-Bench', 3.11, None, DSPARK),
    ('DSpark', 'Qwen3 8B', 'chain of 7', 1, 'MT-Bench', 3.72, None, DSPARK),
  )
)
