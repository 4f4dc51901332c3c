"""What a training run shows: a progress bar (or plain lines where stdout is no terminal), and
TensorBoard's numbers."""

import datetime
import os
import time
from collections import defaultdict
from pathlib import Path
from types import TracebackType
from typing import Any

import jax
import numpy as np

from fastdec import extras
from fastdec.errors import UserError
from fastdec.training.losses import Metrics
from fastdec.training.processes import is_first

with extras.explained():
  import rich.progress as bars
  from rich.console import Console
  from tensorboardX import SummaryWriter


class Progress:
  """Collects the metrics of every step on the device, and fetches them together when asked to log.

  Of several processes the first alone shows them; all of them stop where a number is not finite.
  """

  def __init__(self, workdir: str | os.PathLike[str], step: int, steps: int) -> None:
    self.step, self.steps = step, steps
    self._since = time.monotonic()
    self._window: list[Metrics] = []
    self._writer = SummaryWriter(
      str(Path(workdir) / 'tb'), purge_step=step + 1, write_to_disk=is_first()
    )
    self._console = Console(highlight=False, soft_wrap=True, quiet=not is_first())
    columns = (
      'step',
      bars.MofNCompleteColumn(),
      bars.BarColumn(),
      bars.TextColumn('{task.description}'),
    )
    self._bar = bars.Progress(
      *columns, console=self._console, disable=not self._console.is_terminal
    )
    self._task = self._bar.add_task('compiling', total=steps, completed=step)

  def __enter__(self) -> 'Progress':
    self._bar.start()
    return self

  def __exit__(
    self, kind: type | None, error: BaseException | None, trace: TracebackType | None
  ) -> None:
    self._bar.stop()
    self._writer.close()

  def add(self, metrics: Metrics, ahead: int) -> None:
    """One more step, of which the device may have `ahead` still to do."""
    self.step += 1
    self._window.append(metrics)
    if len(self._window) > ahead:
      jax.block_until_ready(self._window[-1 - ahead])
    self._bar.update(self._task, completed=self.step)

  def log(self) -> None:
    """Shows the means since the last call.

    Raises:
      UserError: a loss or a gradient was no finite number.
    """
    rows = [
      {name: value.item() for name, value in row.items()} for row in jax.device_get(self._window)
    ]
    if not rows:
      return
    self._check_finite(rows)
    seconds, self._since = time.monotonic() - self._since, time.monotonic()
    means = _means(rows)
    means['tokens_per_second'] = sum(row['tokens'] for row in rows) / seconds
    for name, value in means.items():
      self._writer.add_scalar(f'train/{name}', value, self.step)
    left = datetime.timedelta(seconds=round((self.steps - self.step) * seconds / len(rows)))
    self._show(f'loss {means["loss"]:.3f}  {means["tokens_per_second"]:,.0f} tokens/s  {left} left')
    self._window = []

  def evaluated(self, values: dict[str, float]) -> None:
    """Shows the numbers of an evaluation; the time it took is not training's."""
    for name, value in values.items():
      self._writer.add_scalar(f'eval/{name}', value, self.step)
    words = '  '.join(f'{name} {value:.4g}' for name, value in values.items())
    self._console.print(f'step {self.step}/{self.steps}  evaluation: {words}', markup=False)
    self._since = time.monotonic()

  def _show(self, text: str) -> None:
    if self._console.is_terminal:
      self._bar.update(self._task, description=text)
    else:
      self._console.print(f'step {self.step}/{self.steps}  {text}', markup=False)

  def _check_finite(self, rows: list[dict[str, Any]]) -> None:
    for back, row in enumerate(rows):
      for name in ('loss', 'gradient_norm'):
        if not np.isfinite(row[name]):
          raise UserError(
            f'{name} became {row[name]} at step {self.step - len(rows) + back + 1}, at learning'
            ' rate'
            f' {row["learning_rate"]:.2g}: the last good checkpoint is kept; lower the rate or'
            ' lengthen the warm-up'
            ' in another workdir'
          )


def _means(rows: list[dict[str, Any]]) -> dict[str, float]:
  """Means over steps; where a step draws a head, the loss of each head drawn too."""
  values = defaultdict(list)
  for row in rows:
    for name, value in row.items():
      if name not in ('head', 'tokens'):
        values[name].append(value)
    if 'head' in row:
      values[f'loss_head_{row["head"]}'].append(row['loss'])
  return {name: float(np.mean(of_name)) for name, of_name in values.items()}
