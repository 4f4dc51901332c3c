"""Table 3 of Stern et al. 2018: which enlargements people prefer, blockwise ones or the baseline's
(greedy, k = 1).

  python -m experiments.human_eval --workdir=out/faces32 --serve [--port=8000] [--host=127.0.0.1]
  python -m experiments.human_eval --workdir=out/faces32 --report

--serve opens a page where any number of people can vote for as long as they like. Votes are lines
of votes.jsonl in the workdir, and voting continues there after a reload or a restart. --report
prints our figures with the paper's, and writes table3.md. The images are those that
experiments.table2 left in the workdir.
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
  import contextlib
  import pathlib

  from experiments.stern2018 import vote
  from fastdec import files
  from fastdec.errors import UserError

  if SERVE.value == REPORT.value:
    raise UserError('give --serve to vote, or --report for the table')
  workdir = pathlib.Path(WORKDIR.value)
  study, path = vote.Study(workdir), workdir / 'votes.jsonl'
  if REPORT.value:
    table = vote.table3(study, vote.read_votes(path))
    files.write_text(workdir / 'table3.md', table)
    print(f'{table}\nThe table is {workdir}/table3.md')
    return
  with files.lock(path, wait=False) as is_only, contextlib.suppress(KeyboardInterrupt):
    if not is_only:
      raise UserError(f'another server writes to {path}: let people vote there, or end it')
    server = vote.Server(study, path, HOST.value, PORT.value)
    print(
      f'Vote at {server.address}; votes are kept in {path}; Ctrl-C ends the server.', flush=True
    )
    server.serve_forever()
  print(
    '\nEnded. To continue, run the same command. For the table, give --report instead of --serve.'
  )


if __name__ == '__main__':
  cli.run(main)
