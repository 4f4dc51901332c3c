"""The trees published with Medusa's heads (Cai et al. 2024), each of 63 nodes and the root.

Values are from medusa/model/medusa_choices.py of FasterDecoding/Medusa, Apache-2.0. Stage 1 means
heads on a frozen model (Medusa-1), stage 2 heads trained together with it (Medusa-2). The trees
follow from these heads' accuracies. Other heads need other trees, from files.
"""

import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from fastdec.decoding.settings import is_whole, size
from fastdec.decoding.topology import Topology
from fastdec.errors import UserError
from fastdec.fields import quote
from fastdec.files import parse_json, read_bytes

MOST_BYTES = 2**22  # of a file: enough for a tree with as many nodes as a call can hold

# 'path:children': the node at this path of ranks has this number of children, of ranks 0, 1, ...
PUBLISHED = {
  'mc_sim_7b_63': (
    'root:10 0:10 1:7 2:3 3:2 4:1 5:1 6:1 7:1 8:1 9:1 00:10 01:3 02:2 03:1 04:1 05:1 06:1 07:1 10:2'
    ' 20:1 000:2'
  ),
  'vicuna_7b_stage2': (
    'root:10 0:10 1:5 2:2 3:2 4:1 5:1 6:1 7:1 00:9 01:4 02:2 03:1 04:1 05:1 10:3 11:1 20:1 000:4'
    ' 001:1 002:1 010:1'
  ),
  'vicuna_7b_stage1_ablation': (
    'root:10 0:10 1:4 2:2 3:2 4:1 5:1 6:1 00:10 01:4 02:2 03:1 04:1 05:1 10:3 11:1 20:1 30:1 000:4'
    ' 001:1 002:1 010:1'
  ),
  'vicuna_7b_stage1': (
    'root:10 0:10 1:7 2:4 3:3 4:2 5:2 6:1 7:1 8:1 9:1 00:9 01:3 02:2 03:1 04:1 05:1 10:2 20:1 000:1'
  ),
  'vicuna_13b_stage2': (
    'root:10 0:10 1:4 2:2 3:1 4:1 5:1 00:10 01:4 02:2 03:1 04:1 05:1 10:3 11:1 20:1 30:1 000:4'
    ' 001:2 002:1 010:1 100:1'
  ),
  'vicuna_13b_stage1': (
    'root:10 0:10 1:7 2:4 3:2 4:2 5:1 6:1 7:1 8:1 00:10 01:4 02:2 03:1 04:1 05:1 10:2 11:1 20:1'
    ' 000:1'
  ),
  'vicuna_33b_stage2': (
    'root:10 0:10 1:5 2:3 3:2 4:1 5:1 6:1 7:1 00:10 01:4 02:2 03:1 04:1 05:1 10:3 11:1 20:1 000:3'
    ' 001:1 010:1'
  ),
  'vicuna_33b_stage1': (
    'root:10 0:10 1:8 2:5 3:3 4:2 5:2 6:1 7:1 8:1 9:1 00:9 01:3 02:2 03:1 04:1 10:2 20:1'
  ),
  'zephyr_stage2': (
    'root:10 0:10 1:6 2:4 3:2 4:2 5:1 6:1 7:1 00:10 01:4 02:2 03:1 04:1 05:1 10:2 11:1 20:1 000:2'
    ' 001:1'
  ),
}


def medusa_choices(name: str | os.PathLike[str]) -> list[list[int]]:
  """Returns a tree as paths of ranks below the root, the choices of `Medusa`.

  Args:
    name: of a published tree, whose shortest paths come first. Or a JSON file with a list of paths,
      [[0], [0, 0], [1]], or with an object that has such a list as "choices".

  Raises:
    UserError: neither a known name nor a file, or a file without a tree.
  """
  published = PUBLISHED.get(str(name))
  if published is None:
    if os.path.exists(str(name)):
      return _read(pathlib.Path(name))
    known = ', '.join(PUBLISHED)
    raise UserError(
      f'{quote(str(name))} is not a published tree: known are {known}; a JSON file of paths'
      ' of ranks will do too'
    )

  # Each word of a published tree has a path, and the number of its children.
  choices = []
  for node in published.split():
    path, children = node.removeprefix('root').split(':')
    ranks = list(map(int, path))
    for child in range(int(children)):
      choices.append([*ranks, child])
  return choices


def _read(path: pathlib.Path) -> list[list[int]]:
  """Reads the choices from a JSON file (`medusa_choices`)."""
  try:
    content = parse_json(read_bytes(path, MOST_BYTES))
  except OSError as error:
    raise UserError(
      f'cannot read {path} ({error.strerror}): give a JSON file of paths of ranks'
    ) from None
  except ValueError:
    raise UserError(
      f'{path} is not JSON: give a file of paths of ranks, such as [[0], [0, 0], [1]]'
    ) from None
  choices = content.get('choices') if isinstance(content, dict) else content
  if not (isinstance(choices, list) and choices and all(map(_is_path, choices))):
    raise UserError(
      f'{path} holds no list of paths of ranks: give [[0], [0, 0], [1]], or'
      f' {{"choices": [[0], ...]}}'
    )
  try:
    Topology.from_choices(choices)
  except UserError as error:
    raise UserError(f'{path} holds no tree: {error}') from None
  return choices


def static_tree(choices: Any) -> Topology:
  """Returns a static tree.

  Args:
    choices: a `Topology`, paths of ranks, a published tree's name, or a file. Or the number of
      children of each node, level by level: (1, 1, 3, 1) is a path of two nodes, after which three
      branches of two nodes follow.

  Raises:
    UserError: something else is given.
  """
  if isinstance(choices, str | os.PathLike):
    choices = medusa_choices(choices)
  if isinstance(choices, list | tuple) and choices and all(is_whole(x, 1, 'iu') for x in choices):
    choices = _with_widths(choices)
  tree = choices if isinstance(choices, Topology) else Topology.from_choices(choices)
  if not tree.is_static:
    raise UserError(
      'this tree is data, one for each row: give a static one, such as [[0], [0, 0], [1]]'
    )
  return tree


def _with_widths(widths: Sequence[int]) -> list[list[int]]:
  """Returns the paths of the tree whose nodes have this number of children, level by level."""
  size('nodes', 1 + int(np.cumprod(widths, dtype=float).sum()), 1, 'the nodes of a tree')
  paths, newest = [], [[]]
  for width in widths:
    newest = [[*path, rank] for path in newest for rank in range(width)]
    paths += newest
  return paths


def _is_path(value: object) -> bool:
  return isinstance(value, list) and all(type(rank) is int and rank < 2**31 for rank in value)
