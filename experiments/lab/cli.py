"""Shared command-line handling of all experiments: one `--config`, a mistake is one sentence,
Ctrl-C is one line. The command of a paper names its settings and its function:

  if __name__ == '__main__':
    cli.run_paper('lookahead', 'experiments.fu2024', 'Lookahead', 'lookahead')

Exit codes: 0 done, or the budget ended first, as the last line says ('Out of budget: ...'); 1 some
of it failed; 2 a mistake of the user (a sentence on stderr, no traceback); 130 Ctrl-C; 141 the
reader of the output has stopped (`| head`). A bug keeps its traceback. A `UserNote`, which is a
warning, is a sentence on stderr too.
"""

import argparse
import contextlib
import dataclasses
import difflib
import importlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags

from experiments.lab.config import known, to_dataclass
from fastdec.errors import UserError
from fastdec.files import place, place_to_write, without_folders
from fastdec.terminal import expand_home, leave, parse_seconds, run_command, walk_causes

flags.disclaim_key_flags()  # `--help` of a command lists the flags that are defined for it here


CONFIGS = Path(__file__).resolve().parents[2] / 'configs'
PATHS = ('workdir', 'teacher', 'model', 'out', 'output', 'folder')  # flags with one path
ENGINES = ('local', 'processes', 'slurm')
Make = Callable[[Any, Any], None]  # of settings and a Workdir, which gets the rows


def config_flag(*pages: str) -> flags.FlagHolder:
  """Defines `--config=page.py:choices`, a locked ConfigDict; `--config.part.leaf=value` sets its
  leaves.

  Args:
    pages: those in configs/ that the command takes, such as 'wmt14'; none: all. It also takes any
      page outside configs/, a user's own.
  """
  holder = config_flags.DEFINE_config_file(
    'config', None, 'config file; its choices follow after a colon'
  )
  flags.mark_flag_as_required('config')
  if pages:
    flags.register_validator('config', lambda _: _check_page(pages))
  return holder


def budget_flag() -> flags.FlagHolder:
  """Defines `--budget=540s` (or 9m, 1.5h): the time after which a command stops cleanly. The same
  command continues."""
  return flags.DEFINE_string(
    'budget', None, 'stop cleanly after this time, such as 540s, 9m or 1.5h'
  )


def process_flags() -> Callable[[], None]:
  """Defines `--coordinator=host:port --processes=2 --process=0`. Returns a function that connects
  this process to the others."""
  coordinator = flags.DEFINE_string(
    'coordinator', None, 'of several processes: host:port where process 0 listens; or cluster'
  )
  processes = flags.DEFINE_integer(
    'processes', 1, 'how many processes work together, started with the same flags'
  )
  process = flags.DEFINE_integer('process', 0, 'which of them this is, from 0')

  def connect() -> None:
    from fastdec.training import processes as together

    if coordinator.value == 'cluster':
      together.connect_by_cluster()
    elif coordinator.value is not None:
      together.connect(coordinator.value, processes.value, process.value)
    elif processes.value > 1:
      raise UserError(f'--processes={processes.value} need to meet: give --coordinator=host:port')

  return connect


def seconds(text: str | None) -> float | None:
  """A time such as 540s, 9m, 1.5h or plain seconds, in seconds; None for None."""
  if text is None:
    return None
  try:
    return parse_seconds(text)
  except argparse.ArgumentTypeError as error:
    raise UserError(f'--budget{error}') from None


def picture_path(name: str) -> Path:
  """The path of `--out=name`, where a picture is written; raises UserError where that is
  impossible."""
  path = Path(name)
  if path.suffix.lower() != '.png':
    raise UserError(f'--out={name} must be a PNG: give a name that ends in .png')
  if path.is_dir():
    raise UserError(f'--out={name} is a folder: name a file in a folder that exists')
  if not path.parent.is_dir():
    raise UserError(
      f'--out={name} needs the folder {path.parent}: name a file in a folder that exists'
    )
  return place_to_write(path)


def config_words(overrides: Mapping[str, Any] | None = None) -> list[str]:
  """The words of the command line that gave the config: --config=... and its leaves.

  Args:
    overrides: values that replace those of the command line, by leaf.
  """
  flag: Any = flags.FLAGS['config']  # ml_collections keeps its class private
  words = [f'--config={flag.config_filename}']
  for key, value in {**flag.override_values, **(overrides or {})}.items():
    words.append(f'--config.{key}={value}')
  return words


def config_string(overrides: Mapping[str, Any] | None = None) -> str:
  """The config as rows name it, such as 'configs/wmt14.py:k=8 --config.steps=10': the words of the
  command line, without the folders of absolute paths."""
  return without_folders(' '.join(config_words(overrides)).removeprefix('--config='))


def run(main: Callable[[list[str]], None], words: bool = False) -> None:
  """Parses the command line, calls `main` with the words besides the flags, and ends the process.

  Args:
    main: what the command does.
    words: whether the command takes words besides its flags; if not, a word is a mistake.
  """

  def work() -> None:
    sys.argv[1:] = expand_home(sys.argv[1:])
    rest = _parse(sys.argv)[1:]
    if rest and not words:
      raise UserError(f"'{rest[0]}' is not a flag: {_known_flags()}")
    main(rest)

  leave(run_command(work, 'Interrupted: the same command continues'))


@dataclasses.dataclass(frozen=True)
class Paper:
  """Description of a paper for `experiments.sweep`; a page of configs/ names it as PAPER.

  Attributes:
    settings: the dataclass of its config.
    make: the paper's function, of settings and a `Workdir`.
    axes: by the name of a row's field, the setting that lists its values: {'k': 'table.ks'}.
    figures: columns of a sweep's table: (heading, field, format), the first drawn in its picture.
    names: other fields that name a row and are not settings, such as the method.
  """

  settings: type
  make: Make
  axes: Mapping[str, str]
  figures: Sequence[tuple[str, str, str]]
  names: Sequence[str] = ()


class Page:
  """Flags of a paper's command: --config (of these pages), --workdir, --budget, --engine."""

  def __init__(self, *pages: str) -> None:
    self.config = config_flag(*pages)
    self.workdir = flags.DEFINE_string('workdir', None, 'folder of the results', required=True)
    self.budget = budget_flag()
    self.engine = flags.DEFINE_enum(
      'engine', 'local', ENGINES, 'runs rows here in order, by --jobs processes, or on a cluster'
    )
    self.jobs = flags.DEFINE_integer('jobs', 2, 'processes at a time', lower_bound=1)
    self.partition = flags.DEFINE_string('slurm.partition', '', 'of the cluster')
    self.gpus = flags.DEFINE_integer('slurm.gpus', 1, 'of each job', lower_bound=0)
    self.minutes = flags.DEFINE_integer('slurm.time', 240, 'minutes of a job', lower_bound=1)

  def run(self, settings: type, make: Make) -> None:
    """Makes the page and ends the process: by 1 if a row failed, else by 0."""
    with self.limit_time():
      work = self.make_all(to_dataclass(settings, self.config.value), make)
    self.end([work])

  def limit_time(self) -> contextlib.AbstractContextManager[None]:
    """Limits the time of the block to the budget."""
    from fastdec.training import stage

    return stage.budget(seconds(self.budget.value))

  def make_all(
    self,
    c: Any,
    make: Make,
    overrides: Mapping[str, Any] | None = None,
    on_rows: Callable[[list[Any]], None] | None = None,
  ) -> Any:
    """Calls make(c, work) until it ends or the budget does; returns the `Workdir`.

    Args:
      c: the settings.
      make: the paper's function.
      overrides: values of leaves in which these settings differ from the command's.
      on_rows: see `Workdir`.
    """
    from experiments.lab import engine
    from experiments.lab.workdir import Workdir
    from fastdec.training import stage

    root, here = Path(self.workdir.value), conditions()
    here['config'] = config_string(overrides)
    jobs = None
    if self.engine.value == 'processes':
      jobs = engine.by_processes(root / 'jobs', self.jobs.value)
    elif self.engine.value == 'slurm':
      sizes = self.partition.value, self.gpus.value, self.minutes.value
      jobs = engine.by_slurm(root / 'jobs', *sizes)
    work = Workdir(root, here, jobs)
    work.on_rows = on_rows
    try:
      with contextlib.nullcontext() if jobs is None else engine.ended_in_order():
        make(c, work)
    except stage.OutOfTime:
      work.is_complete = False
    return work

  def end(self, workdirs: Sequence[Any]) -> None:
    """Ends the process, see `run`. The last line counts failures, or says that the budget ended."""
    root = self.workdir.value
    failed = sum(len(work.failed) for work in workdirs)
    if failed:
      print(
        f'{failed} of the rows failed: the reasons are in {root}/failures, and the same command'
        f' tries them again'
      )
      sys.exit(1)
    if not all(work.is_complete for work in workdirs):
      print(f'Out of budget: the same command continues in {root}')


def run_paper(page: str, module: str, settings: str, function: str) -> None:
  """The command of a paper, which needs no words but its flags.

  Args:
    page: the name of its file in configs/.
    module: where the next two are; it is imported once the flags are known to be right.
    settings: the name of the dataclass of its config.
    function: the name of the function that makes the page, of settings and a `Workdir`.
  """
  flags_of_paper = Page(page)

  def main(_: list[str]) -> None:
    paper = importlib.import_module(module)
    flags_of_paper.run(getattr(paper, settings), getattr(paper, function))

  run(main)


def conditions() -> dict[str, Any]:
  """Conditions of this command's figures: its config, the machine and the commit."""
  # imported here, so that a mistyped flag is reported before JAX is loaded
  from fastdec.evaluation.rows import conditions as here

  return {'config': config_string(), **here()}


def _parse(argv: list[str]) -> list[str]:
  """`flags.FLAGS(argv)`, with every mistake of the user as a UserError."""
  path = _config_argument(argv)
  if path is not None and not Path(path.split(':')[0]).is_file():
    raise UserError(
      f"the config file '{path.split(':')[0]}' does not exist: give one, such as configs/wmt14.py"
    )
  app.define_help_flags()
  try:
    rest = flags.FLAGS(argv)
  except flags.UnrecognizedFlagError as error:
    advice = _known_flags()
    if near := difflib.get_close_matches(error.flagname, list(flags.FLAGS), 1):
      advice = f'did you mean --{near[0]}? {advice}'
    raise UserError(f'there is no flag --{error.flagname}: {advice}') from None
  except (flags.Error, AttributeError, LookupError, TypeError, ValueError) as error:
    raise _mistake(error, argv) or error from None
  except SystemExit:  # absl ends --help with 1, as if it were a failure
    sys.exit(0)
  for name in PATHS:
    if name in flags.FLAGS and flags.FLAGS[name].value is not None:
      place(flags.FLAGS[name].value)  # refuses a name that no file can have
  # absl would show what JAX and Orbax log for their developers
  if flags.FLAGS['verbosity'].using_default_value:
    flags.FLAGS.verbosity = logging.WARNING
  return rest


def _mistake(error: Exception, argv: list[str]) -> UserError | None:
  """The mistake of the user as a sentence; None for a bug in the config file."""
  mistakes = [cause for cause in walk_causes(error) if isinstance(cause, UserError)]
  if mistakes:  # raised by get_config; ml_collections wraps it with its traceback as the message
    return mistakes[-1]
  if 'Error whilst parsing config file' in str(error):
    return None
  if isinstance(error, AttributeError) and error.name == 'get_config':
    return UserError(f"'{_config_argument(argv)}' is not a config: it has no function get_config")
  if not isinstance(error, flags.Error):
    return _unknown_key(argv)
  illegal = re.match(r'flag --([^=]+)=(.*?): (.*)', str(error), re.DOTALL)
  if illegal is None:
    return UserError(str(error))
  name, value, reason = illegal.groups()
  if 'must have a value other than None' in reason:
    return UserError(f'--{name} is missing: {flags.FLAGS[name].help}')
  reason = re.sub(r'^invalid literal for int.*', 'give a whole number', reason)
  return UserError(f'--{name}={value} is not possible: {reason}')


def _check_page(pages: Sequence[str]) -> bool:
  """Returns True, which absl needs; raises UserError if the config is another page in configs/."""
  # without an argument it is the current folder, and passes
  path = Path((_config_argument(sys.argv) or '').split(':')[0])
  if path.resolve().parent == CONFIGS and path.stem not in pages:
    wanted = ' or '.join(f'configs/{page}.py' for page in pages)
    raise UserError(f'{path} is a page of another command: give {wanted}')
  return True


def _unknown_key(argv: list[str]) -> UserError | None:
  """Finds the first `--config.a.b` that the config does not have."""
  argument = _config_argument(argv)
  if argument is None:
    return None
  config = flags.FLAGS['config'].parser.parse(argument)
  for key in re.findall(r'^--?(?:no)?config\.([^=\n]*)', '\n'.join(argv), re.MULTILINE):
    part, path = config, 'config'
    for name in key.split('.'):
      if not isinstance(part, ConfigDict):
        return UserError(
          f'--config.{key} is not possible: {path} is the value {part!r} and has no parts'
        )
      if name not in part:
        advice = known(part)
        if near := difflib.get_close_matches(name, list(part), 1):
          advice = f'did you mean {near[0]}? {advice}'
        return UserError(f"--config.{key} is not possible: {path} has no key '{name}', {advice}")
      part, path = part[name], f'{path}.{name}'
  return None


def _config_argument(argv: list[str]) -> str | None:
  """The value of `--config` in the command line, if it is there."""
  for word, following in zip(argv, [*argv[1:], ''], strict=True):
    match = re.fullmatch(r'--?config(=.*)?', word)
    if match and match[1] is None:
      return following
    if match:
      return match[1].removeprefix('=')
  return None


def _known_flags() -> str:
  flags_here = flags.FLAGS.get_key_flags_for_module(sys.argv[0])
  return known(f'--{flag.name}' for flag in flags_here)
