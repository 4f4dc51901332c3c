"""Figures of Stern, Shazeer and Uszkoreit 2018, "Blockwise Parallel Decoding for Deep
Autoregressive Models".

Keys of Tables 1 and 2 are (k, regime, rule) as in a row; the values of Table 1 are BLEU
and mean accepted block size, of Table 2 mean accepted block size. Keys of Table 3 are (k, rule),
its values per cent of raters who prefer the fine-tuned model to the base, and the ends of the 90 %
bootstrap interval.
"""

from typing import NamedTuple

# Table 1: WMT14 English-German, newstest2013. It has no figures for a minimum block size (section
# 5.3).
_TABLE1 = """
k   regular     distil      finetune    both        both,top-2  both,top-3
1   26.00/1.00  26.41/1.00  -           -           -           -
2   25.81/1.51  26.52/1.55  25.74/1.78  26.58/1.88  26.49/1.92  26.41/1.93
4   25.84/1.73  26.31/1.85  25.05/2.69  26.36/3.27  26.22/3.47  26.14/3.52
6   26.08/1.76  26.26/1.90  24.69/2.98  26.18/4.18  25.90/4.59  25.56/4.69
8   25.82/1.76  26.25/1.91  24.27/3.01  26.11/4.69  25.71/5.34  25.41/5.52
10  25.69/1.74  26.34/1.90  23.51/2.87  25.60/4.95  25.04/5.67  24.68/5.91
"""


def _parse(table: str) -> dict[tuple[int, str, str], tuple[float, float]]:
  (_, *columns), *rows = [line.split() for line in table.strip().splitlines()]
  figures = {}
  for k, *entries in rows:
    for column, entry in zip(columns, entries, strict=True):
      regime, _, rule = column.partition(',')
      if entry != '-':
        bleu, block = entry.split('/')
        figures[int(k), regime, rule or 'exact'] = (float(bleu), float(block))
  return figures


TABLE1 = _parse(_TABLE1)

# Table 2: CelebA from 8 x 8 to 32 x 32, development set. "Approximate" and "Both" accept up to a
# distance of 2.
_TABLE2 = {
  ('regular', 'exact'): {1: 1.00, 2: 1.07, 4: 1.08, 6: 1.09, 8: 1.09, 10: 1.10},
  ('regular', 'distance-2'): {2: 1.24, 4: 1.36, 6: 1.38, 8: 1.49, 10: 1.40},
  ('finetune', 'exact'): {2: 1.59, 4: 2.11, 6: 2.23, 8: 2.17, 10: 2.04},
  ('finetune', 'distance-2'): {2: 1.96, 4: 3.75, 6: 5.25, 8: 6.36, 10: 6.79},
}
TABLE2 = {(k, *column): block for column, blocks in _TABLE2.items() for k, block in blocks.items()}

# Table 3: human evaluation on Mechanical Turk.
TABLE3 = {
  (2, 'exact'): (52.8, 50.8, 54.9),
  (4, 'exact'): (54.4, 52.5, 56.3),
  (6, 'exact'): (53.2, 51.3, 55.0),
  (8, 'exact'): (55.1, 53.3, 56.8),
  (10, 'exact'): (54.5, 53.1, 56.0),
  (2, 'distance-2'): (50.0, 48.4, 51.5),
  (4, 'distance-2'): (53.3, 51.7, 55.0),
  (6, 'distance-2'): (56.8, 55.4, 58.2),
  (8, 'distance-2'): (55.2, 53.5, 56.7),
  (10, 'distance-2'): (50.3, 48.9, 51.8),
}

# Table 4: newstest2014. k -> BLEU and wall-clock speed-up of a single sentence; trained on
# distilled data.
TABLE4 = {
  1: (29.11, 1.0),
  2: (28.95, 1.72),
  4: (28.54, 2.69),
  6: (28.11, 3.10),
  8: (27.88, 3.31),
  10: (27.40, 3.04),
}


class Rival(NamedTuple):
  """A row of Table 4 that is another paper's: BLEU in per cent, the speed-up where one was
  published."""

  model: str
  bleu: float
  speedup: float | None = None


RIVALS = (
  Rival('Vaswani 2017, Transformer, beam 4', 28.4),
  Rival('Gu 2018, Transformer, beam 1', 22.71),
  Rival('Gu 2018, Transformer, beam 4', 23.45),
  Rival('Gu 2018, NAT', 17.35),
  Rival('Gu 2018, NAT + FT', 17.69),
  Rival('Gu 2018, NAT + FT + NPD, s = 10', 18.66),
  Rival('Gu 2018, NAT + FT + NPD, s = 100', 19.17),
  Rival('Lee 2018, Transformer, beam 1', 23.77, 1.20),
  Rival('Lee 2018, Transformer, beam 4', 24.57, 1.00),
  Rival('Lee 2018, refinement, 1 iteration', 13.91, 11.39),
  Rival('Lee 2018, refinement, 2 iterations', 16.95, 8.77),
  Rival('Lee 2018, refinement, 5 iterations', 20.26, 3.11),
  Rival('Lee 2018, refinement, 10 iterations', 21.61, 2.01),
  Rival('Lee 2018, refinement, adaptive', 21.54, 2.39),
  Rival('Kaiser 2018, latent', 19.8),
  Rival('Kaiser 2018, latent, top 10', 21.0),
  Rival('Kaiser 2018, latent, top 100', 22.5),
)

# Figure 4's points are not in the text, except the peaks: translation's (k = 8, block size 4.7,
# speed-up 3.3) agrees with Table 4's speed-ups at Table 1's block sizes, which stand here. k ->
# mean accepted block size and speed-up.
FIGURE4_IMAGES = {6: (5.3, 4.0)}
FIGURE4 = {
  k: (TABLE1[k, 'distil' if k == 1 else 'both', 'exact'][1], speedup)
  for k, (_, speedup) in TABLE4.items()
}
