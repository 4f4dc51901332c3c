"""fastdec: autoregressive models that write several tokens per call. Everything public is named here."""

from fastdec.decoding.decode import Decoded, decode
from fastdec.decoding.rules import Distance, Exact, MinBlock, TopN
from fastdec.decoding.strategies import Blockwise, BlockwiseTwoCalls, Greedy, Medusa
from fastdec.decoding.topology import Topology
from fastdec.errors import UserError

__all__ = [
  'Blockwise',
  'BlockwiseTwoCalls',
  'Decoded',
  'Distance',
  'Exact',
  'Greedy',
  'Medusa',
  'MinBlock',
  'TopN',
  'Topology',
  'UserError',
  'decode',
]
