"""Autoregressive models that write several tokens per call. This file lists all public names.

Each is imported when it is first used: a command's --help needs no JAX, and decoding needs none of
what reads text and the folders of others.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
  from fastdec.decoding.methods.union import Union
  from fastdec.decoding.pool import decode_all, decode_each
  from fastdec.decoding.protocol import Decoded, Noted
  from fastdec.decoding.rules.matching import Distance, Exact, MinBlock, TopN
  from fastdec.decoding.rules.rejection import BlockVerification, Rejection
  from fastdec.decoding.rules.typical import Typical
  from fastdec.decoding.sampling import Sampling
  from fastdec.decoding.score import score
  from fastdec.decoding.topology import Topology
  from fastdec.errors import UserError, UserNote
  from fastdec.folders import save, save_draft
  from fastdec.folders.pools import load_pool, save_pool
  from fastdec.heads.ngram_pool import NGramPool, build_pool
  from fastdec.heads.shortlist import shortlist
  from fastdec.hub.published import publish_draft
  from fastdec.kernels.packed import pack
  from fastdec.kernels.quantized import quantize
  from fastdec.laws.constraint import Constraint
  from fastdec.laws.processors import Processors
  from fastdec.models.ensemble import Ensemble
  from fastdec.text.generated import Generated
  from fastdec.text.generator import Generator
  from fastdec.text.load import load, load_draft, load_heads, load_tokenizer, load_tuned, save_heads
  from fastdec.text.trace import Trace, replay, trace
  from fastdec.tuning.tune import tune
  from fastdec.tuning.tuned import Tuned

__version__ = '0.2.0'  # pyproject.toml reads it here

# The module of each public name, which is imported when the name is first used.
MODULES = {
  'PowerPenalty': 'fastdec.decoding.beam.penalties',
  'Beam': 'fastdec.decoding.beam.search',
  'decode': 'fastdec.decoding.decode',
  'stream': 'fastdec.decoding.decode',
  'BlockDraft': 'fastdec.decoding.methods.block',
  'Eagle': 'fastdec.decoding.methods.eagle',
  'Forced': 'fastdec.decoding.methods.forced',
  'LinearForecast': 'fastdec.decoding.methods.forecast',
  'fit_forecast': 'fastdec.decoding.methods.forecast',
  'Greedy': 'fastdec.decoding.methods.greedy',
  'Sample': 'fastdec.decoding.methods.greedy',
  'Blockwise': 'fastdec.decoding.methods.heads',
  'Medusa': 'fastdec.decoding.methods.heads',
  'Jacobi': 'fastdec.decoding.methods.jacobi',
  'Lookahead': 'fastdec.decoding.methods.lookahead',
  'PromptLookup': 'fastdec.decoding.methods.lookup',
  'Speculative': 'fastdec.decoding.methods.speculative',
  'medusa_choices': 'fastdec.decoding.methods.trees',
  'BlockwiseTwoCalls': 'fastdec.decoding.methods.two_calls',
  'Union': 'fastdec.decoding.methods.union',
  'decode_all': 'fastdec.decoding.pool',
  'decode_each': 'fastdec.decoding.pool',
  'Decoded': 'fastdec.decoding.protocol',
  'Noted': 'fastdec.decoding.protocol',
  'Distance': 'fastdec.decoding.rules.matching',
  'Exact': 'fastdec.decoding.rules.matching',
  'MinBlock': 'fastdec.decoding.rules.matching',
  'TopN': 'fastdec.decoding.rules.matching',
  'BlockVerification': 'fastdec.decoding.rules.rejection',
  'Rejection': 'fastdec.decoding.rules.rejection',
  'Typical': 'fastdec.decoding.rules.typical',
  'Sampling': 'fastdec.decoding.sampling',
  'score': 'fastdec.decoding.score',
  'Topology': 'fastdec.decoding.topology',
  'UserError': 'fastdec.errors',
  'UserNote': 'fastdec.errors',
  'save': 'fastdec.folders',
  'publish_draft': 'fastdec.hub.published',
  'save_draft': 'fastdec.folders',
  'load_pool': 'fastdec.folders.pools',
  'save_pool': 'fastdec.folders.pools',
  'NGramPool': 'fastdec.heads.ngram_pool',
  'build_pool': 'fastdec.heads.ngram_pool',
  'shortlist': 'fastdec.heads.shortlist',
  'pack': 'fastdec.kernels.packed',
  'quantize': 'fastdec.kernels.quantized',
  'Constraint': 'fastdec.laws.constraint',
  'Processors': 'fastdec.laws.processors',
  'Ensemble': 'fastdec.models.ensemble',
  'Generated': 'fastdec.text.generated',
  'Generator': 'fastdec.text.generator',
  'load': 'fastdec.text.load',
  'load_draft': 'fastdec.text.load',
  'load_heads': 'fastdec.text.load',
  'load_tokenizer': 'fastdec.text.load',
  'load_tuned': 'fastdec.text.load',
  'save_heads': 'fastdec.text.load',
  'Trace': 'fastdec.text.trace',
  'replay': 'fastdec.text.trace',
  'trace': 'fastdec.text.trace',
  'tune': 'fastdec.tuning.tune',
  'Tuned': 'fastdec.tuning.tuned',
}
SUBMODULES = {'protocol': 'fastdec.protocol', 'theory': 'fastdec.decoding.theory'}


def __getattr__(name: str) -> Any:
  if name in SUBMODULES:
    value = importlib.import_module(SUBMODULES[name])
  elif name in MODULES:
    value = getattr(importlib.import_module(MODULES[name]), name)
  else:
    raise AttributeError(f'module fastdec has no attribute {name!r}')
  globals()[name] = value
  return value


def __dir__() -> list[str]:
  return sorted({*globals(), *__all__})


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
  'Sampling',
  'Speculative',
  'TopN',
  'Topology',
  'Trace',
  'Tuned',
  'Typical',
  'Union',
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
  'publish_draft',
  'quantize',
  'replay',
  'save',
  'save_draft',
  'save_heads',
  'save_pool',
  'score',
  'shortlist',
  'stream',
  'theory',
  'trace',
  'tune',
]
