"""Names for authors of methods and models: `fd.protocol.Drafter`, `fd.protocol.pytree`, ..."""

from fastdec.decoding.protocol import Accepted, Draft, Drafter, Heads, Prefill, Prompt, Rule, Step
from fastdec.decoding.rules.matching import at_parent
from fastdec.decoding.sampling import argmax
from fastdec.decoding.settings import real, size, whole
from fastdec.decoding.strategy import LoopStrategy, Strategy
from fastdec.decoding.text import Text
from fastdec.decoding.topology import Topology
from fastdec.kernels.sharding import make_mesh, place
from fastdec.models.api import Model, Nodes, causal
from fastdec.struct import Bound, assign, pytree, static

__all__ = [
  'Accepted',
  'Bound',
  'Draft',
  'Drafter',
  'Heads',
  'LoopStrategy',
  'Model',
  'Nodes',
  'Prefill',
  'Prompt',
  'Rule',
  'Step',
  'Strategy',
  'Text',
  'Topology',
  'argmax',
  'assign',
  'at_parent',
  'causal',
  'make_mesh',
  'place',
  'pytree',
  'real',
  'size',
  'static',
  'whole',
]
