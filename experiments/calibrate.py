"""Finds the tree that suits a model's own prediction heads, Medusa's or Stern's, on text that they
were not trained on.

  python -m experiments.calibrate --model=folder --prompts=lines.txt --output=tree.json \\
    [--heads=folder] [--nodes=64]
  python -m experiments.generate --model=folder --prompt="A man in" --medusa=folder \\
    --choices=tree.json

The model goes on from each prompt greedily (or translates it), and it is counted how often each
guess of each head is what the model writes next. The tree grows by the guess that is right most
often, and has as many nodes as write the most tokens a second on this machine: a call is timed for
1, 2, 4, 6, ... nodes at batch 1. With --repeats=0 nothing is timed, and the tree has --nodes nodes.

Writes tree.json, its "choices" and what was counted, and tree.png, the tree with the share of calls
that accept each node.
"""

from absl import flags

from experiments.lab import cli

MODEL = flags.DEFINE_string('model', None, 'folder of a model, or of a finished run', required=True)
HEADS = flags.DEFINE_string(
  'heads', None, "folder of prediction heads (none: the model's own folder)"
)
PROMPTS = flags.DEFINE_string('prompts', None, 'file with a prompt on each line', required=True)
OUTPUT = flags.DEFINE_string('output', None, 'file for the tree, such as tree.json', required=True)
NODES = flags.DEFINE_integer('nodes', 64, 'of the tree at most, the root included', lower_bound=2)
MAX_LEN = flags.DEFINE_integer('max_len', 64, 'the most tokens of a text', lower_bound=2)
ROWS = flags.DEFINE_integer('rows', 16, 'prompts decoded at once', lower_bound=1)
REPEATS = flags.DEFINE_integer('repeats', 5, 'rounds of timing (0: none)', lower_bound=0)


def main(_: list[str]) -> None:
  import dataclasses
  import pathlib

  from experiments import cai2024
  from experiments.lab import report
  from experiments.lab.show import plain_console
  from experiments.tools import generation
  from experiments.tools.generation_settings import Settings
  from fastdec.errors import UserError
  from fastdec.evaluation import tree_calibration, tree_figure
  from fastdec.files import read_prompts
  from fastdec.struct import Bound
  from fastdec.training.progress import Progress

  output = pathlib.Path(OUTPUT.value)
  if output.suffix != '.json':
    raise UserError(f'--output={output} is to be a JSON file: give a name such as tree.json')
  heads_folder = HEADS.value or MODEL.value
  prompts = read_prompts(pathlib.Path(PROMPTS.value))
  settings = Settings(MODEL.value, heads=heads_folder, max_len=MAX_LEN.value)
  language = generation.Language.of(settings, prompts)
  folder, heads_there = language.opened[MODEL.value], language.opened[heads_folder]
  heads, target = (
    Bound(heads_there.heads, heads_there.head_params()),
    Bound(folder.model, folder.params()),
  )
  ids = [language.ids(prompt) for prompt in prompts]
  console = plain_console()
  with Progress(len(ids), 'prompt') as progress:
    found = tree_calibration.calibrate(
      target, heads, ids, NODES.value, MAX_LEN.value, ROWS.value, progress.add
    )
  if REPEATS.value:
    longest = max(ids, key=len)
    found = tree_calibration.timed(found, target, heads, longest, MAX_LEN.value, REPEATS.value)
  tree = found.chosen
  dataclasses.replace(found, tree=tree).save(output, model=MODEL.value, heads=heads_folder)
  picture = output.with_suffix('.png')
  tree_figure.draw(
    tree, f'{found.nodes} nodes, {found.tokens[found.nodes]:.2f} tokens a call', picture
  )
  for table in (cai2024.accuracies(found), cai2024.widths(found)):
    console.print(report.terminal(table))
  console.print(f'\nThe tree is {output}, its picture {picture}')


if __name__ == '__main__':
  cli.run(main)
