"""Draws a tree: every node with the share of calls that accept it."""

from pathlib import Path

from fastdec import extras
from fastdec.evaluation.drawing import save
from fastdec.evaluation.tree_growth import Tree

with extras.explained():
  from matplotlib import colormaps
  from matplotlib.figure import Figure

SLOT = 0.42  # inches for a leaf


def draw(tree: Tree, title: str, path: Path) -> None:
  """Draws a tree as a PNG: the root on top, siblings by rank from left to right.

  Each node shows its rate in per cent.
  """
  rates = {(): 1.0, **dict(zip(tree.choices, tree.rates, strict=True))}
  places = _places(rates)
  deepest = max(map(len, rates))
  leaves = 1 + max(x for x, _ in places.values())
  figure = Figure(
    figsize=(max(6.0, SLOT * leaves + 1), 1.1 * deepest + 1.6), dpi=150, layout='constrained'
  )
  axes = figure.subplots()
  for node, (x, y) in places.items():
    if node:
      above = places[node[:-1]]
      axes.plot([above[0], x], [above[1], y], color='0.7', linewidth=0.8, zorder=1)
  colours = [colormaps['viridis'](rates[node]) for node in places]
  axes.scatter(*zip(*places.values(), strict=True), s=420, c=colours, zorder=2)
  for node, (x, y) in places.items():
    label = f'{100 * rates[node]:.0f}'
    if rates[node] < 0.01:
      label = '<1'
    colour = 'black' if rates[node] > 0.6 else 'white'  # on a light or a dark node
    axes.text(x, y, label, ha='center', va='center', fontsize=8, color=colour)
  names = [f'head {depth}' for depth in range(deepest, 0, -1)]
  axes.set_yticks(range(-deepest, 1), [*names, 'root'])
  axes.set_xticks([])
  axes.spines[:].set_visible(False)
  axes.margins(0.03, 0.12)
  axes.set_title(f'{title}\nin a node: of 100 calls, how many accept it', fontsize=10)
  save(figure, path)


def _places(nodes: dict[tuple[int, ...], float]) -> dict[tuple[int, ...], tuple[float, float]]:
  """Places leaves side by side, and every other node above the middle of its children."""
  places: dict[tuple[int, ...], tuple[float, float]] = {}
  children: dict[tuple[int, ...], list[tuple[int, ...]]] = {node: [] for node in nodes}
  for node in sorted(filter(None, nodes)):
    children[node[:-1]].append(node)
  used = 0  # columns taken by leaves

  def put(node: tuple[int, ...]) -> float:
    nonlocal used
    if children[node]:
      xs = [put(child) for child in children[node]]
      x = (xs[0] + xs[-1]) / 2
    else:
      x, used = float(used), used + 1
    places[node] = (x, float(-len(node)))
    return x

  put(())
  return places
