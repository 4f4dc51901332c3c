"""Spec-Bench (Xia et al. 2024), from the top: strategies against one token a call, by category.

`specbench` is the page. A row (`figures`) is one strategy at one temperature, with some questions
answered at once. Only the first turn of a question is used.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

import fastdec as fd
from experiments.lab import report
from experiments.lab.compare import Comparison, count_all, join_texts
from experiments.lab.report import Column, Table
from experiments.lab.rows import Row
from experiments.lab.workdir import Workdir
from fastdec import folders
from fastdec.cli import opening, prompts
from fastdec.decoding.description import describe
from fastdec.decoding.inputs import make_row_keys
from fastdec.decoding.protocol import promise_of
from fastdec.decoding.strategy import with_settings
from fastdec.evaluation.acceptance import accepted_by_place, tokens_per_call
from fastdec.evaluation.wallclock import Timing, measure
from fastdec.struct import Bound
from fastdec.text import programs
from fastdec.text.drafting import load_checked_draft, make_strategy
from fastdec.text.load import choose_draft_type, is_draft, open_folder
from fastdec.training.stage import digest

SUMMARY = '{strategy}, temperature {temperature:g}, batch {batch}: {tokens:.2f} tokens a call'
WITHOUT_DRAFT = 'greedy', 'prompt_lookup', 'lookahead'
load = functools.cache(fd.load)  # the model is read once for all rows


@dataclasses.dataclass(frozen=True)
class SpecBench:
  """Settings of the page."""

  model: str
  files: Sequence[str]  # of questions
  draft: str | None = None
  strategies: Sequence[str] = ()  # in words; (): without a draft, and of the draft
  temperatures: Sequence[float] = (0.0, 1.0)
  batches: Sequence[int] = (1,)  # questions at once
  texts: int = 10  # of each category; 0: all
  max_len: int = 128
  chat: bool | None = None  # asks in the model's chat template; None: if it has one
  dtype: str | None = None
  repeats: int = 3  # of timing; 0: nothing is timed


def specbench(c: SpecBench, work: Workdir) -> None:
  """Makes the page. Mistakes show before the model's weights are read."""
  # Read the questions, in the model's chat template.
  is_chat = opening.has_chat_template(c.model) if c.chat is None else c.chat
  categories, texts = zip(*prompts.read_questions(c.files, c.texts), strict=True)
  texts = [*prompts.wrap_in_chats(texts, is_chat, None, is_chat)]
  reader = opening.open_without_weights(c.model, c.dtype, texts, c.max_len, 'question')
  ids, content = [reader.read(one)[0] for one in texts], folders.content(c.model)

  # Make the strategies, by their descriptions and temperatures.
  part, model, of_draft = None, reader.model, None
  if c.draft is not None:
    of_draft = choose_draft_type(open_folder(c.model, c.dtype), c.dtype)
    part = load_checked_draft(c.draft, of_draft, None, model, reader.tokenizer)
    content += (folders.draft_content if is_draft(c.draft) else folders.content)(c.draft)
  found = [make_strategy(words, part, model) for words in c.strategies or WITHOUT_DRAFT]
  if part is not None and not c.strategies:  # a chain and two trees
    usual = make_strategy(None, part, model)
    found += [usual, *[one for one in usual.sizes() if one.drafts_trees][:2]]
  strategies: dict[tuple[str, float], Any] = {}
  for one in found:
    for temperature in c.temperatures:
      settings = {'temperature': temperature} if temperature or one.sampling else {}
      strategies[describe(one), temperature] = with_settings(one, settings)

  # Measure the rows that are missing.
  same = {'max_len': c.max_len, 'repeats': c.repeats, 'models': content}
  same['dtype'] = c.dtype or str(model.config.dtype)
  same['draft_dtype'] = of_draft  # None: its own
  same['questions'] = digest({'categories': categories, 'ids': ids})
  keys = []
  for batch in c.batches:
    for words, temperature in strategies:
      keys.append({'strategy': words, 'temperature': temperature, 'batch': batch, **same})
  programs.keep()
  measured = functools.partial(figures, c, [*zip(categories, ids, strict=True)], strategies)
  rows = work.fill(keys, measured, lambda row: SUMMARY.format(**row))
  report.write(work, 'specbench', tables(rows))


def figures(c: SpecBench, questions: list[Any], strategies: dict[Any, Any], key: Row) -> Row:
  """Measures a row: a strategy's answers to questions, which are categories and ids."""
  strategy = strategies[key['strategy'], key['temperature']]
  plain = fd.Greedy().with_sampling(strategy.sampling)
  model, params = load(c.model, c.dtype, pack='auto')

  # Batches of questions, shortest first; the last may be smaller.
  categories, ids = zip(*questions, strict=True)
  keys, batches = make_row_keys(jax.random.key(0), len(ids)), []
  order = np.argsort([*map(len, ids)], kind='stable')
  for rows in np.split(order, range(key['batch'], len(order), key['batch'])):
    batches.append(([ids[i] for i in rows], keys[rows] if strategy.sampling else None))

  # Count the tokens of calls, the accepted drafts, and the answers that are greedy decoding's.
  comparison = Comparison(Bound(model, params), strategy, plain, batches, c.max_len)
  is_exact = promise_of(strategy.effective_rule) == 'exact'
  row = count_all(comparison, key['dtype'] if is_exact else None)
  written, places = join_texts(comparison.ours), np.array(categories)[order]
  row['accepted'] = accepted_by_place(written, strategy.most_accepted)
  row['interval'], row['categories'] = tokens_per_call(written), {}
  for name in dict.fromkeys(categories):
    row['categories'][name] = tokens_per_call(written, places == name)

  # Time both in turn, and what comes before their first tokens.
  if c.repeats:
    functions = {}
    for name, one in (('ours', strategy), ('plain', plain)):
      functions[name] = functools.partial(comparison.decode, one)
      functions[f'{name} first'] = lambda prompts, keys, one=one: next(
        fd.stream(model, params, prompts, one, max_len=c.max_len, key=keys)
      )
    clock = measure(functions, c.repeats, batches)
    for name in ('ours', 'plain'):
      after = np.subtract(clock[name].seconds, clock[f'{name} first'].seconds)
      clock[f'{name} calls'] = Timing(tuple(after.tolist()), 0.0)
    row |= {'first_ms': clock['ours first'].milliseconds, **comparison.speed(clock)}
  jax.clear_caches()  # a process has room for the programs of a few rows
  return row


def tables(rows: Sequence[Row]) -> list[Any]:
  """Draws all strategies with their speeds, and their tokens a call by category."""
  columns, categories = [*NAMES], {}
  for row in rows:
    categories |= row['categories']
  for name in categories:
    columns.append(Column(name, lambda row, name=name: interval(row['categories'][name])))
  return [SPEEDS.of(rows), Table('Tokens a call by category', columns, NOTES[:1]).of(rows)]


def interval(figures: Sequence[Any]) -> str:
  """Writes tokens a call, followed by their interval."""
  return f'{report.text(figures[0], ".2f")} {report.between(figures[1:])}'.strip()


NAMES = (
  Column('Strategy', 'strategy', names_row=True),
  Column('T', 'temperature', 'g', names_row=True),
  Column('Batch', 'batch', names_row=True),
)
NOTES = (
  'Tokens: per call; in brackets the interval that holds 95 % of 1000 samples of the questions.',
  'Speed-up: compared with one token a call at the same temperature, in turn; in brackets the'
  ' slowest and fastest round. Calls only: after the first token. Accepted: the share of calls'
  ' whose first draft is accepted; the share of these whose second draft is; and so on.',
  "Same: answers that equal greedy decoding's. Margin: of logits, at most, where others differ.",
)
SPEEDS = Table(
  'Strategies compared with one token a call',
  (
    *NAMES,
    Column('Tokens', lambda row: interval(row['interval'])),
    report.SPEED_UP,
    report.CALLS_ONLY,
    Column('ms a token', 'ms_per_token', '.2f'),
    Column('First token, ms', 'first_ms', '.1f'),
    Column('Accepted', lambda row: ' '.join(report.text(x, '.2f') for x in row['accepted'][:5])),
    report.SAME,
    Column('Margin', 'largest_gap', '.2g'),
  ),
  NOTES,
  ('all_texts', 'draft_dtype', *report.MACHINE),
)
