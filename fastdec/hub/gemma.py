"""Gemma 2 and the text models of Gemma 3: rows of `lm_families`, with two differences.

Embeddings are multiplied by sqrt(d_model), and the scales of norms are stored minus 1.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from fastdec.folders.stored import scales_plus_one
from fastdec.hub import llama
from fastdec.models.api import Params
from fastdec.models.lm import LM

MODEL_TYPES = {name: llama.LM_ROWS[name].models for name in ('gemma2', 'gemma3_text')}
OVERFLOWS = ('float16',)


def model_of(config: Mapping[str, Any], generation: Mapping[str, Any], dtype: str) -> LM:
  """See `llama.model_of`."""
  c = llama.model_of(config, generation, dtype).config
  return LM(dataclasses.replace(c, embedding_scale=c.d_model**0.5))


def params_of(model: LM, tensors: Mapping[str, Any]) -> Params:
  """See `llama.params_of`."""
  return scales_plus_one(llama.params_of(model, tensors))
