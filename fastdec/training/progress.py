"""Progress of work on many items: a bar, or plain lines if stdout is not a terminal."""

import contextlib
import contextvars
import datetime
from collections.abc import Iterator
from types import TracebackType

import rich.progress as bars
from rich.console import Console

from fastdec.evaluation import wallclock

_place: contextvars.ContextVar[tuple[str, int]] = contextvars.ContextVar('place', default=('', 0))


@contextlib.contextmanager
def named(place: str, later: int = 0) -> Iterator[None]:
  """Names the place of the block's work in a larger one, such as 'stage 3 of 7, k8-finetune': all
  progress in the block shows it. `later` is the number of training steps in the stages after it."""
  token = _place.set((place, later))
  try:
    yield
  finally:
    _place.reset(token)


class Progress:
  """Items done and the time left.

  The first piece of work compiles, so it is not timed. The time left is shown once two others are.

  Args:
    total: number of items.
    noun: name of one, such as 'sentence'.
    done: number of items that are done already.
    quiet: shows nothing.
  """

  def __init__(self, total: int, noun: str, done: int = 0, quiet: bool = False) -> None:
    self._total, self._noun, self._done = total, noun, done
    place, self._later = _place.get()
    self._before = f'{place}, '.removeprefix(', ')
    self._pieces, self._timed, self._since = 0, 0, wallclock.now()
    self._text = ''
    self._console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True, quiet=quiet)
    columns = (
      self._before + noun,
      bars.MofNCompleteColumn(),
      bars.BarColumn(20),
      bars.TextColumn('{task.description}', markup=False),
    )
    self._bar = bars.Progress(
      *columns, console=self._console, disable=not self._console.is_terminal
    )
    self._task = self._bar.add_task('compiling', total=total, completed=done)

  def __enter__(self) -> 'Progress':
    self._bar.start()
    return self

  def __exit__(
    self, kind: type | None, error: BaseException | None, trace: TracebackType | None
  ) -> None:
    self._bar.stop()

  def add(self, count: int = 1) -> None:
    """Counts a piece of work, of `count` items that this process made."""
    if self._pieces:
      self._timed += count
    else:
      self._since = wallclock.now()
    self._pieces += 1
    self._done += count
    self._bar.update(self._task, completed=self._done, description=self._words())

  def reset(self, done: int) -> None:
    """Sets the number of items done, by any process."""
    self._done = done
    self._bar.update(self._task, completed=done)

  def show(self, text: str) -> None:
    """Shows a text and the time left next to the bar, or prints them as a line."""
    self._text = text
    if self._console.is_terminal:
      self._bar.update(self._task, description=self._words())
    else:
      self._console.print(f'{self._before}{self._noun} {self._done}/{self._total}  {self._words()}')

  def note(self, text: str) -> None:
    """Prints a text that stays."""
    self._console.print(self._before + text)

  def _words(self) -> str:
    if self._pieces < 3:
      return self._text
    rate = self._timed / (wallclock.now() - self._since)
    left = datetime.timedelta(seconds=round((self._total - self._done) / rate))
    words = f'{self._text}  {rate:,.1f} {self._noun}s/s  {left} left'.strip()
    if self._later and self._noun == 'step':
      hours = (self._total - self._done + self._later) / rate / 3600
      words += f', all trainings done in about {hours:.2g} h'
    return words
