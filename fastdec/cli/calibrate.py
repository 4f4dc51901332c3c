"""Finds the tree that suits a model's prediction heads, on text that they were not trained on.

Example:
  fastdec calibrate --model=folder --prompts=lines.txt --output=tree.json
  fastdec generate --model=folder --heads=folder --strategy='medusa(choices=tree.json)' --prompt=A

The model continues each prompt greedily (or translates it), and the command counts how often
each guess of each head is what the model writes next. The tree grows by the guess that is right
most often. Its number of nodes is the one that writes the most tokens a second on this machine:
calls with 1, 2, 4, 6, ... nodes are timed at batch 1. With --repeats=0 nothing is timed, and the
tree has --nodes nodes.

It writes tree.json with the "choices" of the tree and the counts, and tree.png, a picture of the
tree with the share of calls that accept each node.
"""

import dataclasses
import pathlib
from collections.abc import Sequence

from fastdec import files
from fastdec.cli import opening
from fastdec.cli.flags import Parser, whole
from fastdec.cli.prompts import read_prompts
from fastdec.cli.show import columns
from fastdec.errors import UserError
from fastdec.evaluation.tree_calibration import TOPS, Calibration, calibrate, time_sizes
from fastdec.kernels.packing import pack_if_faster
from fastdec.struct import Bound
from fastdec.text import programs
from fastdec.text.load import open_fast, open_folder
from fastdec.training.progress import Progress


def main(words: Sequence[str]) -> None:
  parser = Parser('calibrate', __doc__)
  opening.add_model(parser)
  parser.add_argument('--heads', help="folder of prediction heads (the model's own)")
  opening.add_prompts(parser)
  parser.add_argument('--output', required=True, help='file for the tree, such as tree.json')
  parser.add_argument(
    '--nodes', type=whole(2), default=64, help='most nodes of the tree, the root included (64)'
  )
  parser.add_argument('--rows', type=whole(1), default=16, help='prompts decoded at once (16)')
  parser.add_argument(
    '--repeats', type=whole(0, 1000), default=5, help='rounds of timing (5; 0: none)'
  )
  opening.add_dtype(parser)
  opening.add_length(parser)
  opening.add_no_cache(parser)
  args = parser.read(words)
  programs.keep()
  from fastdec.evaluation import tree_figure  # imports the extra that draws pictures

  # Check the flags, and open the model and its heads.
  output = files.place_to_write(args.output)
  if output.suffix != '.json':
    raise UserError(f'--output={output} must end in .json: give a name such as tree.json')
  if args.max_len < 2:
    raise UserError('--max-len=1 leaves nothing to guess: give 2 or more')
  prompts = opening.apply_chat_flags(args, read_prompts(pathlib.Path(args.prompts)))
  generator = opening.open_without_weights(
    args.model, args.dtype, prompts, args.max_len, template=opening.read_template(args)
  )
  ids = [generator.read(prompt)[0] for prompt in prompts]
  folder = open_fast(args.model, args.dtype)
  head_folder = folder
  if args.heads is not None:
    head_folder = open_folder(args.heads, args.dtype)
  heads = Bound(*pack_if_faster(head_folder.heads, head_folder.head_params()))
  target = Bound(*pack_if_faster(folder.model, folder.params()))

  # Count right guesses, and time trees of several sizes.
  with Progress(len(ids), 'prompt') as progress:
    calibration = calibrate(target, heads, ids, args.nodes, args.max_len, args.rows, progress.add)
  if args.repeats:
    longest = max(ids, key=len)
    calibration = time_sizes(calibration, target, heads, longest, args.max_len, args.repeats)

  # Save the tree, and draw it.
  nodes, tree = calibration.nodes, calibration.chosen
  dataclasses.replace(calibration, tree=tree).save(
    output, model=args.model, heads=args.heads or args.model
  )
  picture = output.with_suffix('.png')
  tree_figure.draw(tree, f'{nodes} nodes, {calibration.tokens[nodes]:.2f} tokens a call', picture)
  print(f'{write_tables(calibration)}\n\nThe tree is {output}, its picture {picture}')


def write_tables(calibration: Calibration) -> str:
  """Writes how often each head is right, and what to expect of trees of growing size."""
  heads = [['head', *(f'top-{top} %' for top in TOPS)]]
  for head in range(len(calibration.right[TOPS[0]])):
    shares = [f'{100 * calibration.right[top][head]:.1f}' for top in TOPS]
    heads.append([str(head + 1), *shares])
  trees = [['nodes', 'tokens a call', 'ms a call', 'tokens a second']]
  for nodes, tokens in sorted(calibration.tokens.items()):
    name = f'{nodes} (chosen)' if nodes == calibration.nodes else str(nodes)
    row = [name, f'{tokens:.2f}', '-', '-']
    time = calibration.milliseconds.get(nodes)
    if time is not None:
      row[2:] = [f'{time:.2f}', f'{1e3 * tokens / time:,.0f}']
    trees.append(row)
  return f'{columns(heads)}\n\n{columns(trees)}'
