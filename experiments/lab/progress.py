"""Progress of work on many items, done here or by others."""

import datetime
import time
from types import TracebackType

import rich.progress as bars

from experiments.lab.console import plain_console


class Progress:
  """Items done, items a second and the time left: a bar, or lines of a log if stdout is no
  terminal."""

  def __init__(self, total: int, noun: str) -> None:
    self._noun = noun
    self._total, self._done, self._made, self._since = total, 0, 0, time.monotonic()
    self._console = plain_console()
    columns = (
      noun,
      bars.MofNCompleteColumn(),
      bars.BarColumn(),
      bars.TextColumn('{task.description}'),
    )
    self._bar = bars.Progress(
      *columns, console=self._console, disable=not self._console.is_terminal
    )
    self._task = self._bar.add_task('compiling', total=total)

  def __enter__(self) -> 'Progress':
    self._bar.start()
    return self

  def __exit__(
    self, kind: type | None, error: BaseException | None, trace: TracebackType | None
  ) -> None:
    self._bar.stop()

  def add(self, count: int) -> None:
    """Counts items that this process made."""
    self._done, self._made = self._done + count, self._made + count
    self._bar.update(self._task, completed=self._done, description=self._speed())

  def reset(self, done: int) -> None:
    """Sets the number of items on the disk, whoever made them."""
    self._done = done
    self._bar.update(self._task, completed=done)

  def log(self, name: str) -> None:
    """Prints the state in a line if there is no bar."""
    if not self._console.is_terminal:
      self._console.print(
        f'{name}  {self._done:,} of {self._total:,} {self._noun}s  {self._speed()}'
      )

  def note(self, text: str) -> None:
    self._console.print(text)

  def _speed(self) -> str:
    rate = max(self._made, 1) / (time.monotonic() - self._since)
    left = datetime.timedelta(seconds=round((self._total - self._done) / rate))
    return f'{rate:,.1f} {self._noun}s/s  {left} left'
