"""Table 3 of Stern et al. 2018: which enlargements people prefer, blockwise ones or the baseline's
(greedy, k = 1).

  python -m experiments.human_eval --workdir=out/faces32 --serve [--port=8000] [--host=127.0.0.1]
  python -m experiments.human_eval --workdir=out/faces32 --report

--serve opens a page where people vote, as many at once as like, each as long as they like; votes
are in human_eval.sqlite in the workdir, and voting goes on there after every reload or restart.
--report prints the table, the paper's figures beside ours, and writes table3.md and table3.csv. The
images are those that experiments.table2 left in the workdir.
"""

from absl import flags

from experiments.lab import cli

WORKDIR = flags.DEFINE_string('workdir', None, 'folder of a finished table2', required=True)
SERVE = flags.DEFINE_bool('serve', False, 'open the page where people vote')
REPORT = flags.DEFINE_bool('report', False, 'print Table 3 from the votes so far')
PORT = flags.DEFINE_integer(
  'port', 8000, 'port of the page; 0 is any free one', lower_bound=0, upper_bound=65535
)
HOST = flags.DEFINE_string(
  'host', '127.0.0.1', 'address of the page; 0.0.0.0 opens it to the whole network'
)


def main(words: list[str]) -> None:
  import pathlib

  from experiments.papers.stern2018.voting import study
  from fastdec.errors import UserError

  if SERVE.value == REPORT.value:
    given = 'both --serve and --report are' if SERVE.value else 'neither --serve nor --report is'
    raise UserError(f'{given} given: give --serve to vote, or --report for the table')
  workdir = pathlib.Path(WORKDIR.value)
  shown = study.Study.of(workdir)
  (_serve if SERVE.value else _report)(workdir, shown)


def _serve(workdir, shown) -> None:
  import contextlib

  from experiments.papers.stern2018.voting import store, web

  server = web.Server(HOST.value, PORT.value)
  server.ballots = web.Ballots(shown, store.Votes(workdir / store.FILE, shown.digest, new=True))
  with contextlib.suppress(KeyboardInterrupt):
    print(
      f'Vote at http://{server.name}/ ({len(shown.trials)} pairs, as many of them as you like);'
      ' votes are kept in '
      f'{workdir / store.FILE}; Ctrl-C ends the server.',
      flush=True,
    )
    server.serve_forever()
  print('\nEnded. To go on: the same command. For the table: --report instead of --serve.')


def _report(workdir, shown) -> None:
  import rich.console

  from experiments.lab import report
  from experiments.papers.stern2018.voting import results, store
  from fastdec.errors import UserError

  path = workdir / store.FILE
  found = store.Votes(path, shown.digest).results()
  if not found:
    raise UserError(f'{path} holds no votes yet: collect them with --serve instead of --report')
  rich.console.Console().print(report.terminal(results.write(found, workdir)))
  print(f'\nThe table is {workdir}/table3.md')


if __name__ == '__main__':
  cli.run(main)
