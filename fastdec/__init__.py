"""Autoregressive models that write several tokens per call. This file lists all public names."""

from fastdec import protocol
from fastdec.decoding import theory
from fastdec.decoding.beam.penalties import PowerPenalty
from fastdec.decoding.beam.search import Beam
from fastdec.decoding.decode import decode, stream
from fastdec.decoding.methods.block import BlockDraft
from fastdec.decoding.methods.eagle import Eagle
from fastdec.decoding.methods.forced import Forced
from fastdec.decoding.methods.forecast import LinearForecast, fit_forecast
from fastdec.decoding.methods.greedy import Greedy, Sample
from fastdec.decoding.methods.heads import Blockwise, Medusa
from fastdec.decoding.methods.jacobi import Jacobi
from fastdec.decoding.methods.lookahead import Lookahead
from fastdec.decoding.methods.lookup import PromptLookup
from fastdec.decoding.methods.speculative import Speculative
from fastdec.decoding.methods.trees import medusa_choices
from fastdec.decoding.methods.two_calls import BlockwiseTwoCalls
from fastdec.decoding.pool import decode_all, decode_each
from fastdec.decoding.protocol import Decoded, Noted
from fastdec.decoding.rules.matching import Distance, Exact, MinBlock, TopN
from fastdec.decoding.rules.rejection import BlockVerification, Rejection
from fastdec.decoding.rules.typical import Typical
from fastdec.decoding.score import score
from fastdec.decoding.topology import Topology
from fastdec.errors import UserError, UserNote
from fastdec.folders import load, load_heads, load_tokenizer, save
from fastdec.folders.drafts import load_draft, save_draft
from fastdec.folders.pools import load_pool, save_pool
from fastdec.heads.ngram_pool import NGramPool, build_pool
from fastdec.heads.shortlist import shortlist
from fastdec.hub.medusa import save_heads
from fastdec.kernels.packed import pack
from fastdec.kernels.quantized import quantize
from fastdec.laws.constraint import Constraint
from fastdec.laws.processors import Processors
from fastdec.models.ensemble import Ensemble
from fastdec.text.generator import Generated, Generator
from fastdec.tuning.tune import tune
from fastdec.tuning.tuned import Tuned, load_tuned

__version__ = '0.2.0'  # pyproject.toml reads it here

__all__ = [
  'Beam',
  'BlockDraft',
  'BlockVerification',
  'Blockwise',
  'BlockwiseTwoCalls',
  'Constraint',
  'Decoded',
  'Distance',
  'Eagle',
  'Ensemble',
  'Exact',
  'Forced',
  'Generated',
  'Generator',
  'Greedy',
  'Jacobi',
  'LinearForecast',
  'Lookahead',
  'Medusa',
  'MinBlock',
  'NGramPool',
  'Noted',
  'PowerPenalty',
  'Processors',
  'PromptLookup',
  'Rejection',
  'Sample',
  'Speculative',
  'TopN',
  'Topology',
  'Tuned',
  'Typical',
  'UserError',
  'UserNote',
  'build_pool',
  'decode',
  'decode_all',
  'decode_each',
  'fit_forecast',
  'load',
  'load_draft',
  'load_heads',
  'load_pool',
  'load_tokenizer',
  'load_tuned',
  'medusa_choices',
  'pack',
  'protocol',
  'quantize',
  'save',
  'save_draft',
  'save_heads',
  'save_pool',
  'score',
  'shortlist',
  'stream',
  'theory',
  'tune',
]
