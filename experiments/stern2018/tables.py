"""Tables 1 and 4 of Stern et al. 2018 and their pictures, from rows, with the paper's figures."""

import collections
import dataclasses
import itertools
import pathlib
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from experiments.lab.report import MISSING, Column, Drawn, Table, between, text
from experiments.lab.rows import Row, is_failure, latest
from experiments.lab.train import TUNED
from fastdec.evaluation import drawing
from fastdec.evaluation.drawing import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION, Style

KEY = 'k', 'regime', 'rule'  # fields that name a row of one split
UNTRAINED = FORECAST, FITTED = 'forecast', 'fitted'  # image models that guess without heads
REGIMES = {
  'regular': 'Regular',
  'distil': 'Distillation',
  'finetune': 'Fine tuning',
  'both': 'Both',
  FORECAST: 'Forecast',
  FITTED: 'Forecast, fitted',
}
TREE = 'tree-32'  # the column of Table 1 that the paper does not have
CONDITIONS = 'bleu_signature', 'compound_bleu_signature', 'split', 'outputs', 'config', 'seed'
CONDITIONS += 'dtype', 'batch', 'device', 'processor', 'cpus', 'commit'
TABLE1_NOTE = (
  "BLEU / mean accepted block size; in parentheses or below, the paper's (WMT14 en-de,"
  ' newstest2013).'
)
TOP_N_NOTE = "† The paper's top-2 and top-3 figures are for Both, that is with distillation too."
ONE_FOR_EACH = 'the paper trains one for each k.'
OWN_NOTE = (
  'Heads, and in fine tuning also the base, are trained on what the base itself writes for the'
  ' training set; not in the paper.'
)
TREE_NOTE = (
  f'{TREE}: exact acceptance on a tree of 32 nodes, grown on the other split; not in the paper.'
)
SPEED_NOTE = (
  'One output at a time (batch 1), in turn with greedy decoding by the same model:'
  ' median ratio of rounds.'
)
ROWS_NOTES = (
  SPEED_NOTE,
  'In parentheses or below the speed-up, the least and the largest ratio of rounds.',
  'Same: outputs that are those of greedy decoding with the same model.',
)
TEXT_NOTE = (
  'min-n: at least n tokens a call (section 5.3). tree-n: exact acceptance on the best tree of at'
  ' most n nodes for these heads, as counted on what the model writes for sources of the other'
  ' split. The paper has no figures for either.'
)
HEADS_NOTE = (
  "Top-1: how often each head names what comes next, in people's texts or images of the dev set,"
  ' and in what the model itself writes, which is what it has to guess.'
)
TABLE4_NOTES = (
  "Ours: trained on distilled text, heads and base together. In parentheses or below, the paper's"
  ' Table 4: WMT14 en-de, newstest2014, rivals as it quotes them (NAT: not autoregressive, FT:'
  ' fine-tuned, NPD: best of s candidates).',
  'T2T BLEU: tokenised, compounds split, as Tensor2Tensor reports it.',
  'Rounds: the least and the largest speed-up of rounds.',
  SPEED_NOTE,
)

# --- the paper's figures

# Table 1: WMT14 English-German, newstest2013, BLEU / mean accepted block size. It has no figures
# for a minimum block size (section 5.3).
_TABLE = """
k   regular     distil      finetune    both        both,top-2  both,top-3
1   26.00/1.00  26.41/1.00  -           -           -           -
2   25.81/1.51  26.52/1.55  25.74/1.78  26.58/1.88  26.49/1.92  26.41/1.93
4   25.84/1.73  26.31/1.85  25.05/2.69  26.36/3.27  26.22/3.47  26.14/3.52
6   26.08/1.76  26.26/1.90  24.69/2.98  26.18/4.18  25.90/4.59  25.56/4.69
8   25.82/1.76  26.25/1.91  24.27/3.01  26.11/4.69  25.71/5.34  25.41/5.52
10  25.69/1.74  26.34/1.90  23.51/2.87  25.60/4.95  25.04/5.67  24.68/5.91
"""


def _parse(table: str) -> dict[tuple[int, str, str], tuple[float, float]]:
  (_, *columns), *rows = map(str.split, table.strip().splitlines())
  figures = {}
  for k, *entries in rows:
    for column, entry in zip(columns, entries, strict=True):
      regime, _, rule = column.partition(',')
      if entry != '-':
        bleu, block = entry.split('/')
        figures[int(k), regime, rule or 'exact'] = (float(bleu), float(block))
  return figures


PAPERS_TABLE1 = _parse(_TABLE)
PAPERS_BLOCKS = {key: block for key, (_, block) in PAPERS_TABLE1.items()}

# Table 4: newstest2014. k -> BLEU and wall-clock speed-up of a single sentence; trained on
# distilled data.
PAPERS_TABLE4 = {
  1: (29.11, 1.0),
  2: (28.95, 1.72),
  4: (28.54, 2.69),
  6: (28.11, 3.10),
  8: (27.88, 3.31),
  10: (27.40, 3.04),
}

# Rows of Table 4 that are other papers': BLEU in per cent, the speed-up where one was published.
RIVALS = {
  'Vaswani 2017, Transformer, beam 4': (28.4, None),
  'Gu 2018, Transformer, beam 1': (22.71, None),
  'Gu 2018, Transformer, beam 4': (23.45, None),
  'Gu 2018, NAT': (17.35, None),
  'Gu 2018, NAT + FT': (17.69, None),
  'Gu 2018, NAT + FT + NPD, s = 10': (18.66, None),
  'Gu 2018, NAT + FT + NPD, s = 100': (19.17, None),
  'Lee 2018, Transformer, beam 1': (23.77, 1.20),
  'Lee 2018, Transformer, beam 4': (24.57, 1.00),
  'Lee 2018, refinement, 1 iteration': (13.91, 11.39),
  'Lee 2018, refinement, 2 iterations': (16.95, 8.77),
  'Lee 2018, refinement, 5 iterations': (20.26, 3.11),
  'Lee 2018, refinement, 10 iterations': (21.61, 2.01),
  'Lee 2018, refinement, adaptive': (21.54, 2.39),
  'Kaiser 2018, latent': (19.8, None),
  'Kaiser 2018, latent, top 10': (21.0, None),
  'Kaiser 2018, latent, top 100': (22.5, None),
}

# Figure 4's points are not in the text, except the peaks: translation's (k = 8, block size 4.7,
# speed-up 3.3) agrees with Table 4's speed-ups at Table 1's block sizes, which are used here. k ->
# mean accepted block size and speed-up.
PAPERS_FIGURE4_IMAGES = {6: (5.3, 4.0)}
PAPERS_FIGURE4 = {1: (PAPERS_TABLE1[1, 'distil', 'exact'][1], PAPERS_TABLE4[1][1])}
for _k in (2, 4, 6, 8, 10):
  PAPERS_FIGURE4[_k] = PAPERS_TABLE1[_k, 'both', 'exact'][1], PAPERS_TABLE4[_k][1]


# --- columns and rows of several tables

Key = tuple[int, str, str]
K = Column('k', 'k', names_row=True)
TRAINING = Column('Training', lambda row: REGIMES[row['regime']], names_row=True)
RULE = Column('Rule', 'rule', names_row=True)
BLOCK = Column('Block', 'mean_block_size', '.2f')
SPEED_UP = Column(
  'Speed-up',
  lambda row: row.get('speedup') if row.get('mean_block_size') else None,  # else nothing is written
  '.2f',
  '×',
  beside=lambda row: between(row.get('spread')),
)
SAME = Column('Same %', 'same_as_greedy', '.1f', scale=100)


def by_key(rows: Iterable[Row]) -> dict[Key, Row]:
  """Returns the newest row of each k, regime and rule, without beam search, which is Table 4's."""
  newest = {}
  for row in latest(rows, *KEY):
    if not row['rule'].startswith('beam-'):
      newest[row['k'], row['regime'], row['rule']] = row
  return newest


def select_finished(rows: Iterable[Row]) -> list[Row]:
  """Returns the newest rows that have figures, by regime, k and rule."""

  def place(row: Row) -> tuple[Any, ...]:
    return list(REGIMES).index(row['regime']), row['k'], rank(row['rule'])

  return sorted(itertools.filterfalse(is_failure, by_key(rows).values()), key=place)


def rank(rule: str) -> tuple[bool, str, int]:
  """A rule's place: exact, distance-0, distance-2, min-2, min-3, top-2, top-3, tree-8."""
  name, _, number = rule.partition('-')
  return name != 'exact', name, int(number or 0)


def bleu_and_block(row: Row) -> str:
  """BLEU / mean accepted block size."""
  return f'{text(row.get("bleu"), ".2f")} / {text(row.get("mean_block_size"), ".2f")}'


def beside_the_papers(
  rows: Mapping[Key, Row],
  headings: Mapping[tuple[str, str], str],
  figure: Column,
  theirs: Callable[..., str],
) -> list[Column]:
  """Makes the columns of a table whose lines are values of k. For each regime and rule that has a
  heading there is our figure of these rows, with the paper's, which `theirs` returns."""
  columns = [Column('k', str, names_row=True)]
  for series, heading in headings.items():
    looks = {
      'beside': lambda k, series=series: theirs(k, *series),
      'cell': lambda k, series=series: rows.get((k, *series)),
    }
    columns.append(dataclasses.replace(figure, heading=heading, **looks))
  return columns


def rows_table(rows: Iterable[Row], quality: Sequence[Column], notes: Sequence[str]) -> Drawn:
  """Every finished row: its quality, blocks and speed."""
  columns = (K, TRAINING, RULE, *quality, BLOCK, SPEED_UP, SAME)
  return Table('Quality and speed', columns, (*ROWS_NOTES, *notes)).of(select_finished(rows))


def heads_table(rows: Iterable[Row]) -> Drawn:
  """Shares of right guesses of each head, for every finished model with heads."""
  shown = []
  for row in select_finished(rows):
    if row['rule'] == 'exact' and row.get('head_accuracy'):
      shown.append(row)
  return HEADS.of(shown)


def _top_1(heading: str, name: str) -> Column:
  """Accuracy of each head, per cent."""

  def write_shares(row: Row) -> str:
    shares = []
    for share in row.get(name) or ():
      shares.append(MISSING if share is None else f'{100 * share:.0f}')
    return ' '.join(shares)

  return Column(heading, write_shares)


HEADS = Table(
  'Heads',
  (
    K,
    TRAINING,
    _top_1('Top-1 % of p1 .. pk, dev set', 'head_accuracy'),
    _top_1('own outputs', 'own_accuracy'),
  ),
  (HEADS_NOTE,),
)


def heads_notes(rows: Iterable[Row]) -> list[str]:
  """Notes on extra inputs of heads, and on models that serve several k."""
  seen: set[str] = set()
  ks: dict[tuple[str, str], set[int]] = collections.defaultdict(set)
  for row in rows:
    if 'heads_see' in row:
      seen.add(row['heads_see'])
    # frozen heads for the largest k serve every k anyway
    if row['regime'] in TUNED and row.get('models'):
      ks[row['regime'], row['models']].add(row['k'])
  notes = []
  for one in sorted(seen):
    notes.append(f"Heads also see {one}; the paper's see only a hidden state.")
  for (regime, _), several in ks.items():
    if len(several) > 1:
      rows_of = f'{REGIMES[regime]}, k = {", ".join(map(str, sorted(several)))}'
      notes.append(f'One model, decoded with its first heads, makes {rows_of}; {ONE_FOR_EACH}')
  return notes


def own_note(rows: Iterable[Row]) -> list[str]:
  """A note where heads were trained on the base's own text, or images."""
  return [OWN_NOTE] if any(row.get('heads_text') == 'own' for row in rows) else []


# --- Table 1, and a table of all rows


def table1(rows: Sequence[Row], notes: Iterable[str] = ()) -> Drawn:
  """BLEU / mean accepted block size, by k and by regime, in the paper's layout; see `columns`."""
  cells = by_key(rows)
  headings, below = {}, [TABLE1_NOTE]
  for regime, rule in columns(cells):
    headings[regime, rule] = _name_column(regime, rule)
    if _is_footnoted(regime, rule):
      headings[regime, rule] += ' †'
      below.append(TOP_N_NOTE)
    if rule == TREE:
      below.append(TREE_NOTE)
  below = [*dict.fromkeys(below), *own_note(cells.values()), *heads_notes(cells.values()), *notes]
  figures = beside_the_papers(cells, headings, Column('', bleu_and_block), _of_table1)
  table = Table('Blockwise parallel decoding, Table 1', figures, below, CONDITIONS)
  return table.of(sorted({k for k, _, _ in cells}), cells=cells.values())


def columns(keys: Iterable[Key]) -> list[tuple[str, str]]:
  """(regime, rule) of the columns of Table 1.

  First the regimes that were run, with exact acceptance, in the paper's order. Then the last of
  them (Both in the paper) with top-n, and on the tree of 32 nodes, which the paper does not have.
  """
  rules: dict[str, set[str]] = collections.defaultdict(set)  # by regime
  for _, regime, rule in keys:
    rules[regime].add(rule)
  columns = []
  for regime in REGIMES:
    if regime in rules:
      columns.append((regime, 'exact'))
  if not columns:
    return columns

  last, _ = columns[-1]
  for rule in sorted(rules[last], key=rank):
    if (rule.startswith('top-') and last != 'regular') or rule == TREE:
      columns.append((last, rule))
  return columns


def _name_column(regime: str, rule: str) -> str:
  return REGIMES[regime] if rule == 'exact' else f'{REGIMES[regime]}, {rule}'


def _is_footnoted(regime: str, rule: str) -> bool:
  """Whether the paper's figures for this column come from a different training."""
  return regime == 'finetune' and rule.startswith('top-')


def _of_table1(k: int, regime: str, rule: str) -> str:
  """Writes the paper's figures for a cell of ours; '' if it has none."""
  if _is_footnoted(regime, rule):
    regime = 'both'
  if (k, regime, rule) not in PAPERS_TABLE1:
    return ''
  bleu, block = PAPERS_TABLE1[k, regime, rule]
  return f'({bleu:.2f} / {block:.2f})'


TEXT_QUALITY = (
  Column('BLEU', 'bleu', '.2f'),
  Column('Greedy ms', 'greedy_ms_per_output', '.1f'),
  Column('ms', 'ms_per_output', '.1f'),
)


def text_rows(rows: Iterable[Row]) -> Drawn:
  """Every row, with BLEU and milliseconds a sentence."""
  return rows_table(rows, TEXT_QUALITY, (TEXT_NOTE,))


TABLES = table1, text_rows, heads_table


# --- Table 4


def _published_at(place: int, form: str) -> Any:
  """Returns a function of a row of Table 4: its published BLEU (0) or speed-up (1), or ''."""

  def write_published(row: Row) -> str:
    if row['rule'] != 'exact' or row['k'] not in PAPERS_TABLE4:
      return ''
    return form.format(PAPERS_TABLE4[row['k']][place])

  return write_published


def _model(row: Row) -> str:
  if row['rule'] == 'exact':
    return f'Ours, greedy, k = {row["k"]}'
  return f'Ours, {row["rule"].replace("-", " ")}'


TABLE4 = Table(
  'Blockwise parallel decoding, Table 4',
  (
    Column('Model', _model, names_row=True),
    Column('sacreBLEU', 'bleu', '.2f'),
    Column('T2T BLEU', 'compound_bleu', '.2f', beside=_published_at(0, '({:.2f})')),
    Column('Speed-up', 'speedup', '.2f', '×', beside=_published_at(1, '({:.2f}×)')),
    Column('Rounds', lambda row: between(row.get('spread')).strip('()') or MISSING),
    BLOCK,
  ),
  TABLE4_NOTES,
  CONDITIONS,
  sort=lambda row: (row['rule'] == 'exact', row['k']),
)


def table4(rows: Sequence[Row], notes: Iterable[str] = ()) -> Drawn:
  """BLEU on the test set and speed-up of one sentence: published rivals, then every k of ours."""
  rivals = []
  for model, (bleu, ratio) in RIVALS.items():
    speedup = '' if ratio is None else f'({ratio:.2f}×)'
    rivals.append({'Model': model, 'T2T BLEU': f'({bleu:.2f})', 'Speed-up': speedup})
  distilled = []
  for row in latest(rows, *KEY):
    is_ours = row['rule'] == 'exact' or row['rule'].startswith('beam-')
    if is_ours and row['regime'] == ('distil' if row['k'] == 1 else 'both'):
      distilled.append(row)
  return TABLE4.of(distilled, above=rivals, notes=notes)


# --- the pictures

COLOURS = {  # a colour is a regime, ...
  'regular': BLUE,
  'distil': SKY,
  'finetune': VERMILION,
  'both': GREEN,
  FORECAST: ORANGE,
  FITTED: PURPLE,
}
MARKERS = {  # ... a marker and a line are a rule
  'exact': ('o', '-'),
  'top-2': ('^', '--'),
  'top-3': ('s', ':'),
  TREE: ('D', '-.'),
  'distance-2': ('^', '--'),
}
CAPTION = (
  "The paper's translation: speed-ups of Table 4 (newstest2014) at block sizes of Table 1"
  ' (newstest2013)'
)
Points = Mapping[Key, tuple[float, float]]  # k, regime, rule -> x, y


def style(regime: str, rule: str) -> Style:
  """The look of a regime and a rule in every picture."""
  return Style(COLOURS[regime], *MARKERS.get(rule, ('P', '-.')))


def scatter(rows: Iterable[Row], path: pathlib.Path) -> None:
  """Draws the columns of Table 1, BLEU against block size. A point is a row, its label k; lines
  join what differs in k only."""
  cells = by_key(rows)
  wanted = columns(cells)
  ours: dict[Key, tuple[float, float]] = {}
  for key, row in cells.items():
    bleu, block = row.get('bleu'), row.get('mean_block_size')
    is_shown = key[1:] in wanted and not is_failure(row)
    if is_shown and bleu is not None and block is not None:
      ours[key] = block, bleu
  theirs = {key: (block, bleu) for key, (bleu, block) in PAPERS_TABLE1.items()}
  figure, (left, right) = drawing.panels(2, sharex=True)
  drawing.dress(left, 'Ours', 'BLEU on our text')
  drawing.dress(right, 'Stern et al. 2018, Table 1', 'BLEU on WMT14, newstest2013')
  for axes, points in ((left, ours), (right, theirs)):
    series = {(rule, list(REGIMES).index(regime), regime) for _, regime, rule in points}
    names = {}
    for rule, _, regime in sorted(series):
      names[regime, rule] = _name_column(regime, rule)
    curves(axes, points, names)
    if points:
      axes.legend(loc='upper center', bbox_to_anchor=(0.5, -0.1), ncols=3, frameon=False)
    else:
      axes.set(yticks=())
  right.yaxis.tick_right()  # a separate axis: BLEU on another corpus is not comparable
  right.yaxis.set_label_position('right')
  right.spines[['left', 'right']].set_visible([False, True])
  for axes, points in ((left, ours), (right, theirs)):
    for (k, regime, _), point in points.items():
      drawing.name_point(axes, str(k), point, COLOURS[regime])
  drawing.save(figure, path)


def curves(axes: Axes, points: Points, names: Mapping[tuple[str, str], str]) -> None:
  """Draws a curve for each regime and rule, by its name, through its points in the order of k."""
  lines = collections.defaultdict(list)
  for (_, *column), point in sorted(points.items()):
    lines[tuple(column)].append(point)
  for column, name in names.items():
    drawing.curve(axes, lines[column], style(*column), name)
  if not points:
    drawing.mark_empty(axes)


FIGURE4 = {  # (regime, rule) of our series: translation, then images
  ('both', 'exact'): ('ours, translation', Style(GREEN, 'o', '-')),
  ('finetune', 'distance-2'): ('ours, images', Style(VERMILION, '^', '-')),
  (FORECAST, 'distance-2'): ('ours, images by forecast', Style(ORANGE, 'v', '-')),
  (FITTED, 'distance-2'): ('ours, images by a fitted forecast', Style(SKY, 'P', '-')),
}
THEIRS = (
  (PAPERS_FIGURE4, 'Stern et al. 2018, translation', Style(drawing.PUBLISHED, 's', '--')),
  (PAPERS_FIGURE4_IMAGES, 'Stern et al. 2018, images, the peak', Style(PURPLE, 'D', '')),
)


def figure4(rows: Iterable[Row], path: pathlib.Path) -> None:
  """Draws Figure 4, the speed-up against block size; a point is a k."""
  ours: dict[Any, dict[int, tuple[float, float]]] = collections.defaultdict(dict)
  for (k, *series), row in sorted(by_key(rows).items()):
    block, speedup = row.get('mean_block_size'), row.get('speedup')
    if block is not None and speedup is not None:
      ours[tuple(series)][k] = block, speedup
  figure, (axes,) = drawing.panels(1, width=8.0)
  drawing.dress(axes, '', drawing.SPEED)
  drawn: list[Any] = []
  for series, look in FIGURE4.items():
    drawn.append((ours[series], *look))
  for points, name, look in (*drawn, *THEIRS):
    if points:
      drawing.curve(axes, points.values(), look, name)
    for k, point in points.items():
      drawing.name_point(axes, f'k = {k}', point, look.colour)
  axes.axhline(1, color='black', linewidth=0.5, linestyle=':')
  axes.set_title(f'Blockwise parallel decoding, Figure 4\n{CAPTION}', fontsize=8)
  drawing.legend(figure, 2)
  drawing.save(figure, path)


# --- the worked example: which tokens each call of the model accepted

NAME, LINE = 14, 100  # characters: of a call's name, and of the source in a line
CHARACTER, ROW = 0.08, 0.27  # inches


def example_text(source: str, blocks: Sequence[Sequence[str]]) -> str:
  """A line for each call, with bars between tokens; the first line is the prompt's own token."""
  lines = [f'{"source":{NAME}}{source}']
  for i, block in enumerate(blocks):
    lines.append(f'{_name_call(i, block):{NAME}}{"|".join(block).lstrip()}')
  return '\n'.join(lines) + '\n'


def example_picture(source: str, blocks: Sequence[Sequence[str]], path: pathlib.Path) -> None:
  """Draws the same: a row for each call, a box for each token, a colour for each call."""
  # The picture is as wide as the longest line of the source or row of boxes.
  lines = textwrap.wrap(source, LINE) or ['']
  longest, height = float(max(map(len, lines))), len(lines) + len(blocks)
  for block in blocks:
    longest = max(longest, len(''.join(block)) + 1.5 * len(block))
  width = NAME + longest + 1
  figure = Figure((width * CHARACTER, (height + 0.5) * ROW), drawing.DPI)
  axes = figure.add_axes((0, 0, 1, 1), xlim=(-1, width), ylim=(height, -0.75))
  axes.axis('off')
  look: Any = {'fontsize': 9, 'family': 'monospace', 'va': 'center', 'parse_math': False}
  for y, line in enumerate(lines):
    axes.text(NAME, y, line, color='#444444', **look)
  for i, block in enumerate(blocks):
    x, y, colour = float(NAME), len(lines) + i, drawing.COLOURS[i % len(drawing.COLOURS)]
    axes.text(0, y, _name_call(i, block), color=colour, **look)
    for token in block:
      box: Any = {'facecolor': colour, 'alpha': 0.25, 'edgecolor': colour}
      axes.add_patch(Rectangle((x, y - 0.4), len(token) + 1, 0.8, **box))
      axes.text(x + (len(token) + 1) / 2, y, token.strip(), ha='center', **look)
      x += len(token) + 1.5
  drawing.save(figure, path)


def _name_call(i: int, block: Sequence[str]) -> str:
  return f'call {i} ({len(block)})' if i else 'prompt'
