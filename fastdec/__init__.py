"""Autoregressive models that write several tokens per call. This file lists all public names.

Each is imported when it is first used: a command's --help needs no JAX, and decoding needs nothing
that reads text or the folders of others.
"""
# ruff: noqa: F401

from typing import Any

from fastdec import lazy

__version__ = '0.2.0'  # pyproject.toml reads it here

with lazy.imports(globals()) as MODULES:
  from fastdec import protocol
  from fastdec.decoding import theory
  from fastdec.decoding.beam.penalties import PowerPenalty
  from fastdec.decoding.beam.search import Beam
  from fastdec.decoding.decode import decode, stream
  from fastdec.decoding.methods.adaptive import Adaptive
  from fastdec.decoding.methods.block import BlockDraft
  from fastdec.decoding.methods.coupled_jacobi import CoupledJacobi
  from fastdec.decoding.methods.eagle import Eagle
  from fastdec.decoding.methods.early_exit import EarlyExit
  from fastdec.decoding.methods.forced import Forced
  from fastdec.decoding.methods.forecast import LinearForecast, fit_forecast
  from fastdec.decoding.methods.greedy import Greedy, Sample
  from fastdec.decoding.methods.heads import Blockwise, Medusa
  from fastdec.decoding.methods.jacobi import Jacobi
  from fastdec.decoding.methods.lookahead import Lookahead
  from fastdec.decoding.methods.lookup import PromptLookup
  from fastdec.decoding.methods.speculative import Speculative
  from fastdec.decoding.methods.suffix import Suffix
  from fastdec.decoding.methods.trees import medusa_choices
  from fastdec.decoding.methods.two_calls import BlockwiseTwoCalls
  from fastdec.decoding.methods.union import Union
  from fastdec.decoding.pool import decode_all, decode_each
  from fastdec.decoding.protocol import Decoded, Noted
  from fastdec.decoding.rules.matching import Distance, Exact, MinBlock, TopN
  from fastdec.decoding.rules.recursive import RecursiveRejection
  from fastdec.decoding.rules.rejection import BlockVerification, Rejection
  from fastdec.decoding.rules.traversal import Traversal
  from fastdec.decoding.rules.typical import Typical
  from fastdec.decoding.rules.univer import UniVer
  from fastdec.decoding.sampling import Sampling
  from fastdec.decoding.score import score
  from fastdec.decoding.topology import Topology
  from fastdec.errors import UserError, UserNote
  from fastdec.folders import save, save_draft
  from fastdec.folders.pools import load_pool, save_pool
  from fastdec.heads.ngram_pool import NGramPool, build_pool
  from fastdec.heads.shortlist import shortlist
  from fastdec.hub.medusa import save_heads
  from fastdec.hub.published import publish_draft
  from fastdec.kernels.packed import pack
  from fastdec.kernels.quantized import quantize
  from fastdec.laws.constraint import Constraint
  from fastdec.laws.processors import Processors
  from fastdec.models.ensemble import Ensemble
  from fastdec.text.generated import Generated
  from fastdec.text.generator import Generator
  from fastdec.text.load import load, load_draft, load_heads, load_tokenizer, load_tuned
  from fastdec.text.trace import Trace, replay, trace
  from fastdec.tuning.tune import tune
  from fastdec.tuning.tuned import Tuned


def __getattr__(name: str) -> Any:
  return lazy.load(name, MODULES, globals())


def __dir__() -> list[str]:
  return sorted({*globals(), *MODULES})


__all__ = sorted(MODULES)  # pyright: ignore[reportUnsupportedDunderAll]
