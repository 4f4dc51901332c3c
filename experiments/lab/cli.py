"""Shared command-line handling of all experiments: one `--config`, a mistake is one sentence,
Ctrl-C is one line.

Exit codes: 0 done, or the budget ended first, as the last line says ('Out of budget: ...'); 1 some
of it failed; 2 a mistake of the user (a sentence on stderr, no traceback); 130 Ctrl-C; 141 the
reader of the output has stopped (`| head`). A bug keeps its traceback. A `UserNote`, which is a
warning, is a sentence on stderr too.
"""

import argparse
import contextlib
import dataclasses
import difflib
import math
import re
import runpy
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import app, flags, logging
from ml_collections import ConfigDict

from experiments.lab.config import Config, leaves_of, locked, read_text, to_dataclass
from fastdec.errors import UserError
from fastdec.fields import describe_type, list_known
from fastdec.files import place, place_to_write, without_folders
from fastdec.terminal import expand_home, leave, parse_seconds, run_command

flags.disclaim_key_flags()  # `--help` of a command lists the flags that are defined for it here


CONFIGS = Path(__file__).resolve().parents[2] / 'configs'
PATHS = ('workdir', 'teacher', 'model', 'out', 'output', 'folder')  # flags with one path
SETTING = re.compile(r'--?(no)?config\.([^=]+)(?:=(.*))?', re.DOTALL)  # a word that gives one
ENGINES = ('local', 'processes', 'slurm')
Make = Callable[[Any, Any], None]  # of settings and a Workdir, which gets the rows


class ConfigFlag(flags.Flag):
  """`--config=page.py:choices`, whose value is the config once all flags are read, with the
  settings that `--config.part.name=value` gives. The command takes these pages of configs/, such as
  'wmt14' (none: all), and any page outside configs/, a user's own."""

  def __init__(self, *pages: str) -> None:
    self.pages, self.argument = pages, ''  # page.py:choices
    self.page: Mapping[str, Any] = {}  # what the page defines
    self.settings: dict[str, Any] = {}  # of the command line, by their dotted names
    about = 'config file; its choices follow after a colon, --config.NAME=VALUE sets a setting'
    super().__init__(flags.ArgumentParser(), flags.ArgumentSerializer(), 'config', None, about)

  def open(self, argument: str) -> Config:
    """Reads a page, and returns its config.

    Raises:
      UserError: the file is missing, has no `get_config`, or belongs to a different command; and
        what its `get_config` raises.
    """
    name, _, choices = argument.partition(':')
    path = Path(name)
    if not path.is_file():
      example = f'configs/{(*self.pages, "wmt14")[0]}.py'
      raise UserError(f"the config file '{name}' does not exist: give one, such as {example}")
    if self.pages and path.resolve().parent == CONFIGS and path.stem not in self.pages:
      wanted = ' or '.join(f'configs/{page}.py' for page in self.pages)
      raise UserError(f'this command does not read {path}: give {wanted}')
    self.argument, self.page = argument, runpy.run_path(name)
    if 'get_config' not in self.page:
      raise UserError(f"'{argument}' is not a config: it has no function get_config")
    config = self.page['get_config'](choices)
    if not isinstance(config, ConfigDict):
      kind = type(config).__name__
      raise UserError(f'get_config of {name} must return a config, not {kind}: use config_of')
    return config if isinstance(config, Config) else locked(**config.to_dict())

  def set(self, config: Config, words: Sequence[str]) -> list[str]:
    """Sets what words of the command line give, such as --config.k=2; returns the other words.

    A list that is given several times has all entries.
    """
    rest, following = [], iter(words)
    for word in following:
      match = SETTING.fullmatch(word)
      if match is None:
        rest.append(word)
        if word == '--':
          break
        continue
      no, name, text = match.groups()
      hint = config.hint_of(name, f'--{no or ""}config.{name}')
      if no and (hint is not bool or text is not None):
        raise UserError(f'{word} is not possible: give --config.{name}=...')
      if text is None and hint is bool:
        text = 'false' if no else 'true'
      elif text is None:
        text = next(following, '')
      value = read_text(hint, text, f'config.{name}')
      if isinstance(value, tuple):
        value = self.settings.pop(name, ()) + value
      self.settings[name] = value
    config.set(self.settings)
    return [*rest, *following]


def config_flag(*pages: str) -> flags.FlagHolder:
  """Defines `--config`, see `ConfigFlag`."""
  holder = flags.DEFINE_flag(ConfigFlag(*pages))
  flags.mark_flag_as_required('config')
  return holder


def budget_flag() -> Callable[[], contextlib.AbstractContextManager[None]]:
  """Defines `--budget=540s` (or 9m, 1.5h): the time after which a command stops cleanly. The same
  command continues. Returns a function that limits the time of a block to it."""
  text = 'stop cleanly after this time, such as 540s, 9m or 1.5h'
  flag = flags.DEFINE_string('budget', None, text)

  def limit_time() -> contextlib.AbstractContextManager[None]:
    from fastdec.training import stage

    return stage.budget(seconds(flag.value))

  return limit_time


def process_flags() -> None:
  """Defines `--coordinator=host:port --processes=2 --process=0`; `run` connects this process to the
  others."""
  flags.DEFINE_string(
    'coordinator', None, 'of several processes: host:port where process 0 listens; or cluster'
  )
  flags.DEFINE_integer(
    'processes', 1, 'how many processes work together, started with the same flags'
  )
  flags.DEFINE_integer('process', 0, 'which of them this is, from 0')


def connect(words: Sequence[str]) -> None:
  """Connects this process to the others that the flags name. JAX needs that before it computes
  anything, and already a config may compute something."""
  found = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
  found.add_argument('--coordinator')
  found.add_argument('--processes', type=int, default=1)
  found.add_argument('--process', type=int, default=0)
  try:
    place, count, own = vars(found.parse_known_args(words)[0]).values()
  except argparse.ArgumentError:
    return  # the flags say what is wrong
  if place is None:
    if count > 1:
      raise UserError(f'--processes={count} need to meet: give --coordinator=host:port')
    return
  from fastdec.training import processes as together

  if place == 'cluster':
    together.connect_by_cluster()
  else:
    together.connect(place, count, own)


def seconds(text: str | None) -> float | None:
  """A time such as 540s, 9m, 1.5h or plain seconds, in seconds; None for None."""
  if text is None:
    return None
  try:
    return parse_seconds(text)
  except argparse.ArgumentTypeError as error:
    raise UserError(f'--budget{error}') from None


def picture_path(name: str | Path, flag: str = '--out') -> Path:
  """The path that a flag gives, where a picture is written; raises UserError where that is
  impossible."""
  path, needs = Path(name), 'name a file in a folder that exists'
  if path.suffix.lower() != '.png':
    raise UserError(f'{flag}={name} must be a PNG: give a name that ends in .png')
  if path.is_dir():
    raise UserError(f'{flag}={name} is a folder: {needs}')
  if not path.parent.is_dir():
    raise UserError(f'{flag}={name} needs the folder {path.parent}: {needs}')
  return place_to_write(path)


def config_string(overrides: Mapping[str, Any] | None = None) -> str:
  """The config as rows name it, such as 'configs/wmt14.py:k=8 --config.steps=10': the words of the
  command line with other values by setting, without the folders of absolute paths."""
  flag: Any = flags.FLAGS['config']
  words = [flag.argument]
  for name, value in {**flag.settings, **(overrides or {})}.items():
    words.append(f'--config.{name}={value}')
  return without_folders(' '.join(words))


def run(main: Callable[[list[str]], None], words: bool = False) -> None:
  """Parses the command line, calls `main` with the words besides the flags, and ends the process.
  Such a word is a mistake unless the command takes `words`."""

  def work() -> None:
    sys.argv[1:] = expand_home(sys.argv[1:])
    if 'coordinator' in flags.FLAGS:
      connect(sys.argv[1:])
    rest = _parse(sys.argv)[1:]
    if rest and not words:
      raise UserError(f"'{rest[0]}' is not a flag: {_known_flags()}")
    main(rest)

  leave(run_command(work, 'Interrupted: the same command continues'))


@dataclasses.dataclass(frozen=True)
class Paper:
  """Description of a paper for `experiments.sweep`; a page of configs/ names it as PAPER."""

  settings: type  # the dataclass of its config
  make: Make
  axes: Mapping[str, str]  # {'k': 'table.ks'}: a row's field, and the setting that lists its values
  figures: Sequence[tuple[str, str, str]]  # heading, field, format; the picture shows the first
  names: Sequence[str] = ()  # other fields that name a row and are not settings
  # The fields that name each row of a page without some products of its lists; None: it has all.
  plans: Callable[[Any], Iterable[Mapping[str, Any]]] | None = None
  partial: str = 'sweep values that it has, or leave these out'  # what to do about the others


class Page:
  """Flags of a paper's command: --config (of these pages), --workdir (which only a plan can do
  without), --plan, --budget, --engine, and those of `process_flags`."""

  def __init__(self, *pages: str) -> None:
    self.config = config_flag(*pages)
    self.workdir = flags.DEFINE_string('workdir', None, 'folder of the results')
    self.plan = flags.DEFINE_string(
      'plan', None, 'print stages, time, memory and disk on a machine, and do nothing: h100x8'
      ' (without a name), a100x8, h100x64 and so on, or cpu, which is this one',
    )  # fmt: skip
    needs = 'must have a value other than None'
    flags.register_validator('workdir', lambda root: root is not None or self.plan.value, needs)
    self.limit_time = budget_flag()
    process_flags()
    self.engine = flags.DEFINE_enum(
      'engine', 'local', ENGINES, 'runs rows here in order, by --jobs processes, or on a cluster'
    )
    self.jobs = flags.DEFINE_integer('jobs', 2, 'processes at a time', lower_bound=1)
    self.partition = flags.DEFINE_string('slurm.partition', '', 'of the cluster')
    self.gpus = flags.DEFINE_integer('slurm.gpus', 1, 'of each job', lower_bound=0)
    self.minutes = flags.DEFINE_integer('slurm.time', 240, 'minutes of a job', lower_bound=1)

  def run(self, settings: type, make: Make) -> None:
    """Makes the page and ends the process: by 1 if a row failed, else by 0. With --plan it only
    shows what that would take."""
    c = to_dataclass(settings, self.config.value)
    if self.plan.value is None:
      with self.limit_time():
        work = self.make_all(c, make)
      end([work])
    else:
      from experiments.lab import costs, machine

      root = Path(self.workdir.value or 'WORKDIR')
      costs.show(c, make, root, machine.machine_of(self.plan.value))

  def make_all(
    self,
    c: Any,
    make: Make,
    overrides: Mapping[str, Any] | None = None,
    on_rows: Callable[[list[Any]], None] | None = None,
  ) -> Any:
    """Calls make(c, work) until it ends or the budget does; returns the `Workdir`. In `overrides`
    these settings differ from the command's; `on_rows`: see `Workdir`."""
    from experiments.lab import engine
    from experiments.lab.costs import COSTS, check_room
    from experiments.lab.machine import memory_here
    from experiments.lab.plan import Plan
    from experiments.lab.workdir import Workdir
    from fastdec.kernels.sharding import make_own_mesh
    from fastdec.training import processes, stage

    root, here = Path(str(self.workdir.value)), conditions()
    here['config'] = config_string(overrides)
    jobs, memory = None, math.inf
    if self.engine.value != 'local' and processes.count() > 1:
      raise UserError(
        f'--engine={self.engine.value} starts its own processes: leave out --coordinator'
      )
    if self.engine.value == 'processes':
      jobs = engine.by_processes(root / 'jobs', self.jobs.value)
    elif self.engine.value == 'slurm':
      sizes = self.partition.value, self.gpus.value, self.minutes.value
      jobs = engine.by_slurm(root / 'jobs', *sizes)
    else:
      memory = memory_here()
      if hasattr(c, 'mesh'):
        make_own_mesh(c.mesh)  # a mistake shows before any work
    work = Workdir(root, here, jobs)
    work.on_rows = on_rows

    # List all stages as if none were made; those that have not begun must have room.
    plan = Plan(root / 'new', None, COSTS)
    plan.read(make, c)
    begun = {folder.name.rpartition('-')[0] for folder in root.glob('*-*')}
    costs = [cost for name, _, cost in plan.entries if cost is not None and name not in begun]
    check_room(costs, memory, root)
    work.planned = plan.steps
    try:
      with contextlib.nullcontext() if jobs is None else engine.ended_in_order():
        make(c, work)
    except stage.OutOfTime:
      work.is_complete = False
    return work


def end(workdirs: Sequence[Any]) -> None:
  """Ends the process, by 1 if a row failed. The last line counts failures, or says that the budget
  ended."""
  show: Any = workdirs[0].console.print
  failed, root = sum(len(work.failed) for work in workdirs), workdirs[0].root
  if failed:
    show(
      f'{failed} of the rows failed: the reasons are in {root}/failures, and the same command tries'
      ' them again'
    )
    sys.exit(1)
  if not all(work.is_complete for work in workdirs):
    show(f'Out of budget: the same command continues in {root}')


def conditions() -> dict[str, Any]:
  """Conditions of this command's figures: its config, the machine and the commit."""
  # imported here, so that a mistyped flag is reported before JAX is loaded
  from fastdec.evaluation.rows import conditions as here

  return {'config': config_string(), **here()}


def _parse(argv: list[str]) -> list[str]:
  """`flags.FLAGS(argv)`, with every mistake of the user as a UserError."""
  words = flags.FLAGS.read_flags_from_files(argv, force_gnu=False)
  words = ['--plan=h100x8' if word == '--plan' else word for word in words]
  flag: Any = None
  if 'config' in flags.FLAGS:
    flag = flags.FLAGS['config']
  argument, config = _config_argument(words), None
  if flag is not None and argument is not None:
    config = flag.open(argument)
    words = flag.set(config, words)
  elif flag is not None:  # what is missing is the page, not its settings
    words = [word for word in words if not SETTING.fullmatch(word)]
  app.define_help_flags()
  try:
    rest = flags.FLAGS(words)
  except flags.UnrecognizedFlagError as error:
    advice = _known_flags()
    if near := difflib.get_close_matches(error.flagname, list(flags.FLAGS), 1):
      advice = f'did you mean --{near[0]}? {advice}'
    raise UserError(f'there is no flag --{error.flagname}: {advice}') from None
  except flags.Error as error:
    raise _mistake(error) from None
  except SystemExit:  # absl ends --help with 1, as if it were a failure
    if flag is not None:
      print(f'\n{_settings_help(flag, config)}')
    sys.exit(0)
  if flag is not None and config is not None:
    flag.value = config
  for name in PATHS:
    if name in flags.FLAGS and flags.FLAGS[name].value is not None:
      place(flags.FLAGS[name].value)  # refuses a name that no file can have
  # absl would show what JAX and Orbax log for their developers
  if flags.FLAGS['verbosity'].using_default_value:
    flags.FLAGS.verbosity = logging.WARNING
  return rest


def _mistake(error: flags.Error) -> UserError:
  """A wrong flag as a sentence."""
  illegal = re.match(r'flag --([^=]+)=(.*?): (.*)', str(error), re.DOTALL)
  if illegal is None:
    return UserError(str(error))
  name, value, reason = illegal.groups()
  if 'must have a value other than None' in reason:
    return UserError(f'--{name} is missing: {flags.FLAGS[name].help}')
  reason = re.sub(r'^invalid literal for int.*', 'give a whole number', reason)
  return UserError(f'--{name}={value} is not possible: {reason}')


def _settings_help(flag: ConfigFlag, config: Config | None) -> str:
  """Describes a page of a command: its choices, as the page says, and its settings. Without
  `--config` it is the command's own page, if there is one."""
  if config is None and len(flag.pages) != 1:
    pages = map('configs/{}.py'.format, flag.pages or ('wmt14',))
    return f'With --config=PAGE too, --help lists its settings: PAGE may be {", ".join(pages)}'
  if config is None:
    config = flag.open(str(CONFIGS / f'{flag.pages[0]}.py'))
  lines = [str(flag.page.get('__doc__') or '').strip(), '', 'Settings, as --config.NAME=VALUE:']
  values = leaves_of(config)
  for name, hint in config.hints.items():
    lines.append(f'  {name}={values[name]}: {describe_type(hint)}')
  return '\n'.join(lines)


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
  return list_known(f'--{flag.name}' for flag in flags_here)
