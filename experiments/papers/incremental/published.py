"""What FasterTransformer 2.0 publishes (its guide, NVIDIA DeepLearningExamples), to stand beside
ours.

Its Decoder op is one step of all layers, the loop being TensorFlow's; its Decoding op is the whole
loop, beam search included. 8 heads of 64, 6 layers, 30,000 words; TensorFlow 1.x without XLA; means
of 50 iterations. There is no V100 table of the Decoder op. "70 to 16 kernels a decoder layer" is of
NVIDIA's talk about it.
"""

from typing import NamedTuple

LAUNCHES = (70, 16)  # kernels a decoder layer launches in a step: TensorFlow's, theirs


class Times(NamedTuple):
  """Milliseconds of a whole output: TensorFlow's own layers, and the op's."""

  framework: float
  op: float

  @property
  def speedup(self) -> float:
    """The speed-up of the op over the framework. It is the printed one, except for two of the T4
    Decoder that are most likely misprints: 3.41 in FP16 at 1, 128, and 2.01 in FP32 at 256, 32."""
    return self.framework / self.op


Key = tuple[str, int, int]  # 'FP32' or 'FP16', sentences at once, tokens

# batch, tokens: TensorFlow FP32, op FP32, TensorFlow FP16, op FP16
_DECODER_T4 = """
1    32   441.68   111.14   508.81   165.88
1    64   872.39   207.37   1038.71  326.69
1    128  1714.01  457.62   2082.92  661.00
32   32   470.93   119.87   568.83   167.42
64   32   503.57   153.62   579.21   183.74
128  32   614.59   245.94   641.98   238.27
256  32   802.18   439.33   735.67   348.74
"""
_DECODING_T4 = """
1    32   430.39   64.16    537.95   49.07
1    64   876.24   135.42   1056.78  97.45
1    128  1799.16  318.65   2145.74  240.85
32   32   597.42   217.61   646.07   128.39
64   32   789.22   395.85   769.17   246.89
128  32   1223.72  726.43   996.03   424.53
256  32   2188.00  1385.60  1599.58  781.38
"""
# FP16 at 1, 128 is the figure of FP32 in the original too, most likely by mistake.
_DECODING_V100 = """
1    32   440.46   58.70    531.70   46.18
1    64   888.19   122.50   1065.76  93.84
1    128  1821.76  293.21   2076.63  293.21
32   32   543.27   101.35   630.55   73.37
64   32   648.27   157.54   793.83   106.77
128  32   838.43   277.77   867.71   169.04
256  32   1221.30  493.85   1101.36  290.44
"""


def _parse(table: str) -> dict[Key, Times]:
  figures = {}
  for batch, tokens, *times in (line.split() for line in table.strip().splitlines()):
    for precision, pair in zip(('FP32', 'FP16'), (times[:2], times[2:]), strict=True):
      figures[precision, int(batch), int(tokens)] = Times(*map(float, pair))
  return figures


DECODER_T4 = _parse(_DECODER_T4)  # beam 1
DECODING_T4 = _parse(_DECODING_T4)  # beam 4
DECODING_V100 = _parse(_DECODING_V100)  # beam 4
