"""The trees that were published with Medusa's heads, each of 63 nodes and the root (Cai et al. 2024; values as in
medusa/model/medusa_choices.py of FasterDecoding/Medusa, Apache-2.0).

Stage 1 stands for heads on a frozen model (Medusa-1), stage 2 for heads trained with it (Medusa-2). They were grown
from the accuracies of those very heads: other heads want other trees.
"""

from fastdec.errors import UserError

# 'path:children': the node at this path of ranks has so many children, of ranks 0, 1, ...
PUBLISHED = {
  'mc_sim_7b_63': (
    'root:10 0:10 1:7 2:3 3:2 4:1 5:1 6:1 7:1 8:1 9:1 '
    '00:10 01:3 02:2 03:1 04:1 05:1 06:1 07:1 10:2 20:1 000:2'
  ),
  'vicuna_7b_stage2': (
    'root:10 0:10 1:5 2:2 3:2 4:1 5:1 6:1 7:1 '
    '00:9 01:4 02:2 03:1 04:1 05:1 10:3 11:1 20:1 000:4 001:1 002:1 010:1'
  ),
  'vicuna_7b_stage1_ablation': (
    'root:10 0:10 1:4 2:2 3:2 4:1 5:1 6:1 '
    '00:10 01:4 02:2 03:1 04:1 05:1 10:3 11:1 20:1 30:1 000:4 001:1 002:1 010:1'
  ),
  'vicuna_7b_stage1': (
    'root:10 0:10 1:7 2:4 3:3 4:2 5:2 6:1 7:1 8:1 9:1 '
    '00:9 01:3 02:2 03:1 04:1 05:1 10:2 20:1 000:1'
  ),
  'vicuna_13b_stage2': (
    'root:10 0:10 1:4 2:2 3:1 4:1 5:1 '
    '00:10 01:4 02:2 03:1 04:1 05:1 10:3 11:1 20:1 30:1 000:4 001:2 002:1 010:1 100:1'
  ),
  'vicuna_13b_stage1': (
    'root:10 0:10 1:7 2:4 3:2 4:2 5:1 6:1 7:1 8:1 '
    '00:10 01:4 02:2 03:1 04:1 05:1 10:2 11:1 20:1 000:1'
  ),
  'vicuna_33b_stage2': (
    'root:10 0:10 1:5 2:3 3:2 4:1 5:1 6:1 7:1 '
    '00:10 01:4 02:2 03:1 04:1 05:1 10:3 11:1 20:1 000:3 001:1 010:1'
  ),
  'vicuna_33b_stage1': (
    'root:10 0:10 1:8 2:5 3:3 4:2 5:2 6:1 7:1 8:1 9:1 '
    '00:9 01:3 02:2 03:1 04:1 10:2 20:1'
  ),
  'zephyr_stage2': (
    'root:10 0:10 1:6 2:4 3:2 4:2 5:1 6:1 7:1 '
    '00:10 01:4 02:2 03:1 04:1 05:1 10:2 11:1 20:1 000:2 001:1'
  ),
}


def medusa_choices(name: str) -> list[list[int]]:
  """A published tree, as paths of ranks below the root: what `Medusa` takes as choices, shortest first.

  Raises:
    UserError: for an unknown name.
  """
  if name not in PUBLISHED:
    raise UserError(f'{name!r} is no published tree: known are {", ".join(PUBLISHED)}')
  nodes = (node.split(':') for node in PUBLISHED[name].split())
  paths = (([int(rank) for rank in path.removeprefix('root')], int(children)) for path, children in nodes)
  return [[*path, rank] for path, children in paths for rank in range(children)]
