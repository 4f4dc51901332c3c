"""Figures of Stern, Shazeer and Uszkoreit 2018, "Blockwise Parallel Decoding for Deep Autoregressive Models".

Keys are (k, tune, rule) as in `fastdec.evaluation.cells`; values are BLEU and mean accepted block size.
"""

# Table 1: WMT14 English-German, newstest2013. It has no figures for a minimum block size (section 5.3).
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
      tune, _, rule = column.partition(',')
      if entry != '-':
        bleu, block = entry.split('/')
        figures[int(k), tune, rule or 'exact'] = (float(bleu), float(block))
  return figures


TABLE1 = _parse(_TABLE1)
