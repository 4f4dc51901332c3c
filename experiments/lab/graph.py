"""A graph of work that several processes share: every node is done once, by whoever comes first.

A process claims a node by a lock file, which dies with it; who finds a node taken does another one,
or waits. What is done is seen on the disk, so the same command goes on where everything was
interrupted. A node that fails takes those that need it along, and no others.
"""

import contextlib
import dataclasses
import pathlib
import time
import traceback
from collections.abc import Callable, Mapping, Sequence

import rich.console

from fastdec.errors import UserError
from fastdec.files import locked

POLL_SECONDS = 1.0  # between two looks at what other processes are doing
LONGEST_REASON = 400  # characters


@dataclasses.dataclass(frozen=True)
class Node:
  """A piece of work.

  Attributes:
    name: of the node, its lock and its log.
    title: for the console, such as 'training the base model'.
    needs: names of the nodes that come before.
    is_done: whether the result is on the disk.
    work: makes it, or goes on; it takes the seconds that are left, None for as long as it takes.
    is_shared: whether `work` may run in several processes at once: they join in when there is
      nothing else to do.
    seconds: of the budget that must be left for the work to begin.
  """

  name: str
  title: str
  needs: tuple[str, ...]
  is_done: Callable[[], bool]
  work: Callable[[float | None], object]
  is_shared: bool = False
  seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class Outcome:
  """What has come of the nodes.

  Attributes:
    failed: why nodes failed, by name; 'base: no space left' for a node that needs the base, which
      failed.
    is_complete: whether all others are done; else the budget ended before, or was too short for
      them to begin.
  """

  failed: Mapping[str, str]
  is_complete: bool


class Budget:
  """A time to keep to, in seconds from now; None is endless."""

  def __init__(self, seconds: float | None) -> None:
    self._end = None if seconds is None else time.monotonic() + seconds

  @property
  def left(self) -> float | None:
    return None if self._end is None else self._end - time.monotonic()

  @property
  def is_over(self) -> bool:
    return self.left is not None and self.left <= 0

  def has(self, seconds: float) -> bool:
    """Whether so much is left."""
    return self.left is None or self.left >= seconds


class Worker:
  """One process at work on a graph.

  Args:
    nodes: all of them, each after what it needs.
    workdir: gets `locks/`, and `failures/` with a traceback for each node that failed.
    budget: when to stop.
    console: gets a line for everything that begins, fails or is waited for.
  """

  def __init__(
    self,
    nodes: Sequence[Node],
    workdir: pathlib.Path,
    budget: Budget,
    console: rich.console.Console,
  ) -> None:
    self.nodes, self.workdir, self.budget, self.console = nodes, workdir, budget, console
    self._reasons: dict[str, str] = {}  # of nodes that failed here

  def run(self) -> Outcome:
    """Works until everything is done, failed, or out of time."""
    waited_for: list[str] = []
    while True:
      missing = self._missing()
      failed = self._failed(missing)
      left = [node for node in missing.values() if node.name not in failed]
      if not left or self.budget.is_over:
        return Outcome(failed, not left)
      ready = [node for node in left if not any(need in missing for need in node.needs)]
      ready = [node for node in ready if self.budget.has(node.seconds)]
      if not ready:
        return Outcome(failed, False)
      if any(map(self._try, ready)) or any(self._join(node) for node in ready if node.is_shared):
        continue
      if (names := [node.name for node in ready]) != waited_for:
        self.console.print(f'Waiting for {", ".join(names)}: another process is at it')
        waited_for = names
      time.sleep(POLL_SECONDS)

  def _missing(self) -> dict[str, Node]:
    """Unfinished nodes on which some final node (one that no other node needs) depends."""
    wanted = {node.name for node in self.nodes} - {
      need for node in self.nodes for need in node.needs
    }
    found = []
    for node in reversed(self.nodes):
      if node.name in wanted and not node.is_done():
        found.append(node)
        wanted.update(node.needs)
    return {node.name: node for node in reversed(found)}

  def _failed(self, missing: Mapping[str, Node]) -> dict[str, str]:
    """Why missing nodes cannot be done; failures of nodes that another process has done since are
    forgotten."""
    causes = {name: name for name in self._reasons if name in missing}
    for node in missing.values():
      for need in node.needs:
        if need in causes:
          causes.setdefault(node.name, causes[need])
    reasons = {}
    for name, cause in causes.items():
      reasons[name] = self._reasons[cause] if name == cause else f'{cause}: {self._reasons[cause]}'
    return reasons

  def _try(self, node: Node) -> bool:
    """Does a node, unless another process is at it."""
    with locked(self.workdir / 'locks' / f'{node.name}.lock', wait=False) as is_mine:
      if is_mine:
        self._join(node)
    return is_mine

  def _join(self, node: Node) -> bool:
    if node.is_done():
      return True
    self.console.rule(node.title, align='left')
    log = self.workdir / 'failures' / f'{node.name}.log'
    try:
      node.work(self.budget.left)
      if not (node.is_done() or self.budget.is_over):
        raise UserError(f'{node.name} ended without a result: run the same command again')
      log.unlink(missing_ok=True)
    except Exception as error:
      self._reasons[node.name] = reason = _reason(error)
      self.console.print(f'{node.name} failed: {reason} (see {log})', style='red')
      with contextlib.suppress(OSError):  # a full disk is no reason to stop
        log.parent.mkdir(exist_ok=True)
        log.write_text(''.join(traceback.format_exception(error)))
    return True


def _reason(error: Exception) -> str:
  """An error in a line."""
  words = ' '.join(str(error).split())
  if not isinstance(error, UserError):
    words = f'{type(error).__name__}: {words}'
  return words if len(words) <= LONGEST_REASON else f'{words[: LONGEST_REASON - 1]}…'
