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

import jax
from jax.extend.core import Literal, jaxprs_in_params
from jax.interpreters.partial_eval import dce_jaxpr

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

  def exchange_seconds(self, size: float, devices: int) -> float:
    """Returns the time in which devices add up gradients of `size` bytes: within each node, then
    each device its part between nodes."""
    inside = min(devices, self.node)
    seconds = 2 * (inside - 1) / inside * size / self.links[0]
    if devices > inside:
      nodes = devices // inside
      seconds += 2 * (nodes - 1) / nodes * size / inside / self.links[1]
    return seconds


RAM = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
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
    return Machine('CPU', 1, RAM)
  match = re.fullmatch(rf'({"|".join(GPUS)})x([1-9]\d{{0,5}})', name)
  if match is None:
    raise UserError(
      f'--plan={name} is not a machine: give h100x8, a100x8, h100x64 and so on, or cpu'
    )
  return dataclasses.replace(GPUS[match[1]], devices=int(match[2]))


def memory_here() -> float:
  """Returns the bytes of a device of this process; devices of a CPU share its memory."""
  devices = jax.local_devices()
  limits = devices[0].memory_stats() or {'bytes_limit': RAM / len(devices)}
  return limits['bytes_limit']


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
  """A value of a program."""

  size: float  # bytes
  readers: int = 0  # equations
  kernel: float = math.inf  # the number of that which writes it to memory; inf: none does
  # the bytes of each array in memory that a kernel reads for it
  reads: dict['Value', float] = dataclasses.field(default_factory=dict)

  def place(self, kernel: float) -> None:
    """Notes that a kernel writes it to memory."""
    self.kernel, self.reads = kernel, {self: self.size}


Step = tuple[Any, list[Value], list[Value]]  # an equation, what it reads, and what it writes


class Kernel(NamedTuple):
  """What runs as one: a kernel, or a loop over a program."""

  equation: Any  # None: it only computes, elementwise or by a reduction
  reads: dict[Value, float]  # bytes of each array
  writes: list[Value]
  more: float = 0.0  # bytes that it moves besides; negative if it writes only a part


def count_program(jaxpr: Any, machine: Machine) -> Count:
  """Counts a program, which is given its arguments in memory. XLA drops what nothing reads, such as
  gradients of frozen kernels."""
  jaxpr, _ = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=True)
  inputs = [_make_value(each, -1) for each in jaxpr.invars]
  steps, results = _list_steps(jaxpr, inputs)
  kernels = _fuse(steps, results)

  # A value dies after its last reader.
  last: dict[Value, int] = {}
  for i, kernel in enumerate(kernels):
    last |= dict.fromkeys([*kernel.writes, *kernel.reads], i)
  for value in results:
    last |= dict.fromkeys(value.reads, len(kernels))
  alive = sum(value.size for value in inputs if value in last)
  total = Count(memory=alive)
  for i, (equation, reads, writes, more) in enumerate(kernels):
    alive += sum(value.size for value in writes)
    size, inner = sum(reads.values()) + sum(value.size for value in writes) + more, 0.0
    if equation is not None and equation.primitive.name in LOOPS:
      part, times = count_program(_program_of(equation), machine), equation.params.get('length', 1)
      total.flops, total.bytes = total.flops + times * part.flops, total.bytes + times * part.bytes
      total.seconds += times * part.seconds
      inner = max(part.memory - size, 0.0)
    else:
      flops, dtype = _flops(equation)
      total.flops, total.bytes = total.flops + flops, total.bytes + size
      rate = machine.flops.get(dtype, machine.flops.get('float32', math.inf))
      total.seconds += max(flops / rate, size / machine.bandwidth, machine.launch)
    total.memory = max(total.memory, alive + inner)
    alive -= sum(value.size for value in {*reads, *writes} if last[value] == i)
  return total


def _list_steps(jaxpr: Any, inputs: Sequence[Value]) -> tuple[list[Step], list[Value]]:
  """Returns the steps of a program on these inputs, those of a program that it calls in its place;
  and its results."""
  values = dict(zip(jaxpr.invars, inputs, strict=True))
  values |= {each: _make_value(each, -1) for each in jaxpr.constvars}
  steps: list[Step] = []

  def find(variables: Sequence[Any]) -> list[Value]:
    return [Value(0.0) if isinstance(each, Literal) else values[each] for each in variables]

  for equation in jaxpr.eqns:
    name, program, read = equation.primitive.name, _program_of(equation), find(equation.invars)
    written = [_make_value(each) for each in equation.outvars]
    if program is not None and name not in LOOPS and not KERNELS.match(name):
      inner, written = _list_steps(program, read[-len(program.invars) :])
      steps += inner
    elif name in VIEWS and written[0].size == read[0].size:
      written = read[:1]
    else:
      steps.append((equation, read, written))
      for value in read:
        value.readers += 1
    values.update(zip(equation.outvars, written, strict=True))
  return steps, find(jaxpr.outvars)


def _program_of(equation: Any) -> Any:
  """Returns the program that an equation calls; None: it calls none. Where the platform chooses a
  branch, that is the default, which GPUs take; for any other condition the longest branch."""
  programs = [*jaxprs_in_params(equation.params)]
  if equation.params.get('branches_platforms'):
    return programs[-1]
  return max(programs, key=lambda program: len(program.eqns), default=None)


def _fuse(steps: Iterable[Step], results: Sequence[Value]) -> list[Kernel]:
  """Returns the kernels of these steps.

  A product, a reduction of many entries and a result are written to memory. What is between them is
  computed again by each kernel that reads it, unless fewer bytes are moved if it is written once.
  A product that is only read in a smaller type is written in that.
  """
  kernels: list[Kernel] = []
  products: set[Value] = set()
  computing: dict[Value, int] = {}  # the last kernel without an equation that reads an array

  def compute(value: Value) -> None:
    """Writes a value, by a kernel that reads the same large array if there is one."""
    if value.kernel < math.inf:
      return
    number, reads, largest = len(kernels), value.reads, max([0.0, *value.reads.values()])
    for array, size in reads.items():
      other = computing.get(array, -1)
      if size == largest and all(each.kernel < other for each in reads):
        number = other
    if number == len(kernels):
      kernels.append(Kernel(None, {}, []))
      computing.update(dict.fromkeys(reads, number))
    kernels[number].reads.update(reads)
    kernels[number].writes.append(value)
    value.place(number)

  for value in results:
    value.readers += 1
  for equation, read, written in steps:
    name, reads, first = equation.primitive.name, {}, written[0]
    if name == 'convert_element_type' and read[0] in products and read[0].readers == 1:
      read[0].size = first.size
      read[0].place(read[0].kernel)
      first.kernel, first.reads = read[0].kernel, read[0].reads
      continue
    is_kernel = KERNELS.match(name) or name in LOOPS
    for value in read:
      if is_kernel:
        compute(value)
      for array, size in value.reads.items():
        reads[array] = max(reads.get(array, 0.0), size)

    if is_kernel:
      more = 0.0
      if name.startswith(('scatter', 'dynamic_update')):  # in place
        reads.pop(read[0], None)
        more = 2 * max(value.size for value in read[1:]) - written[0].size
      for value in written:
        value.place(len(kernels))
      kernels.append(Kernel(equation, reads, written, more))
      if name == 'dot_general':
        products.add(first)
      continue

    is_large = REDUCTIONS.match(name) and read[0].size > FEW * written[0].size
    for value in written:
      value.reads = reads
      if name in PARTS:
        value.reads = {array: min(size, value.size) for array, size in reads.items()}
      n, again = value.readers, sum(value.reads.values())
      if is_large or (n - 1) * again > (n + 1) * value.size:
        compute(value)
  for value in results:
    compute(value)
  return kernels


def _make_value(variable: Any, kernel: float = math.inf) -> Value:
  """Returns the value of a variable, which a kernel writes to memory; inf: none does. Keys have no
  bytes."""
  itemsize = getattr(getattr(variable.aval, 'dtype', None), 'itemsize', 0)
  value = Value(math.prod(getattr(variable.aval, 'shape', ())) * itemsize)
  if kernel < math.inf:
    value.place(kernel)
  return value


def _flops(equation: Any) -> tuple[float, str]:
  """Returns the FLOPs of a product or a convolution, 0 of other primitives; and their type."""
  if equation is None:
    return 0.0, 'float32'
  left, out, contracted = equation.invars[0].aval, equation.outvars[0].aval, 0.0
  if equation.primitive.name == 'dot_general':
    axes = equation.params['dimension_numbers'][0][0]
    contracted = math.prod(left.shape[axis] for axis in axes)
  if equation.primitive.name == 'conv_general_dilated':
    kernel = equation.invars[1].aval.shape
    outputs = kernel[equation.params['dimension_numbers'].rhs_spec[0]]
    contracted = math.prod(kernel) / outputs
  return 2 * math.prod(out.shape) * contracted, str(left.dtype)
