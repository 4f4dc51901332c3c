"""Strategies by the flags of `experiments.generate` and what they name."""

from typing import Any

import fastdec as fd
from experiments.tools.generation_settings import Settings
from fastdec.decoding.description import parse
from fastdec.decoding.methods.eagle import WIDTH
from fastdec.decoding.rules.matching import Exact
from fastdec.heads.block import BlockNetwork

DRAFTED, COPIED = 4, 9  # tokens a call, by a draft model and by lookup
TREE = 'mc_sim_7b_63'  # of Medusa's heads, as deep as there are any
GUESSED = 7  # in a row by an autoregressive draft network


def strategy_of(
  settings: Settings, draft: Any, heads: Any, network: Any = None, pool: fd.NGramPool | None = None
) -> Any:
  """Makes the strategy of some flags. Draft, heads, network and pool are None if not given."""
  if settings.strategy is not None:
    return parse(settings.strategy, draft or heads or network)
  law = {'temperature': settings.temperature, 'top_k': settings.top_k, 'top_p': settings.top_p}
  if draft is not None:
    # `check_same_ids`
    return fd.Speculative(draft=draft, gamma=settings.gamma or DRAFTED, same_ids=True, **law)
  if network is not None and isinstance(network[0], BlockNetwork):
    return fd.BlockDraft(
      network, None if settings.gamma is None else settings.gamma + 1, settings.nodes, **law
    )
  if network is not None:
    width = 1 if settings.nodes is None else WIDTH
    return fd.Eagle(network, settings.gamma or GUESSED, width, settings.nodes, **law)
  if settings.lookup:
    return fd.PromptLookup(k=(settings.gamma or COPIED) + 1, pool=pool, **law)
  if settings.lookahead:
    return fd.Lookahead(pool=pool, **law, **({} if pool is None else {'ngram': pool.ngram}))
  if settings.medusa is not None:
    whole = fd.medusa_choices(TREE)
    choices = (
      [path for path in whole if len(path) <= heads[0].depth]
      if settings.choices is None
      else settings.choices
    )
    return fd.Medusa(
      heads,
      choices,
      fd.Typical(temperature=settings.temperature) if settings.temperature else Exact(),
    )
  if heads is not None:
    rule = settings.sampling if settings.temperature else Exact()
    return fd.Blockwise(heads, None if settings.gamma is None else settings.gamma + 1, rule)
  return settings.plain
