"""Drafters side by side: heads, draft networks, a draft model and prompt lookup on one base. The
experiment is experiments/drafters.py, from the top.

  python -m experiments.drafts --config=configs/drafts.py:scale=smoke,task=translation \\
    --workdir=out/drafts-smoke
  python -m experiments.drafts --config=configs/drafts.py:scale=multi30k,task=lm \\
    --workdir=out/drafts-lm \\
    --config.data.folder=path/to/multi30k [--budget=25m]

Trains the base (or takes that of --config.base), has it write the text that heads and drafts are
trained on (or takes that of --config.data.own, which may be OUT.training/texts of fastdec
train-draft, for any language model as the base), trains them, and measures chains and trees in turn
with plain decoding. The same command continues where it was stopped.
"""

from experiments.lab import cli

PAGE = cli.Page('drafts')


def main(_: list[str]) -> None:
  from experiments import drafters
  from fastdec.errors import UserError

  kind = PAGE.config.value.get('kind', 'all')
  if kind != 'all':
    raise UserError(f'kind={kind} is one row of the table, which has all: leave out the kind')
  PAGE.run(drafters.Drafters, drafters.drafters)


if __name__ == '__main__':
  cli.run(main)
