"""The experiments, by the names that `python -m experiments NAME` runs.

A paper's experiment is one line of this table: the sentence of its help, the module, the page of
configs/ that presets its settings, and in the module the class of the settings. The module's
function of the same name makes the page, of settings and a `Workdir`. The other commands are files
of their own names, with flags of their own.
"""

import importlib
import runpy
import sys
from typing import NamedTuple

from fastdec import extras
from fastdec.errors import UserError

try:
  # what every command imports before `cli.run` can turn a mistake into a sentence
  with extras.explained():
    import ml_collections  # noqa: F401
    from absl import flags
except UserError as error:
  print(error, file=sys.stderr)
  sys.exit(2)

flags.disclaim_key_flags()  # flags that `run` defines are the command's, which `--help` lists


class Experiment(NamedTuple):
  """A command: its sentence, and where a paper's is made; other commands are files of their own."""

  about: str
  module: str = ''
  page: str = ''
  settings: str = ''


EXPERIMENTS = {
  'table1': Experiment(
    'Table 1 of Stern et al. 2018: translation by every k, regime and rule',
    'stern2018.text', 'wmt14', 'Translation',
  ),
  'table2': Experiment(
    'Table 2 of Stern et al. 2018: super-resolution, mean accepted block sizes and likeness',
    'stern2018.images', 'celeba', 'Table2',
  ),
  'table4': Experiment(
    'Table 4 of Stern et al. 2018: BLEU and speed-up on the test set, all of it distilled',
    'stern2018.text', 'wmt14', 'Translation',
  ),
  'figure4': Experiment(
    'Figure 4 of Stern et al. 2018: speed-up against mean accepted block size, on the test set',
    'stern2018.text', 'wmt14', 'Translation',
  ),
  'example': Experiment(
    'The worked example of Stern et al. 2018: which tokens each call of the model accepted'
  ),
  'human_eval': Experiment(
    'Table 3 of Stern et al. 2018: which of two enlargements people prefer'
  ),
  'upscale': Experiment('Enlarges a picture, by tiles, with a model of Table 2'),
  'speculative': Experiment(
    'Speculative decoding (Leviathan et al. 2022): theory against practice, Tables 2 to 4',
    'leviathan2022', 'speculative', 'Speculative',
  ),
  'medusa': Experiment(
    'Medusa (Cai et al. 2024): heads on a language model, their trees, and what they gain',
    'cai2024', 'medusa', 'Medusa',
  ),
  'lookahead': Experiment(
    'Lookahead decoding (Fu et al. 2024): sizes and pools, against Jacobi and prompt lookup',
    'fu2024', 'lookahead', 'Lookahead',
  ),
  'incremental': Experiment(
    'Savings of incremental decoding: no cache, a cache driven from the host, one program',
    'incremental_decoding', 'incremental', 'Incremental',
  ),
  'drafts': Experiment(
    'Drafters side by side: heads, draft networks, a draft model and prompt lookup on one base'
  ),
  'specbench': Experiment(
    'Tokens a call by category, on questions of Spec-Bench, MT-bench, HumanEval, GSM8K, SPEED-Bench'
  ),
  'sweep': Experiment("Sweeps over any settings of a paper's config"),
  'train': Experiment('Trains one run: a base model, prediction heads, or a draft network'),
  'distill': Experiment('Rewrites the training text or images as a model writes them'),
  'evaluate': Experiment('Evaluates one finished run, or compares its model in int8'),
  'status': Experiment('Shows how far a workdir is: stages, rows, failures, what is next'),
  'results': Experiment('Draws the tables of docs/results again from their rows'),
  'blocks': Experiment('Draws how a sentence is written: greedy decoding against blocks'),
  'attention': Experiment('Draws where a translation looked at its source'),
  'masks': Experiment('Draws who sees what in one call of a model'),
}  # fmt: skip


def run(name: str) -> None:
  """Runs an experiment with the flags in `sys.argv`, and ends the process."""
  about, module, page, settings = EXPERIMENTS[name]
  if not module:
    runpy.run_module(f'experiments.{name}', run_name='__main__', alter_sys=True)
    return
  from experiments.lab import cli

  sys.modules['__main__'].__doc__ = f'{about}.'  # `--help` shows it
  flags_of_paper = cli.Page(page)

  def main(_: list[str]) -> None:
    # The paper is imported once the flags are known to be right.
    paper = importlib.import_module(f'experiments.{module}')
    flags_of_paper.run(getattr(paper, settings), getattr(paper, name))

  cli.run(main)
