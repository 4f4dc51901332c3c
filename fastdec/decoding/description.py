"""Strategies in words, as they are written in Python: `Speculative(gamma=4, same_ids=True)`.

`describe` writes them and `parse` reads them, for `tuned.json` and for command lines. Heads and
drafts are not in the words: they are loaded from their folders and passed to `parse`. `parse`
executes nothing and opens no file.
"""

import ast
import dataclasses
from collections.abc import Sequence
from typing import Any, get_args

import jax
import numpy as np

from fastdec.decoding.methods.adaptive import Adaptive
from fastdec.decoding.methods.block import BlockDraft
from fastdec.decoding.methods.coupled_jacobi import CoupledJacobi
from fastdec.decoding.methods.eagle import Eagle
from fastdec.decoding.methods.early_exit import EarlyExit
from fastdec.decoding.methods.forced import Forced
from fastdec.decoding.methods.forecast import LinearForecast
from fastdec.decoding.methods.greedy import Greedy, Sample
from fastdec.decoding.methods.heads import Blockwise, Medusa
from fastdec.decoding.methods.jacobi import Jacobi
from fastdec.decoding.methods.lookahead import Lookahead
from fastdec.decoding.methods.lookup import PromptLookup
from fastdec.decoding.methods.speculative import Speculative
from fastdec.decoding.methods.suffix import Suffix
from fastdec.decoding.methods.trees import PUBLISHED, static_tree
from fastdec.decoding.methods.two_calls import BlockwiseTwoCalls
from fastdec.decoding.methods.union import Union
from fastdec.decoding.rules.matching import Distance, Exact, MinBlock, TopN
from fastdec.decoding.rules.recursive import RecursiveRejection, Siblings
from fastdec.decoding.rules.rejection import BlockVerification, Rejection
from fastdec.decoding.rules.traversal import Traversal
from fastdec.decoding.rules.typical import Typical
from fastdec.decoding.rules.univer import UniVer
from fastdec.decoding.sampling import SETTINGS, Sampling
from fastdec.decoding.strategy import Combined, LoopStrategy
from fastdec.decoding.topology import Topology
from fastdec.errors import UserError
from fastdec.fields import list_known, quote

# The order matters: if several draft with the same kind of module, the first is the usual one.
STRATEGIES = (
  Greedy,
  Sample,
  Medusa,
  Blockwise,
  BlockwiseTwoCalls,
  Speculative,
  PromptLookup,
  Suffix,
  Lookahead,
  Jacobi,
  CoupledJacobi,
  EarlyExit,
  Forced,
  Eagle,
  BlockDraft,
  LinearForecast,
  Union,
  Adaptive,
)
PARTS = tuple(kind for kind in STRATEGIES if kind.joins)
TREE_RULES = (RecursiveRejection, Traversal, UniVer)  # for drawn trees
RULES = (Exact, TopN, Distance, MinBlock, Typical, Rejection, BlockVerification, *TREE_RULES)
ARRAYS = ('pool', 'weights')  # settings that are arrays, which cannot be written in words
LONGEST = 65_536  # characters of a description: enough for a tree with MOST_NODES nodes


def describe(strategy: Any) -> str:
  """Writes a strategy with all its settings except heads or draft, as `parse` reads it.

  >>> describe(PromptLookup(k=5))
  'PromptLookup(ngram=3, k=5)'

  Raises:
    UserError: a strategy, rule or setting that is not fastdec's own, or a pool or weights.
  """
  if type(strategy) not in STRATEGIES:
    kind = type(strategy).__name__
    raise UserError(f'{kind} cannot be described: {list_known(one.__name__ for one in STRATEGIES)}')
  drafters = strategy.strategies if isinstance(strategy, Combined) else []
  for one in (strategy, *drafters):
    for name in ARRAYS:
      if getattr(one, name, None) is not None:
        raise UserError(f'a {name} cannot be described: leave it out, and give it again')
  return _write(strategy, is_label=False)


def label(strategy: Any) -> str:
  """Names a strategy for tables, with the settings that are not defaults, and a tree's size.

  >>> label(PromptLookup(k=5)), label(Greedy())
  ('PromptLookup(k=5)', 'Greedy')
  >>> label(PromptLookup(k=5, sampling=Sampling(0.5)))
  'PromptLookup(k=5, temperature=0.5)'
  """
  return _write(strategy, is_label=True).removesuffix('()')


def parse(text: str, part: Any = None) -> Any:
  """Reads the strategy that a text describes.

  Case and underscores do not matter in names, and a name without settings needs no parentheses:
  'prompt_lookup', 'eagle(depth=7, width=8, nodes=32)', 'Blockwise(k=4, rule=TopN(n=2))'. Settings
  of `Sampling` are written with the strategy's own: 'speculative(gamma=4, temperature=0.8)'. The
  two drafters of a union come first: 'union(prompt_lookup(k=6), eagle(depth=5), temperature=0.8)'.

  Args:
    text: a name, and settings that are literals or rules.
    part: (module, params) of the heads or the draft, for a strategy that needs one.

  Raises:
    UserError: the text does not describe a strategy, or the part is missing or does not fit it.
  """
  if len(text) > LONGEST:
    raise UserError(f'{quote(text)} is not a strategy: give at most {LONGEST} characters')
  try:
    node = ast.parse(text.strip(), mode='eval').body
  except (SyntaxError, ValueError, RecursionError, MemoryError):
    raise UserError(
      f'{quote(text)} is not a strategy: write one as in Python, such as Speculative(gamma=4)'
    ) from None
  return _read_strategy(node, STRATEGIES, 'strategy', part)


def _read_strategy(node: ast.AST, kinds: Sequence[Any], what: str, part: Any) -> Any:
  """Reads a strategy of one of these kinds."""
  kind, settings = _read_call(node, kinds, what)
  if issubclass(kind, Combined):
    drafters = node.args if isinstance(node, ast.Call) else []
    if len(drafters) != len(kind.parts):
      raise UserError(f'{kind.__name__} takes {kind.example}')
    parts = [_read_strategy(one, PARTS, f'part of {kind.__name__}', part) for one in drafters]
    return kind(*parts, **settings)
  if not kind.part:
    return kind(**settings)
  if part is None:
    remedy = 'give their folder too, or the strategy as an object'
    raise UserError(f'{kind.__name__} drafts with {kind.part}: {remedy}')
  return kind(**settings, **{kind.part: part})


def usual_for(part: tuple[Any, Any] | None) -> Any:
  """Returns the usual strategy for (module, params) of heads or a draft; None: greedy decoding."""
  if part is None:
    return Greedy()
  module, _ = part
  for kind in STRATEGIES:
    if kind.drafts_for is not None and isinstance(module, kind.drafts_for):
      return kind.usual(part)
  raise UserError(
    f'{type(module).__name__} is not a known kind of heads or draft: give the strategy too'
  )


def _read_call(node: ast.AST, kinds: Sequence[Any], what: str) -> tuple[Any, dict[str, Any]]:
  """Reads a class and its settings."""
  name, keywords = (node.func, node.keywords) if isinstance(node, ast.Call) else (node, [])
  word = name.id if isinstance(name, ast.Name) else ''
  by_word = {one.__name__.lower(): one for one in kinds}
  kind = by_word.get(word.replace('_', '').lower())
  if kind is None:
    raise UserError(f'{quote(word)} is not a {what}: {list_known(one.__name__ for one in kinds)}')

  # Its settings, and those of `Sampling` if it can draw
  fields = _settings_of(kind)
  draws = 'sampling' in {field.name for field in dataclasses.fields(kind)}
  names = [*fields, *SETTINGS] if draws else list(fields)
  if isinstance(node, ast.Call) and node.args and not issubclass(kind, Combined):
    raise UserError(f'{kind.__name__} takes its settings by name: {list_known(names)}')
  settings, drawing = {}, {}
  for keyword in keywords:
    value_name = f'{kind.__name__}: {keyword.arg}'
    if keyword.arg in settings or keyword.arg in drawing:
      raise UserError(f'{value_name} is given twice: give it once')
    if keyword.arg not in names:
      raise UserError(f'{kind.__name__} has no setting {quote(keyword.arg)}: {list_known(names)}')
    value = _read_value(value_name, keyword.value)
    if keyword.arg not in fields:
      drawing[keyword.arg] = value
      continue
    is_flag = isinstance(fields[keyword.arg].default, bool)
    if is_flag and type(value) is not bool:
      raise UserError(f'{value_name} is not possible: give True or False')
    settings[keyword.arg] = value
  if drawing:
    settings['sampling'] = Sampling(**drawing)
  for name, field in fields.items():
    if field.default is dataclasses.MISSING and name not in settings:
      raise UserError(f'{kind.__name__} needs {name}: {list_known(names)}')
  return kind, settings


def _read_value(name: str, node: ast.expr) -> Any:
  """Reads a setting: a rule, a number, None, a bool, a tree or the name of a published one."""
  if isinstance(node, ast.Call | ast.Name):
    rule, settings = _read_call(node, RULES, 'rule')
    return rule(**settings)
  try:
    value = ast.literal_eval(node)
  except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError):
    raise UserError(f'{name} is not possible: give a number, a rule or a tree') from None
  if isinstance(value, str) and value not in (*PUBLISHED, *get_args(Siblings)):
    raise UserError(f'{name}={quote(value)} is not a published tree: {list_known(PUBLISHED)}')
  if isinstance(value, list | tuple):
    return static_tree(value)
  if value is None or isinstance(value, bool | int | float | str | dict):
    return value
  raise UserError(f'{name}={quote(value)} is not possible: give a number, a rule or a tree')


def _settings_of(kind: Any) -> dict[str, Any]:
  """Returns the fields of a strategy or rule that are written as name=value."""
  others = (getattr(kind, 'part', ''), 'sampling', *ARRAYS, *getattr(kind, 'parts', ()))
  return {one.name: one for one in dataclasses.fields(kind) if one.init and one.name not in others}


def _write(value: Any, is_label: bool) -> str:
  """Writes a strategy, a rule or a setting."""
  kind = type(value).__name__
  is_users = is_label and isinstance(value, LoopStrategy) and dataclasses.is_dataclass(value)
  if type(value) in (*STRATEGIES, *RULES) or is_users:
    words = []
    if isinstance(value, Combined):
      words += [_write(one, is_label) for one in value.strategies]

    # Settings with their defaults, those of `Sampling` included; a label leaves defaults out.
    settings = {}
    for name, field in _settings_of(type(value)).items():
      settings[name] = (getattr(value, name), field.default)
    sampling = getattr(value, 'sampling', None)
    if sampling is not None:
      for name, default in vars(Sampling()).items():
        settings[name] = (getattr(sampling, name), default)
    for name, (setting, default) in settings.items():
      word = _write(setting, is_label)
      if not (is_label and word == _write(default, is_label)):
        words.append(f'{name}={word}')
    return f'{kind}({", ".join(words)})'

  if isinstance(value, Topology):
    if is_label:
      return f'[{value.n} nodes]'
    # The paths of ranks from which `Topology.from_choices` makes this static tree
    paths: list[list[int]] = [[]]
    for parent, rank in zip(value.parents[1:].tolist(), value.ranks[1:].tolist(), strict=True):
      paths.append([*paths[parent], rank])
    return repr(paths[1:])
  if isinstance(value, jax.Array | np.generic | np.ndarray) and not value.ndim:
    # The shortest number that is the same in float32: 0.8, not 0.800000011920929
    return str(np.asarray(value)) if value.dtype.kind == 'f' else str(value.item())
  if isinstance(value, tuple):
    return repr(dict(value))  # of widths and their costs
  if value is None or isinstance(value, bool | int | float | str):
    return repr(value)
  if is_label:
    return kind
  raise UserError(f'{kind} cannot be described: {list_known(one.__name__ for one in RULES)}')
