"""Tables 1 and 4 of Stern et al. 2018 and their pictures, from rows; the paper's figures beside
ours."""

import collections
import functools
import pathlib
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import rich.console
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from experiments.lab import report
from experiments.lab.report import MISSING, Column, Drawn, Entry, Table, between, text
from experiments.lab.rows import Row, latest
from experiments.lab.train import TUNED
from experiments.stern2018 import published
from fastdec.errors import UserError
from fastdec.evaluation import drawing
from fastdec.evaluation.drawing import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION, Style
from fastdec.evaluation.labels import Label, place
from fastdec.files import write_text

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
MIN_NOTE = 'min n: at least n tokens a call (section 5.3); the paper gives no figures.'
ONE_FOR_EACH = 'the paper trains one for each k.'
OWN_NOTE = (
  'Regular and Fine tuning: heads trained on what the base itself writes for the training sources;'
  ' not in the paper.'
)
TREE_NOTE = (
  f'{TREE}: exact acceptance on a tree of 32 nodes, grown on another split; not in the paper.'
)
SPEED_NOTE = (
  'One output at a time (batch 1), in turn with greedy decoding by the same model:'
  ' median ratio of rounds.'
)
WALL_CLOCK_NOTES = (
  SPEED_NOTE,
  'In parentheses or below the speed-up, the least and the largest ratio of rounds.',
  'Same: outputs that are those of greedy decoding with the same model.',
  "Top-1: how often each head names the next token, of people's references on the dev set and of"
  " the model's own greedy text, which is what it has to guess.",
)
TREES_NOTES = (
  'Chain / tree: exact acceptance by the same heads. The tree is the best one for those heads of at'
  ' most this many nodes, the root included, as counted on what the model writes for sources of'
  ' another split.',
  'Each tree is compared with the longest measured chain on the same heads that has no more nodes'
  ' than the tree; a dash if there is none. A chain has at most k nodes, so wider calls cannot help'
  ' it.',
  SPEED_NOTE,
  'In parentheses or below, the least and the largest of the tree. Same: outputs of the tree that'
  ' are those of greedy decoding.',
)
TABLE4_NOTES = (
  "Ours: trained on distilled text, heads and base together. In parentheses or below, the paper's"
  ' Table 4: WMT14 en-de, newstest2014, rivals as it quotes them (NAT: not autoregressive, FT:'
  ' fine-tuned, NPD: best of s candidates).',
  'T2T BLEU: tokenised, compounds split, as Tensor2Tensor reports it.',
  'Rounds: the least and the largest speed-up of rounds.',
  SPEED_NOTE,
)
BESIDE_NOTE = (
  'BLEU / mean accepted block size / outputs that are those of greedy decoding by the same model,'
  ' per cent; with exact acceptance.'
)


# --- what the tables have in common

Key = tuple[int, str, str]
K = Column('k', 'k', names_row=True)
TRAINING = Column('Training', lambda row: REGIMES[row['regime']], names_row=True)
SPEED_UP = Column('Speed-up', 'speedup', '.2f', '×', beside=lambda row: between(row.get('spread')))
SAME = Column('Same %', 'same_as_greedy', '.1f', scale=100)


def by_key(rows: Iterable[Row]) -> dict[Key, Row]:
  """The newest row of each k, regime and rule, without beam search, which is Table 4's."""
  found = {(row['k'], row['regime'], row['rule']): row for row in latest(rows, *KEY)}
  return {key: row for key, row in found.items() if not key[2].startswith('beam-')}


def finished(rows: Iterable[Row]) -> list[Row]:
  """The newest rows that have figures, by regime, k and rule."""
  found = [row for row in by_key(rows).values() if row.get('error') is None]
  order = list(REGIMES)
  return sorted(found, key=lambda row: (order.index(row['regime']), row['k'], rank(row['rule'])))


def rank(rule: str) -> tuple[bool, str, int]:
  """A rule's place: exact, distance-0, distance-2, min-2, min-3, top-2, top-3, tree-8."""
  name, _, number = rule.partition('-')
  return name != 'exact', name, int(number or 0)


def regimes(keys: Iterable[Key]) -> list[str]:
  """Regimes that were run, in the paper's order."""
  run = {regime for _, regime, _ in keys}
  return [regime for regime in REGIMES if regime in run]


def bleu_and_block(row: Row) -> str:
  """BLEU / mean accepted block size."""
  return f'{text(row.get("bleu"), ".2f")} / {text(row.get("mean_block_size"), ".2f")}'


def top_1(heading: str, name: str) -> Column:
  """Accuracy of each head, per cent. It does not depend on the rule, so it stands with the
  exact one alone."""

  def shares(row: Row) -> str:
    accuracy = row.get(name) or () if row['rule'] == 'exact' else ()
    return ' '.join(text(None if one is None else 100 * one, '.0f') for one in accuracy)

  return Column(heading, shares)


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
  notes = [f"Heads see {one}, too; the paper's see a hidden state alone." for one in sorted(seen)]
  for (regime, _), several in ks.items():
    if len(several) > 1:
      what = f'{REGIMES[regime]}, k = {", ".join(map(str, sorted(several)))}'
      notes.append(f'One model, decoded with its first heads, is behind {what}; {ONE_FOR_EACH}')
  return notes


def own_note(rows: Iterable[Row], note: str = OWN_NOTE) -> list[str]:
  """A note where heads were trained on the base's own text, or images."""
  return [note] if any(row.get('heads_text') == 'own' for row in rows) else []


def write(
  path: pathlib.Path,
  console: rich.console.Console,
  tables: Sequence[Drawn],
  rows: Sequence[Row],
  picture: str,
  theirs: Mapping[Key, tuple[float | None, float]] = published.TABLE1,
) -> None:
  """Writes <path>.md, which shows a picture, and <path>.csv; prints the tables and their places."""
  drawn = [table for table in tables if table.rows]
  page = '\n'.join(map(report.markdown, drawn)) + f'\n![The same as a picture]({picture})\n'
  write_text(path.with_suffix('.md'), page)
  write_text(path.with_suffix('.csv'), as_csv(rows, theirs))
  for table in drawn:
    console.print(report.terminal(table))
  places = f'{path}.md, the picture {path.with_name(picture)}'
  console.print(f'\nThe table is {places}, every row a line of {path.parent}/results.jsonl')


def as_csv(
  rows: Iterable[Row], theirs: Mapping[Key, tuple[float | None, float]] = published.TABLE1
) -> str:
  """A line for each row, beside it the paper's figures, BLEU and mean accepted block size."""
  lines = []
  for row in latest(rows, *KEY):
    line = dict(row)
    for name in ('head_accuracy', 'own_accuracy'):
      line[name] = ' '.join(text(share, '.4f') for share in row.get(name) or ()) or None
    bleu, block = theirs.get((row['k'], row['regime'], row['rule']), (None, None))
    lines.append({**line, 'paper_bleu': bleu, 'paper_mean_block_size': block})
  return report.csv_text(lines, KEY)


# --- Table 1, and what the same models show beside it


class Line(NamedTuple):
  """Common fields of the rows of a line."""

  k: int
  rule: str = ''


def table1(rows: Sequence[Row], notes: Iterable[str] = ()) -> Drawn:
  """BLEU / mean accepted block size, by k and by regime, in the paper's layout; see `columns`."""
  found = by_key(rows)
  shown = columns(found)
  below = [TABLE1_NOTE]
  if any(_is_footnoted(*column) for column in shown):
    below.append(TOP_N_NOTE)
  if any(rule == TREE for _, rule in shown):
    below.append(TREE_NOTE)
  below += [*own_note(found.values()), *heads_notes(found.values()), *notes]
  figures = [_beside_the_papers(found, *column) for column in shown]
  table = Table('Blockwise parallel decoding, Table 1', (K, *figures), below, CONDITIONS)
  return table.of([Line(k) for k in sorted({k for k, _, _ in found})], cells=found.values())


def columns(keys: Iterable[Key]) -> list[tuple[str, str]]:
  """(regime, rule) of the columns of Table 1.

  First the regimes that were run, with exact acceptance, in the paper's order. Then the last of
  them with top-n, which in the paper is Both, and on the tree of 32 nodes, which it does not have.
  """
  keys = list(keys)
  run = regimes(keys)
  found = [(regime, 'exact') for regime in run]
  more = {rule for _, regime, rule in keys if regime == run[-1]}
  if run and run[-1] != 'regular':
    top = [rule for rule in more if rule.startswith('top-')]
    found += [(run[-1], rule) for rule in sorted(top, key=rank)]
  if TREE in more:
    found.append((run[-1], TREE))
  return found


def rules_table(rows: Sequence[Row]) -> Drawn:
  """BLEU / mean accepted block size of every rule that is not lossless, by k and regime."""
  found = by_key(rows)
  lines = set()
  for k, _, rule in found:
    if rule != 'exact' and not rule.startswith('tree-'):
      lines.add(Line(k, rule))
  label = Column('k, rule', lambda line: f'{line.k}, {line.rule.replace("-", " ")}', names_row=True)
  figures = [_beside_the_papers(found, regime) for regime in regimes(found)]
  notes = [TABLE1_NOTE]
  if any(line.rule.startswith('min-') for line in lines):
    notes.append(MIN_NOTE)
  notes += own_note(found.values())
  in_order = sorted(lines, key=lambda line: (rank(line.rule), line.k))
  return Table('Other rules of acceptance', (label, *figures), notes).of(in_order)


def _is_footnoted(regime: str, rule: str) -> bool:
  """Tells columns whose figures in the paper are of another way of training."""
  return regime == 'finetune' and rule.startswith('top-')


def _beside_the_papers(found: Mapping[Key, Row], regime: str, rule: str = '') -> Column:
  """A column of BLEU / mean accepted block size with Table 1's beside, of one rule or else of each
  line's own."""
  heading = REGIMES[regime] if rule in ('', 'exact') else f'{REGIMES[regime]}, {rule}'
  heading += ' †' * _is_footnoted(regime, rule)

  def ours(line: Line) -> Row | None:
    return found.get((line.k, regime, rule or line.rule))

  def theirs(line: Line) -> str:
    named = rule or line.rule
    key = line.k, 'both' if _is_footnoted(regime, named) else regime, named
    figures = published.TABLE1.get(key)
    return '' if figures is None else f'({figures[0]:.2f} / {figures[1]:.2f})'

  return Column(heading, bleu_and_block, beside=theirs, cell=ours)


TREES = Table(
  'Trees on blockwise heads',
  (
    K,
    TRAINING,
    Column('Nodes', 'nodes'),
    Column('Tokens a call', 'tokens'),
    Column('More %', 'more', '+.1f'),
    Column('ms', 'ms'),
    Column('Speed-up', 'speedups', beside=SPEED_UP.beside),
    SAME,
  ),
  TREES_NOTES,
)


def trees_table(rows: Sequence[Row]) -> Drawn:
  """Tokens a call and wall clock of every tree beside the chain that the same heads draft."""
  found, lines = finished(rows), []
  for tree in found:
    if not tree['rule'].startswith('tree-'):
      continue
    chain = _chain(tree, found) or {}
    both = functools.partial(_both, chain, tree)
    width = tree.get('tree_nodes', tree['rule'].removeprefix('tree-'))
    line = {'nodes': f'{chain.get("k", MISSING)} / {width}'}
    line |= {'tokens': both('mean_block_size', '.2f'), 'ms': both('ms_per_output', '.1f')}
    line['speedups'] = both('speedup', '.2f', '×')
    before, after = chain.get('mean_block_size'), tree.get('mean_block_size')
    lines.append({**tree, **line, 'more': 100 * (after / before - 1) if before and after else None})
  return TREES.of(lines)


def _both(chain: Row, tree: Row, name: str, form: str, unit: str = '') -> str:
  return ' / '.join(text(row.get(name), form, unit) for row in (chain, tree))


def _chain(tree: Row, rows: Iterable[Row]) -> Row | None:
  """The longest chain by the heads of a tree that is no wider than it; nested heads serve several
  k."""
  most = min(tree['k'], int(tree['rule'].removeprefix('tree-')))
  chains = []
  for row in rows:
    same = all(row.get(name) == tree.get(name) for name in ('regime', 'split', 'models'))
    if same and row['rule'] == 'exact' and 1 < row['k'] <= most:
      chains.append(row)
  return max(chains, key=lambda row: row['k'], default=None)


WALL_CLOCK = Table(
  'Wall clock and heads',
  (
    K,
    TRAINING,
    Column('Rule', 'rule', names_row=True),
    Column('Greedy ms', 'greedy_ms_per_output', '.1f'),
    Column('Block ms', 'ms_per_output', '.1f'),
    SPEED_UP,
    Column('Calls', 'calls_per_output', '.1f'),
    SAME,
    top_1('Top-1 % of p1 .. pk, references', 'head_accuracy'),
    top_1('own text', 'own_accuracy'),
  ),
  WALL_CLOCK_NOTES,
)


def wallclock_table(rows: Sequence[Row]) -> Drawn:
  """Milliseconds an output against greedy decoding of the same model, and how often each head is
  right."""
  found = finished(rows)
  return WALL_CLOCK.of(found, notes=own_note(found))


TABLES = table1, rules_table, trees_table, wallclock_table


# --- Table 4


def _published_at(place: int, form: str) -> Any:
  """Published figure beside a row of Table 4: the paper's BLEU (0) or speed-up (1), for exact
  acceptance."""

  def beside(row: Row) -> str:
    theirs = published.TABLE4.get(row['k']) if row['rule'] == 'exact' else None
    return '' if theirs is None else form.format(theirs[place])

  return beside


def _model(row: Row) -> str:
  name = f'greedy, k = {row["k"]}' if row['rule'] == 'exact' else row['rule'].replace('-', ' ')
  return f'Ours, {name}'


def _block(row: Row) -> str:
  return text(row.get('mean_block_size'), '.2f') if row['rule'] == 'exact' else ''


# A rival's row has no figure of ours, and a failed one none but the reason: their places stay
# empty.
TABLE4 = Table(
  'Blockwise parallel decoding, Table 4',
  (
    Column('Model', _model, names_row=True),
    Column('sacreBLEU', lambda row: text(row.get('bleu'), '.2f'), missing=''),
    Column(
      'T2T BLEU',
      lambda row: text(row.get('compound_bleu'), '.2f'),
      beside=_published_at(0, '({:.2f})'),
      missing='',
    ),
    Column(
      'Speed-up',
      lambda row: text(row.get('speedup'), '.2f', '×'),
      beside=_published_at(1, '({:.2f}×)'),
      missing='',
    ),
    Column('Rounds', lambda row: between(row.get('spread')).strip('()') or MISSING, missing=''),
    Column('Mean block', _block, missing=''),
  ),
  TABLE4_NOTES,
  CONDITIONS,
  sort=lambda row: (row['rule'] == 'exact', row['k']),
)


def table4(rows: Sequence[Row], notes: Iterable[str] = ()) -> Drawn:
  """BLEU on the test set and speed-up of one sentence: published rivals, and ours for every k
  beside the paper's."""
  rivals = []
  for rival in published.RIVALS:
    speedup = '' if rival.speedup is None else f'({rival.speedup:.2f}×)'
    bleu = Entry('', f'({rival.bleu:.2f})')
    rivals.append({'Model': rival.model, 'T2T BLEU': bleu, 'Speed-up': Entry('', speedup)})
  distilled = []
  for row in latest(rows, *KEY):
    is_ours = row['rule'] == 'exact' or row['rule'].startswith('beam-')
    if is_ours and row['regime'] == ('distil' if row['k'] == 1 else 'both'):
      distilled.append(row)
  return TABLE4.of(distilled, above=rivals, notes=notes)


# --- several workdirs side by side


def beside(found: Mapping[str, Sequence[Row]]) -> Drawn:
  """The rows with exact acceptance: a column for each workdir, by its name, and a line for each k
  and training that two of them have.

  Raises:
    UserError: a workdir without such rows, or outputs of different splits.
  """
  exact: dict[str, dict[tuple[int, str], Row]] = {}
  for name, rows in found.items():
    exact[name] = {key[:2]: row for key, row in by_key(rows).items() if key[2] == 'exact'}
    if not exact[name]:
      raise UserError(
        f'{name} has no rows with exact acceptance: give the workdir of experiments.table1'
      )
  every = [row for rows in exact.values() for row in rows.values()]
  splits = {(row['split'], row['outputs']) for row in every if row.get('error') is None}
  if len(splits) > 1:
    there = ', '.join(f'{outputs} of {split}' for split, outputs in sorted(splits))
    raise UserError(
      f'the workdirs were measured on different outputs ({there}): give such as agree'
    )
  counts = collections.Counter((row['k'], row['regime']) for row in every)
  order = list(REGIMES)
  shown = [key for key, count in counts.items() if count > 1]
  shown.sort(key=lambda key: (order.index(key[1]), key[0]))
  figures = [
    Column('k', lambda key: key[0], names_row=True),
    Column('Training', lambda key: REGIMES[key[1]]),
  ]
  figures += [Column(name, _three, cell=rows.get) for name, rows in exact.items()]
  of_shown = [row for row in every if (row['k'], row['regime']) in shown]
  return Table('Side by side', figures, (BESIDE_NOTE,), CONDITIONS).of(shown, cells=of_shown)


def _three(row: Row) -> str:
  same = row.get('same_as_greedy')
  return f'{bleu_and_block(row)} / {text(None if same is None else 100 * same, ".1f")}'


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
Points = Mapping[Key, tuple[float, float]]  # (k, regime, rule) -> (BLEU, mean block size)


def style(regime: str, rule: str) -> Style:
  """The look of a regime and a rule in every picture."""
  return Style(COLOURS[regime], *MARKERS.get(rule, ('P', '-.')))


def scatter(rows: Iterable[Row], path: pathlib.Path) -> None:
  """Draws the columns of Table 1, BLEU against block size. A point is a row, its label k; lines
  join what differs in k only."""
  found = by_key(rows)
  wanted = columns(found)
  ours: dict[Key, tuple[float, float]] = {}
  for key, row in found.items():
    bleu, block = row.get('bleu'), row.get('mean_block_size')
    is_shown = key[1:] in wanted and row.get('error') is None
    if is_shown and bleu is not None and block is not None:
      ours[key] = bleu, block
  figure, (left, right) = drawing.panels(2, sharex=True)
  _panel(left, ours, 'Ours', 'BLEU on our text')
  _panel(right, published.TABLE1, 'Stern et al. 2018, Table 1', 'BLEU on WMT14, newstest2013')
  right.yaxis.tick_right()  # another text's BLEU: no eye is to compare it with ours
  right.yaxis.set_label_position('right')
  right.spines[['left', 'right']].set_visible([False, True])
  figure.draw_without_rendering()
  for axes, points in ((left, ours), (right, published.TABLE1)):
    labels = []
    for (k, regime, _), (bleu, block) in points.items():
      labels.append(Label(str(k), block, bleu, COLOURS[regime]))
    place(axes, labels)
  drawing.save(figure, path)


def _panel(axes: Axes, points: Points, title: str, y: str) -> None:
  drawing.dress(axes, title, y)
  series = {(regime, rule) for _, regime, rule in points}
  for regime, rule in sorted(series, key=lambda one: (one[1], list(REGIMES).index(one[0]))):
    name = REGIMES[regime] if rule == 'exact' else f'{REGIMES[regime]}, {rule}'
    own = []
    for (k, *column), (bleu, block) in points.items():
      if column == [regime, rule]:
        own.append((k, block, bleu))
    line = [(block, bleu) for _, block, bleu in sorted(own)]
    drawing.curve(axes, line, style(regime, rule), name)
  if points:
    axes.legend(loc='upper center', bbox_to_anchor=(0.5, -0.1), ncols=3, frameon=False)
  else:
    axes.set(yticks=())
    drawing.nothing_yet(axes)


FIGURE4 = {  # (regime, rule) of our series: translation, then images
  ('both', 'exact'): ('ours, translation', Style(GREEN, 'o', '-')),
  ('finetune', 'distance-2'): ('ours, images', Style(VERMILION, '^', '-')),
  (FORECAST, 'distance-2'): ('ours, images by forecast', Style(ORANGE, 'v', '-')),
  (FITTED, 'distance-2'): ('ours, images by a fitted forecast', Style(SKY, 'P', '-')),
}
THEIRS = (
  (published.FIGURE4, 'Stern et al. 2018, translation', Style(drawing.PUBLISHED, 's', '--')),
  (published.FIGURE4_IMAGES, 'Stern et al. 2018, images, the peak', Style(PURPLE, 'D', '')),
)


def figure4(rows: Iterable[Row], path: pathlib.Path) -> None:
  """Draws Figure 4, the speed-up against block size; a point is a k."""
  ours: dict[tuple[str, str], dict[int, tuple[float, float]]] = {series: {} for series in FIGURE4}
  for (k, regime, rule), row in sorted(by_key(rows).items()):
    block, speedup = row.get('mean_block_size'), row.get('speedup')
    if (regime, rule) in ours and block is not None and speedup is not None:
      ours[regime, rule][k] = block, speedup
  figure, (axes,) = drawing.panels(1, width=8.0)
  drawing.dress(axes, '', drawing.SPEED)
  labels = []
  for points, name, look in (*((ours[one], *FIGURE4[one]) for one in FIGURE4), *THEIRS):
    if points:
      drawing.curve(axes, points.values(), look, name)
      labels += [Label(f'k = {k}', *point, look.colour) for k, point in points.items()]
  axes.axhline(1, color='black', linewidth=0.5, linestyle=':')
  axes.set_title(f'Blockwise parallel decoding, Figure 4\n{CAPTION}', fontsize=8)
  drawing.legend(figure, 2)
  place(axes, labels)
  drawing.save(figure, path)


# --- the worked example: which tokens each call of the model accepted

NAME, LINE = 14, 100  # characters: of a call's name, and of the source in a line
CHARACTER, ROW = 0.08, 0.27  # inches


def example_text(source: str, blocks: Sequence[Sequence[str]]) -> str:
  """A line for each call, tokens between bars; the first block is the token that came with the
  prompt."""
  lines = [f'{_name(i, block):{NAME}}{"|".join(block).lstrip()}' for i, block in enumerate(blocks)]
  return '\n'.join([f'{"source":{NAME}}{source}', *lines]) + '\n'


def example_picture(source: str, blocks: Sequence[Sequence[str]], path: pathlib.Path) -> None:
  """Draws the same: a row for each call, a box for each token, a colour for each call."""
  lines = textwrap.wrap(source, LINE) or ['']
  longest = max(sum(len(token) + 1.5 for token in block) for block in blocks)
  width, height = NAME + max(longest, *map(len, lines)) + 1, len(lines) + len(blocks)
  figure = Figure((width * CHARACTER, (height + 0.5) * ROW), drawing.DPI)
  axes = figure.add_axes((0, 0, 1, 1), xlim=(-1, width), ylim=(height, -0.75))
  axes.axis('off')
  look: Any = {'fontsize': 9, 'family': 'monospace', 'va': 'center', 'parse_math': False}
  for y, line in enumerate(lines):
    axes.text(NAME, y, line, color='#444444', **look)
  for i, block in enumerate(blocks):
    x, y, colour = float(NAME), len(lines) + i, drawing.COLOURS[i % len(drawing.COLOURS)]
    axes.text(0, y, _name(i, block), color=colour, **look)
    for token in block:
      box: Any = {'facecolor': colour, 'alpha': 0.25, 'edgecolor': colour}
      axes.add_patch(Rectangle((x, y - 0.4), len(token) + 1, 0.8, **box))
      axes.text(x + (len(token) + 1) / 2, y, token.strip(), ha='center', **look)
      x += len(token) + 1.5
  drawing.save(figure, path)


def _name(i: int, block: Sequence[str]) -> str:
  return f'call {i} ({len(block)})' if i else 'prompt'
