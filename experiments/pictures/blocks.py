"""The picture of how a sentence is written: a lane a decode, a column a call, against the clock."""

import dataclasses
import functools
import itertools
from typing import Any, NamedTuple

REPEATS = 30  # rounds of timing


class Lane(NamedTuple):
  """A decode: its name, the words of each call, and the milliseconds of all."""

  name: str
  blocks: list[list[str]]
  ms: float


def measure_lanes(g: Any, sentence: str) -> tuple[list[Lane], str]:
  """Decodes a sentence greedily and by the generator's strategy, and times both."""
  import fastdec as fd
  from fastdec.evaluation.wallclock import measure

  greedy = dataclasses.replace(g, strategy=fd.Greedy())
  decodes = {'greedy decoding': functools.partial(greedy, sentence)}
  decodes['blocks'] = functools.partial(g, sentence)
  timed = measure(decodes, REPEATS)
  lanes = []
  for name, decode in decodes.items():
    # With a block for each token, the pieces are those of the tokens.
    written = decode()
    singles = dataclasses.replace(written, blocks=[[token] for token in written.tokens])
    pieces = iter(singles.pieces)
    blocks = [list(itertools.islice(pieces, len(block))) for block in written.blocks]
    lanes.append(Lane(name, blocks, timed[name].milliseconds))
  plain, quick = timed.values()
  least, most = quick.speedups_over(plain)
  speed = f'{quick.speedup_over(plain):.2f} times as fast ({least:.2f} to {most:.2f})'
  return lanes, speed


def figure(sentence: str, lanes: list[Lane], speed: str) -> Any:
  """A lane for each decode, a column for each of its calls, a box for each token."""
  from matplotlib.figure import Figure
  from matplotlib.patches import Rectangle

  from fastdec.evaluation import drawing, machine

  heights, longest, top = [], 0.0, 0.0
  for lane in lanes:
    heights.append(max(map(len, lane.blocks)) + 1.6)
    longest = max(longest, lane.ms)
  drawn = Figure(figsize=(12, 0.3 * sum(heights) + 0.9), dpi=drawing.DPI, layout='constrained')
  axes = drawn.subplots()
  for lane, height in zip(lanes, heights, strict=True):
    width = lane.ms / len(lane.blocks)
    calls = f'{lane.name}: {len(lane.blocks) - 1} calls, {lane.ms:.1f} ms'
    axes.text(0, top + 0.6, calls, fontsize=10, weight='bold', va='center')
    for i, block in enumerate(lane.blocks):
      colour = drawing.COLOURS[i % len(drawing.COLOURS)]
      for j, token in enumerate(block):
        x, y = i * width, top + 1.1 + j
        box: Any = {'facecolor': colour, 'alpha': 0.3, 'edgecolor': colour}
        axes.add_patch(Rectangle((x + 0.04 * width, y + 0.06), 0.92 * width, 0.88, **box))
        word = token.strip().replace('$', r'\$') or 'end'
        axes.text(x + width / 2, y + 0.5, word, fontsize=7.5, ha='center', va='center')
    axes.plot([lane.ms] * 2, [top + 0.3, top + height - 0.4], color='black', linewidth=1)
    top += height
  axes.set(xlim=(0, 1.01 * longest), ylim=(top, 0), yticks=())
  label = f'milliseconds, {machine.here()}; a column is a call; over {REPEATS} rounds {speed}'
  axes.set_xlabel(label, fontsize=9)
  axes.set_title(sentence, fontsize=10, loc='left', color='#444444')
  axes.spines[['top', 'right', 'left']].set_visible(False)
  return drawn
