"""Metrics of a training run: shown, drawn by TensorBoard, and kept as JSON lines.

  workdir/metrics.jsonl   {"step": 50, "train": {"loss": 3.21, ...}}, {"step": 100, "eval": {...}}
  workdir/tb/             the same for TensorBoard

A run that continues from a checkpoint removes the lines of later steps, which it will write again.
"""

import os
from collections import defaultdict
from pathlib import Path
from types import TracebackType
from typing import Any

import jax
import numpy as np

from fastdec import extras
from fastdec.errors import UserError
from fastdec.evaluation import wallclock
from fastdec.files import json_lines, to_json, write_text
from fastdec.training.losses import Metrics
from fastdec.training.processes import is_first
from fastdec.training.progress import Progress

with extras.explained():
  from tensorboardX import SummaryWriter


class TrainingLog:
  """The metrics of every step, collected on the device and fetched together by `log`.

  Only the first of several processes shows and writes them. All stop if a number is not finite.
  """

  def __init__(self, workdir: str | os.PathLike[str], step: int, steps: int) -> None:
    self._step, self._steps = step, steps
    self._since: float | None = None  # start of the window's steps; None while they compile
    self._window: list[Metrics] = []
    self._progress = Progress(steps, 'step', step, quiet=not is_first())
    self._writer = SummaryWriter(
      str(Path(workdir) / 'tb'), purge_step=step + 1, write_to_disk=is_first()
    )
    self._path = _path(workdir)
    if is_first():
      # Steps after the checkpoint will be done again, so their lines go.
      text = ''
      for row in read_metrics(workdir):
        if row['step'] <= step:
          text += to_json(row) + '\n'
      write_text(self._path, text)

  def __enter__(self) -> 'TrainingLog':
    self._progress.__enter__()
    return self

  def __exit__(
    self, kind: type | None, error: BaseException | None, trace: TracebackType | None
  ) -> None:
    self._progress.__exit__(kind, error, trace)
    self._writer.close()

  def add(self, metrics: Metrics, ahead: int) -> None:
    """Adds a step, and waits until the device has at most `ahead` steps left to do."""
    self._step += 1
    self._window.append(metrics)
    if len(self._window) > ahead:
      jax.block_until_ready(self._window[-1 - ahead])
    self._progress.add()

  def log(self) -> None:
    """Logs the means since the last call.

    Raises:
      UserError: a loss or a gradient was not finite, or the disk is full.
    """
    if not self._window:
      return
    rows = []
    for metrics in jax.device_get(self._window):
      rows.append({name: value.item() for name, value in metrics.items()})
    self._check_finite(rows)
    means, words = _means(rows), ''
    if self._since is not None:
      seconds = wallclock.now() - self._since
      means['seconds_per_step'] = seconds / len(rows)
      means['tokens_per_second'] = sum(row['tokens'] for row in rows) / seconds
      words = f'  {means["tokens_per_second"]:,.0f} tokens/s'
    self._write('train', means)
    self._progress.show(f'loss {means["loss"]:.3f}{words}')
    self._window, self._since = [], wallclock.now()

  def log_evaluation(self, values: dict[str, float]) -> None:
    """Logs the numbers of an evaluation, whose time does not count as training.

    A number that is not finite has no value (an accuracy without guesses), and is left out.
    """
    values = {name: value for name, value in values.items() if np.isfinite(value)}
    self._write('eval', values)
    words = '  '.join(f'{name} {value:.4g}' for name, value in values.items())
    self._progress.note(f'step {self._step}/{self._steps}  evaluation: {words}')
    if self._since is not None:
      self._since = wallclock.now()

  def _write(self, kind: str, values: dict[str, float]) -> None:
    for name, value in values.items():
      self._writer.add_scalar(f'{kind}/{name}', value, self._step)
    if not is_first():
      return
    row = {'step': self._step, kind: {name: float(value) for name, value in values.items()}}
    try:
      with open(self._path, 'a') as file:
        file.write(to_json(row) + '\n')
    except OSError as error:
      raise UserError(f'cannot write {self._path} ({error.strerror}): make room') from error

  def _check_finite(self, rows: list[dict[str, Any]]) -> None:
    for back, row in enumerate(rows):
      for name in ('loss', 'gradient_norm'):
        if not np.isfinite(row[name]):
          raise UserError(
            f'{name} became {row[name]} at step {self._step - len(rows) + back + 1}, at learning'
            f' rate {row["learning_rate"]:.2g}: the last good checkpoint is kept; lower the rate or'
            ' lengthen the warm-up in another workdir'
          )


def read_metrics(workdir: str | os.PathLike[str]) -> list[dict[str, Any]]:
  """Reads the lines of `metrics.jsonl`, in order; [] without the file.

  A line that a killed process has cut short is left out.
  """
  rows = []
  for _, row in json_lines(_path(workdir)):
    if isinstance(row, dict) and isinstance(row.get('step'), int):
      rows.append(row)
  return rows


def _path(workdir: str | os.PathLike[str]) -> Path:
  return Path(workdir) / 'metrics.jsonl'


def _means(rows: list[dict[str, Any]]) -> dict[str, float]:
  """Averages over the steps that have a value; if each step draws a head, also the loss by head."""
  values = defaultdict(list)
  for row in [row for row in rows if row['tokens']] or rows:
    for name, value in row.items():
      if name not in ('head', 'tokens') and np.isfinite(value):
        values[name].append(value)
    if 'head' in row:
      values[f'loss_head_{row["head"]}'].append(row['loss'])
  return {name: float(np.mean(steps)) for name, steps in values.items()}
