"""GPUs on paper, and programs as XLA would run them on one: FLOPs, bytes, memory and time.

A program is JAX's own, of the very step that training runs. Its kernels are counted as XLA fuses
them for a GPU. XLA's own count has the same FLOPs, but it counts the body of a loop once, and
compiling for it takes minutes. A kernel takes as long as its FLOPs, or its bytes, at rates of the
data sheet, and never less than a launch. No real run is faster.
"""

import dataclasses
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from fastdec.errors import UserError

# Primitives whose kernels read arrays from memory. A reduction computes what it reads itself, and
# over few entries it is itself computed by the kernel that reads it, such as a softmax's.
KERNELS = re.compile('dot|conv_general|scatter|dynamic_update|sort|top_k|cum')
REDUCTIONS = re.compile('reduce_(?!precision)|arg')
FEW = 4096  # entries of a row that one kernel reduces and then reads again
PARTS = 'slice', 'dynamic_slice', 'gather'  # they read only a part
VIEWS = 'reshape', 'squeeze', 'broadcast_in_dim', 'expand_dims', 'transpose', 'copy'
LOOPS = 'scan', 'while'


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


@dataclasses.dataclass
class Count:
  """What a program does."""

  flops: float = 0.0  # of products
  bytes: float = 0.0  # read and written
  memory: float = 0.0  # the most bytes that are alive at once
  seconds: float = 0.0  # on a machine


@dataclasses.dataclass(eq=False)
class Value:
  """A value of a program.

  Attributes:
    size: bytes.
    readers: how many equations read it.
    kernel: the number of the kernel that writes it to memory; None: it is not written.
    reads: the bytes of each array in memory that a kernel reads for it.
  """

  size: float
  readers: int = 0
  kernel: int | None = None
  reads: dict['Value', float] = dataclasses.field(default_factory=dict)

  def place(self, kernel: int) -> None:
    """Notes that a kernel writes it to memory."""
    self.kernel, self.reads = kernel, {self: self.size}


class Step(NamedTuple):
  """An equation of a program, with its values."""

  equation: Any
  inputs: list[Value]
  outputs: list[Value]

  @property
  def name(self) -> str:
    return self.equation.primitive.name


@dataclasses.dataclass
class Kernel:
  """What runs as one: a kernel, or a loop over a program."""

  reads: dict[Value, float]  # bytes of each array
  writes: list[Value]
  more: float = 0.0  # bytes it moves besides; negative where it writes only a part
  flops: float = 0.0
  dtype: str = 'float32'
  loop: Any = None  # the program, and how often it runs
  times: int = 1


def count_program(jaxpr: Any, machine: Machine) -> Count:
  """Counts a program, which is given its arguments in memory."""
  inputs = [Value(size) for size in _bytes(jaxpr.invars)]
  for value in inputs:
    value.place(-1)
  steps, results = _list_steps(jaxpr, inputs)
  kernels = _fuse(_drop_unread(steps, results), results)

  # A value dies after its last reader.
  last: dict[Value, int] = {}
  for i, kernel in enumerate(kernels):
    last |= dict.fromkeys([*kernel.writes, *kernel.reads], i)
  last |= dict.fromkeys(results, len(kernels))
  total, alive = Count(), {value: value.size for value in inputs if value in last}
  total.memory = sum(alive.values())
  for i, kernel in enumerate(kernels):
    alive |= {value: value.size for value in kernel.writes}
    inner, size = 0.0, sum(kernel.reads.values()) + sum(value.size for value in kernel.writes)
    if kernel.loop is None:
      total.flops, total.bytes = total.flops + kernel.flops, total.bytes + size + kernel.more
      total.seconds += machine.kernel_seconds(kernel.flops, size + kernel.more, kernel.dtype)
    else:
      part = count_program(kernel.loop, machine)
      total.flops += kernel.times * part.flops
      total.bytes += kernel.times * part.bytes
      total.seconds += kernel.times * part.seconds
      inner = max(part.memory - size, 0.0)
    total.memory = max(total.memory, sum(alive.values()) + inner)
    for value in (*kernel.reads, *kernel.writes):
      if last[value] == i:
        alive.pop(value, None)
  return total


def _list_steps(jaxpr: Any, inputs: Sequence[Value]) -> tuple[list[Step], list[Value]]:
  """Returns the steps of a program on these inputs, those of a program that it calls in its place;
  and its results."""
  values = dict(zip(jaxpr.invars, inputs, strict=True))
  steps: list[Step] = []

  def find(variables: Sequence[Any]) -> list[Value]:
    found = []
    for each, size in zip(variables, _bytes(variables), strict=True):
      value = Value(0.0) if isinstance(each, Literal) else values.get(each)
      if value is None:  # a constant of the program
        value = values[each] = Value(size)
        value.place(-1)
      found.append(value)
    return found

  for equation in jaxpr.eqns:
    step = Step(equation, find(equation.invars), [Value(size) for size in _bytes(equation.outvars)])
    written, name = step.outputs, step.name
    program = _program_of(equation)
    if program is not None and name not in LOOPS and not KERNELS.match(name):
      inner, written = _list_steps(program, step.inputs[-len(program.invars) :])
      steps += inner
    elif name in VIEWS and written[0].size == step.inputs[0].size:
      written = step.inputs[:1]
    else:
      steps.append(step)
    values.update(zip(equation.outvars, written, strict=True))
  return steps, find(jaxpr.outvars)


def _program_of(equation: Any) -> Any:
  """Returns the program that an equation calls; None: it calls none. Of the branches of a condition
  it is the default where the platform decides, which GPUs take, and otherwise the longest."""
  programs = []
  for value in equation.params.values():
    for each in value if isinstance(value, tuple | list) else (value,):
      if isinstance(each, Jaxpr):
        programs.append(each)
      elif isinstance(each, ClosedJaxpr):
        programs.append(each.jaxpr)
  if equation.params.get('branches_platforms'):
    return programs[-1]
  return max(programs, key=lambda program: len(program.eqns), default=None)


def _drop_unread(steps: Sequence[Step], results: Sequence[Value]) -> list[Step]:
  """Returns the steps that something reads, as XLA drops the others, such as gradients of frozen
  kernels. A product that is only read in a smaller type is written in that."""
  for value in results:
    value.readers += 1
  kept, rounded = [], {}
  for step in reversed(steps):
    if not step.equation.effects and not any(value.readers for value in step.outputs):
      continue
    if step.name == 'convert_element_type':
      rounded[step.inputs[0]] = step
    product = step.outputs[0]
    if step.name == 'dot_general' and product.readers == 1 and product in rounded:
      kept.remove(rounded[product])
      step = step._replace(outputs=rounded[product].outputs)
    for value in step.inputs:
      value.readers += 1
    kept.append(step)
  return kept[::-1]


def _fuse(steps: Iterable[Step], results: Iterable[Value]) -> list[Kernel]:
  """Returns the kernels of these steps.

  A product, a reduction of many entries and a result are written to memory. What is between them is
  computed again by each kernel that reads it, unless fewer bytes are moved if it is written once.
  """
  kernels: list[Kernel] = []
  computing: dict[Value, int] = {}  # the last kernel that is no product and reads an array

  def write(values: list[Value], kernel: Kernel) -> None:
    for value in values:
      value.place(len(kernels))
    kernels.append(kernel)

  def compute(value: Value) -> None:
    """Writes a value, by a kernel that reads the same large array if there is one."""
    if value.kernel is not None:
      return
    reads, largest = value.reads, max([0.0, *value.reads.values()])
    for array, size in reads.items():
      number = computing.get(array)
      if size == largest and number is not None and all(each.kernel < number for each in reads):
        value.place(number)
        kernels[number].reads |= reads
        kernels[number].writes.append(value)
        return
    computing.update(dict.fromkeys(reads, len(kernels)))
    write([value], Kernel(reads, [value]))

  for step in steps:
    name, outputs, reads = step.name, step.outputs, {}
    is_kernel = KERNELS.match(name) is not None
    for value in step.inputs:
      if is_kernel or name in LOOPS:
        compute(value)
      for array, size in value.reads.items():
        reads[array] = max(reads.get(array, 0.0), size)

    if name in LOOPS:
      length = step.equation.params.get('length', 1)
      write(outputs, Kernel(reads, outputs, loop=_program_of(step.equation), times=length))
    elif is_kernel:
      kernel = Kernel(reads, outputs, 0.0, _flops(step.equation), _dtype(step.equation))
      if name.startswith(('scatter', 'dynamic_update')):  # in place
        reads.pop(step.inputs[0], None)
        kernel.more = 2 * max(value.size for value in step.inputs[1:]) - outputs[0].size
      write(outputs, kernel)
    else:
      is_large = REDUCTIONS.match(name) and step.inputs[0].size > FEW * outputs[0].size
      for value in outputs:
        value.reads = reads
        if name in PARTS:
          value.reads = {array: min(size, value.size) for array, size in reads.items()}
        n, again = value.readers, sum(value.reads.values())
        if is_large or (n - 1) * again > (n + 1) * value.size:
          compute(value)
  for value in results:
    compute(value)
  return kernels


def _bytes(values: Sequence[Any]) -> list[float]:
  """Returns the bytes of each value; 0 of a key."""
  sizes = []
  for each in values:
    itemsize = getattr(getattr(each.aval, 'dtype', None), 'itemsize', 0)
    sizes.append(math.prod(getattr(each.aval, 'shape', ())) * itemsize)
  return sizes


def _dtype(equation: Any) -> str:
  return str(equation.invars[0].aval.dtype)


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
