"""Checks a draft network against its model before it drafts: the share of its first guesses that
the model writes too."""

import math

import numpy as np
from rich.console import Console

import fastdec as fd
from experiments.tools.generation import Generator
from fastdec.evaluation.draft_check import TOKENS, check_draft


def say(console: Console, generator: Generator, prompt: str) -> None:
  """Prints how often the draft network is right behind this prompt; a warning names the causes
  where that is seldom."""
  strategy = generator.strategy
  if not isinstance(strategy, fd.Eagle | fd.BlockDraft):
    return  # nothing to check
  ids, limit = generator.ids(prompt), generator.model.max_positions
  before = 1 if generator.is_translator else len(ids)
  room = TOKENS if limit is None else min(TOKENS, limit - before + 1)
  inputs = np.array([ids], np.int32)
  share = check_draft(generator.model, generator.params, tuple(strategy.draft), inputs, tokens=room)
  if math.isnan(share):
    said = 'what the model writes behind this prompt is too short to judge it by'
  else:
    said = f'{share:.0%} of its first guesses are what the model writes'
  name = generator.settings.draft_head or 'as tuned'
  console.print(f'draft head {name}: {said}', style='dim')
