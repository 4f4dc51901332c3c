"""A plan: the stages and rows of an experiment with what they cost, before any work.

A `Plan` takes the place of a `Workdir`, so the paper's own function lists its stages and rows; none
is made. Costs on a GPU are on paper: a kernel takes as long as its FLOPs, or its bytes, at rates
of the data sheet, and never less than a launch. No real run is faster. On this machine, steps and
calls are timed.

FLOPs, bytes and memory of a training step are counted in JAX's program of the very step that
training runs, for the rows of one device. XLA's own count has the same FLOPs, but it counts the
body of a loop once, and compiling for it takes minutes.
"""

import contextlib
import dataclasses
import math
import os
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from experiments.lab.rows import Row, find, read
from fastdec.errors import UserError
from fastdec.training import stage as stages

# --- machines


@dataclasses.dataclass(frozen=True, eq=False)
class Machine:
  """Devices of one kind; all but their number is of each."""

  name: str
  devices: int
  memory: float  # bytes
  # a second in products, by type; {} where programs are timed, on this machine
  flops: Mapping[str, float] = dataclasses.field(default_factory=dict)
  bandwidth: float = math.inf  # bytes of its memory a second
  launch: float = 0.0  # seconds that any kernel takes
  # bytes a second to the others of its node, and to other nodes
  links: tuple[float, float] = (math.inf, math.inf)
  node: int = 8  # devices of a node

  def kernel_seconds(self, flops: float, size: float, dtype: str) -> float:
    """Returns the time of a kernel: of its FLOPs, its bytes, or its launch."""
    rate = self.flops.get(dtype, self.flops.get('float32', math.inf))
    return max(flops / rate, size / self.bandwidth, self.launch)

  def exchange_seconds(self, size: float, devices: int) -> float:
    """Returns the time in which devices add up gradients of `size` bytes: within each node, then
    each device its part between nodes."""
    inside = min(devices, self.node)
    seconds = 2 * (inside - 1) / inside * size / self.links[0]
    if devices > inside:
      nodes = devices // inside
      seconds += 2 * (nodes - 1) / nodes * size / inside / self.links[1]
    return seconds


# NVIDIA's data sheets of the SXM cards with 80 GB, without sparsity; a product of float32 is TF32.
H100 = {'bfloat16': 989e12, 'float32': 494e12}
A100 = {'bfloat16': 312e12, 'float32': 156e12}
GPUS = {
  'h100': Machine('H100', 8, 80e9, H100, 3.35e12, 2e-6, (450e9, 50e9)),
  'a100': Machine('A100', 8, 80e9, A100, 2.04e12, 2e-6, (300e9, 25e9)),
}


def machine_of(name: str) -> Machine:
  """Returns the machine of a name, such as h100x8; 'cpu' is this one."""
  if name == 'cpu':
    return Machine('CPU', 1, os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES'))
  match = re.fullmatch(rf'({"|".join(GPUS)})x([1-9]\d{{0,5}})', name)
  if match is None:
    raise UserError(
      f'--plan={name} is not a machine: give h100x8, a100x8, h100x64 and so on, or cpu'
    )
  return dataclasses.replace(GPUS[match[1]], devices=int(match[2]))


# --- programs

# Primitives that end a kernel; XLA fuses the others into their neighbours.
KERNELS = re.compile('dot|conv_general|reduce|arg|gather|scatter|sort|cum|dynamic_update|top_k')
VIEWS = 'reshape', 'squeeze', 'broadcast_in_dim', 'expand_dims'  # they take no memory


@dataclasses.dataclass
class Count:
  """What a program does."""

  flops: float = 0.0  # of products
  bytes: float = 0.0  # read and written
  memory: float = 0.0  # the most bytes that are alive at once
  seconds: float = 0.0  # on a machine

  def add_kernel(self, flops: float, size: float, machine: Machine, dtype: str) -> None:
    """Adds a kernel with these FLOPs and bytes."""
    self.flops, self.bytes = self.flops + flops, self.bytes + size
    self.seconds += machine.kernel_seconds(flops, size, dtype)


def count_program(jaxpr: Any, machine: Machine) -> Count:
  """Counts a program that reads its arguments and writes its results once."""
  total = _count(jaxpr, machine)
  size = sum(_bytes([*jaxpr.invars, *jaxpr.outvars]))
  total.add_kernel(0, size, machine, 'float32')
  return total


def _count(jaxpr: Any, machine: Machine) -> Count:
  """Counts the kernels of a program, and what is alive: a value dies after its last use."""
  # XLA drops what nothing reads, such as gradients of frozen kernels.
  equations, read = [], set(_variables(jaxpr.outvars))
  for equation in reversed(jaxpr.eqns):
    if equation.effects or not read.isdisjoint(equation.outvars):
      equations.insert(0, equation)
      read.update(_variables(equation.invars))

  last: dict[Any, int] = {}
  for i, equation in enumerate(equations):
    last |= dict.fromkeys(_variables(equation.invars), i)
  last |= dict.fromkeys(_variables(jaxpr.outvars), len(equations))

  begin = _variables([*jaxpr.invars, *jaxpr.constvars])
  alive = dict(zip(begin, _bytes(begin), strict=True))
  total, now = Count(), sum(alive.values())
  total.memory = now
  for i, equation in enumerate(equations):
    # Add its kernel, or the program that it calls.
    name, inner = equation.primitive.name, 0.0
    size = sum(_bytes([*equation.invars, *equation.outvars]))
    programs = list(_programs(equation.params))
    for program in programs:
      part, times = _count(program, machine), equation.params.get('length', 1)
      total.flops += times * part.flops
      total.bytes += times * part.bytes
      total.seconds += times * part.seconds
      inner = max(inner, part.memory - size)
    if not programs and KERNELS.match(name):
      # Elementwise kernels write what this one reads, and read what it writes.
      dtype = str(equation.invars[0].aval.dtype)
      total.add_kernel(_flops(equation), 2 * size, machine, dtype)

    # Note what is alive.
    for each, size in zip(equation.outvars, _bytes(equation.outvars), strict=True):
      if each in last and name not in VIEWS:
        alive[each] = size
        now += size
    total.memory = max(total.memory, now + inner)
    for each in set(_variables(equation.invars)):
      if last[each] == i:
        now -= alive.pop(each, 0)
  return total


def _programs(params: Mapping[str, Any]) -> Iterator[Any]:
  """Yields the programs that an equation calls. All branches of a condition count."""
  for value in params.values():
    for each in value if isinstance(value, tuple | list) else (value,):
      if isinstance(each, Jaxpr):
        yield each
      elif isinstance(each, ClosedJaxpr):
        yield each.jaxpr


def _variables(values: Sequence[Any]) -> list[Any]:
  return [each for each in values if not isinstance(each, Literal)]


def _bytes(values: Sequence[Any]) -> list[float]:
  """Returns the bytes of each value; 0 of a key."""
  sizes = []
  for each in values:
    itemsize = getattr(getattr(each.aval, 'dtype', None), 'itemsize', 0)
    sizes.append(math.prod(getattr(each.aval, 'shape', ())) * itemsize)
  return sizes


def _flops(equation: Any) -> float:
  """Returns the FLOPs of a product or a convolution; 0 of other primitives."""
  name, out = equation.primitive.name, math.prod(equation.outvars[0].aval.shape)
  if name == 'dot_general':
    left, contracted = equation.invars[0].aval, equation.params['dimension_numbers'][0][0]
    return 2 * out * math.prod(left.shape[axis] for axis in contracted)
  if name == 'conv_general_dilated':
    kernel, layout = equation.invars[1].aval, equation.params['dimension_numbers'].rhs_spec
    return 2 * out * math.prod(kernel.shape) / kernel.shape[layout[0]]
  return 0


# --- the plan


@dataclasses.dataclass
class Cost:
  """What a stage, or the rows of a model, cost."""

  what: str  # says what is done
  steps: float = 0  # of the training, or calls of the model
  tokens: float = 0  # trained on, or written
  step: Count = dataclasses.field(default_factory=Count)  # for the rows of one device
  devices: int = 1  # that share the work
  seconds: float = 0
  disk: float = 0  # bytes that stay
  scratch: float = 0  # bytes that are free again afterwards


class Entry(NamedTuple):
  """A line of the plan: a stage, or the rows of a model, and what is there of it."""

  name: str
  state: str  # 'made', 'begun' or 'new'; of rows how many are there
  cost: Cost | None  # None: nothing is left to do, or the cost is not known


class Plan:
  """Takes the place of a `Workdir`: records stages and rows, and makes none.

  Attributes:
    root: the workdir; it need not exist.
    machine: what the stages run on.
    entries: stages and rows, in order.
    steps: of the trainings, by the names of all stages, in order; 0 where nothing is trained.
    inputs: of the stages, by their folders.
    is_complete: False when rows cannot be listed before their models are made.
  """

  def __init__(self, root: pathlib.Path, machine: Machine, costs: Mapping[Any, Any]) -> None:
    self.root, self.path, self.machine = root, root / 'results.jsonl', machine
    self.entries: list[Entry] = []
    self.steps: dict[str, int] = {}
    self.inputs: dict[pathlib.Path, Mapping[str, Any]] = {}
    self.is_complete = True
    self._costs = costs

  def read(self, make: Callable[[Any, Any], None], c: Any) -> None:
    """Lists what a paper's function would make with these settings.

    Raises:
      UserError, OSError: it would fail before anything is made.
    """
    try:
      make(c, self)
    except (UserError, OSError):
      # The rows of many papers are named by what their models are.
      if all(state == 'made' for _, state, _ in self.entries):
        raise
      self.is_complete = False

  def stage(self, name: str, make: Callable[..., object], **inputs: Any) -> pathlib.Path:
    """Notes a stage, and returns its folder."""
    folder = self.root / f'{name}-planned'
    is_made = False
    if self.root.is_dir():
      # A stage on one that is not made has no folder.
      with contextlib.suppress(UserError, OSError):
        folder = stages.folder_of(self.root, name, inputs)
        is_made = stages.is_made(folder)
    if folder not in self.inputs:
      self.inputs[folder] = inputs
      self.steps[name] = getattr(inputs.get('run'), 'steps', 0)
      if is_made:
        self.entries.append(Entry(name, 'made', None))
      else:
        state = 'begun' if folder.is_dir() else 'new'
        self.entries.append(Entry(name, state, self._cost(make, **inputs)))
    return folder

  def fill(self, keys: Sequence[Row | list[Row]], figures: Any, summary: Any = None) -> list[Row]:
    """Notes the rows that are missing, those of a group together; returns no row."""
    lines = read(self.path)
    for group in keys:
      listed = group if isinstance(group, list) else [group]
      missing = [key for key in listed if find(lines, **key) is None]
      names = ' '.join(f'{name}={listed[0][name]}' for name in list(listed[0])[:2])
      cost = None
      if missing:
        cost = self._cost(figures, missing)
      there = f'{len(listed) - len(missing)} of {len(listed)} rows are there'
      self.entries.append(Entry(names, there, cost))
    return []

  def _cost(self, make: Any, *args: Any, **inputs: Any) -> Cost | None:
    """Returns the cost by the function of the table; None if it has none."""
    cost = self._costs.get(getattr(make, 'func', make))
    if cost is None:
      return None
    return cost(self, *getattr(make, 'args', ()), *args, **inputs)

  def do(self, action: Callable[[], None]) -> None:
    """Does nothing."""

  def key(self, make: Callable[..., Row], folder: pathlib.Path, **fields: Any) -> Row:
    """Returns the key of a row; if its model is not made, only some fields."""
    return make(folder, **fields) if stages.is_made(folder) else fields

  def each(self, groups: Sequence[Any], do: Callable[[Any], Any]) -> list[Any]:
    """Returns do(group) for each group; None where it reads a model that is not made."""
    values: list[Any] = []
    for group in groups:
      try:
        values.append(do(group))
      except (UserError, OSError):
        values.append(None)
        self.is_complete = False
    return values

  def failures(self, keys: Any) -> list[Row]:
    """Nothing fails."""
    return []
