"""Finds the tree that suits a model's prediction heads, on text that they were not trained on.

Example:
  fastdec calibrate --model=folder --prompts=lines.txt --output=tree.json
  fastdec generate --model=folder --heads=folder --strategy='medusa(choices=tree.json)' --prompt=A

The model goes on from each prompt greedily (or translates it), and it is counted how often each
guess of each head is what the model writes next. The tree grows by the guess that is right most
often, and has as many nodes as write the most tokens a second on this machine: a call is timed for
1, 2, 4, 6, ... nodes at batch 1. With --repeats=0 nothing is timed, and the tree has --nodes nodes.

Writes tree.json, its "choices" and what was counted, and tree.png, the tree with the share of calls
that accept each node.
"""

import dataclasses
import pathlib
from collections.abc import Sequence

from fastdec import files
from fastdec.cli import opening
from fastdec.cli.flags import Parser, whole
from fastdec.cli.show import columns
from fastdec.errors import UserError
from fastdec.evaluation.tree_calibration import TOPS, Calibration, calibrate, timed
from fastdec.files import read_prompts
from fastdec.kernels.packing import pack_if_faster
from fastdec.struct import Bound
from fastdec.text.load import open_folder
from fastdec.training.progress import Progress


def main(words: Sequence[str]) -> None:
  parser = Parser('calibrate', __doc__)
  parser.add_argument('--model', required=True, help='folder of a model, or of a finished run')
  parser.add_argument('--heads', help="folder of prediction heads (the model's own)")
  parser.add_argument('--prompts', required=True, help='file with a prompt on each line')
  parser.add_argument('--output', required=True, help='file for the tree, such as tree.json')
  parser.add_argument(
    '--nodes', type=whole(2), default=64, help='of the tree at most, the root included (64)'
  )
  parser.add_argument('--rows', type=whole(1), default=16, help='prompts decoded at once (16)')
  parser.add_argument('--repeats', type=whole(0), default=5, help='rounds of timing (5; 0: none)')
  parser.add_argument('--dtype', help="float32, bfloat16, int8, int8w, ... (the model's own)")
  opening.add_length(parser)
  given = parser.read(words)
  from fastdec.evaluation import tree_figure  # it needs what a picture needs

  output = files.place(given.output)
  if output.suffix != '.json':
    raise UserError(f'--output={output} is to be a JSON file: give a name such as tree.json')
  if given.max_len < 2:
    raise UserError('--max-len=1 leaves nothing to guess: give 2 or more')
  prompts = read_prompts(pathlib.Path(given.prompts))
  language = opening.unread(given.model, given.dtype, prompts, given.max_len)
  folder = open_folder(given.model, given.dtype)
  place = folder if given.heads is None else open_folder(given.heads, given.dtype)
  heads = Bound(*pack_if_faster(place.heads, place.head_params()))
  target = Bound(*pack_if_faster(folder.model, folder.params()))
  ids = [language.read(prompt)[0] for prompt in prompts]
  with Progress(len(ids), 'prompt') as progress:
    found = calibrate(target, heads, ids, given.nodes, given.max_len, given.rows, progress.add)
  if given.repeats:
    found = timed(found, target, heads, max(ids, key=len), given.max_len, given.repeats)
  tree, named = found.chosen, {'model': given.model, 'heads': given.heads or given.model}
  dataclasses.replace(found, tree=tree).save(output, **named)
  picture = output.with_suffix('.png')
  title = f'{found.nodes} nodes, {found.tokens[found.nodes]:.2f} tokens a call'
  tree_figure.draw(tree, title, picture)
  print(f'{table(found)}\n\nThe tree is {output}, its picture {picture}')


def table(found: Calibration) -> str:
  """Writes how often each head is right, and what trees of growing size promise."""
  heads = [['head', *(f'top-{top} %' for top in TOPS)]]
  for head, shares in enumerate(zip(*(found.right[top] for top in TOPS), strict=True), 1):
    heads.append([str(head), *(f'{100 * share:.1f}' for share in shares)])
  trees = [['nodes', 'tokens a call', 'ms a call', 'tokens a second']]
  for nodes, tokens in sorted(found.tokens.items()):
    name = f'{nodes} (chosen)' if nodes == found.nodes else str(nodes)
    time = found.milliseconds.get(nodes)
    timed = ['-', '-'] if time is None else [f'{time:.2f}', f'{1e3 * tokens / time:,.0f}']
    trees.append([name, f'{tokens:.2f}', *timed])
  return f'{columns(heads)}\n\n{columns(trees)}'
