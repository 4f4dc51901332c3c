"""Layout of arrays on a mesh of devices: batch rows along 'data', parameters along 'model'.

  mesh = make_mesh(MeshConfig(data=4, model=2))
  params = place(params, mesh, model.partition(mesh.shape['model']))
  out = fd.decode(model, params, inputs, strategy)   # on all eight devices

Only the parameters must be placed. Decoding finds their mesh, splits its rows over 'data', and
creates the cache along both axes (`constrain`). A table has rows (regex, PartitionSpec). The first
regex that matches a parameter's path decides how the parameter is split; without a match it is on
every device. Each model and each kind of heads has its own table, `partition`. The paths in
optimizer states contain the paths of the parameters, so the same table places a whole training
state.
"""

import contextlib
import dataclasses
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, PyTree

from fastdec.errors import UserError, UserNote
from fastdec.kernels.mesh import AUTO, axes_in_use
from fastdec.kernels.packed import is_packed
from fastdec.kernels.quantized import Quantized, expand_sharding

AXES = ('data', 'model')
T = TypeVar('T')
Top = Callable[[Array, int], Sequence[Array]]  # values and indices of the m largest entries
Table = tuple[tuple[str, P], ...]

REPLICATED: Table = ()
OF_WORDS = r'(embedding|output|output_bias|lm_head|before|after)$'  # a row for each word
WORDS: Table = ((OF_WORDS, P('model')),)  # for heads and drafts, which may have none of their own


@dataclasses.dataclass(frozen=True)
class MeshConfig:
  """Devices along each axis; 1 x 1 is a single device."""

  data: int = 1  # each has a share of the rows
  model: int = 1  # each has a share of the parameters

  def __post_init__(self) -> None:
    for name in AXES:
      if getattr(self, name) < 1:
        raise UserError(
          f'mesh.{name}={getattr(self, name)} is not possible: give 1 or more devices'
        )


def make_mesh(config: MeshConfig) -> Mesh:
  """Returns the mesh of the first data * model devices, counted over all processes.

  Raises:
    UserError: there are fewer devices; there are more, in several processes.
  """
  wanted, count = config.data * config.model, jax.device_count()
  if wanted > count or (wanted < count and jax.process_count() > 1):
    raise UserError(
      f'mesh.data={config.data} x mesh.model={config.model} needs {wanted} devices, and there'
      f' are {count}: give two numbers whose product is {count}'
    )
  return _mesh(config, jax.devices()[:wanted])


def make_own_mesh(config: MeshConfig) -> Mesh | None:
  """Returns this process's share of the mesh, on which it decodes what no other process does; None
  where that is one device, which needs none.

  Raises:
    UserError: as `make_mesh`; the processes cannot have equal shares.
  """
  make_mesh(config)  # checks the number of devices
  processes = jax.process_count()
  if config.data % processes:
    raise UserError(
      f'mesh.data={config.data} cannot be divided over {processes} processes: give a multiple of'
      f' {processes}'
    )
  share = MeshConfig(config.data // processes, config.model)
  if share == MeshConfig():
    return None
  return _mesh(share, jax.local_devices()[: share.data * share.model])


def _mesh(config: MeshConfig, devices: list[Any]) -> Mesh:
  shape = (config.data, config.model)
  return jax.make_mesh(shape, AXES, axis_types=(AUTO, AUTO), devices=devices)


def partition_of(module: Any, devices: int) -> Table:
  """Returns the table of a model or of heads for a mesh with `devices` devices along 'model'.

  Without a `partition` the module's parameters are on every device.
  """
  return module.partition(devices) if hasattr(module, 'partition') else REPLICATED


def prefix_regex(name: str, regex: str) -> str:
  """Returns a regex for paths that contain `name/` and then match `regex`."""
  return rf'(^|/)(?={name}/).*{regex}'


def check_axes(mesh: Mesh) -> None:
  """Raises UserError unless the mesh has the axes 'data' and 'model'."""
  if mesh.axis_names != AXES:
    raise UserError(
      f"the parameters' mesh has axes {mesh.axis_names} instead of {AXES}: make it by make_mesh"
    )


def place(tree: PyTree, mesh: Mesh, table: Table) -> PyTree:
  """Puts the arrays of a tree onto the mesh by the table; every process passes the same values.

  Raises:
    UserError: as `choose_shardings`.
  """
  return jax.tree.map(_put, tree, choose_shardings(tree, mesh, table))


def place_module(module: Any, params: T, mesh: Mesh | None) -> T:
  """Puts a module's parameters onto the mesh by its own table; without a mesh it returns them."""
  if mesh is None:
    return params
  return place(params, mesh, partition_of(module, mesh.shape['model']))


def choose_shardings(tree: PyTree, mesh: Mesh | AbstractMesh, table: Table) -> PyTree:
  """Returns the sharding of each leaf of the tree; the leaves need only shapes.

  If the number of words cannot be divided over the devices, each device has all of them, with a
  `UserNote`.

  Raises:
    UserError: a row of the table matches nothing; a leaf cannot be divided, or is packed.
  """
  if is_packed(tree):
    raise UserError(
      'packed parameters cannot be placed on a mesh: place the parameters from before packing'
    )
  leaves, structure = jax.tree.flatten_with_path(
    tree, is_leaf=lambda leaf: isinstance(leaf, Quantized)
  )
  names = [jax.tree_util.keystr(path, simple=True, separator='/') for path, _ in leaves]

  # A row that matches nothing is a mistake in the table, except `WORDS`.
  for regex, spec in table:
    if not regex.endswith(OF_WORDS) and not any(re.search(regex, name) for name in names):
      first = ', '.join(names[:5]) + (', ...' if len(names) > 5 else '')
      raise UserError(
        f"the table's row ('{regex}', {spec}) matches no parameter: there are {first}"
      )

  # The first row that matches decides.
  shardings = []
  for name, (_, leaf) in zip(names, leaves, strict=True):
    spec = next((spec for regex, spec in table if re.search(regex, name)), P())
    if spec == P('model') and re.search(OF_WORDS, name) and leaf.shape[0] % mesh.shape['model']:
      spec = P()
      warnings.warn(
        f'{leaf.shape[0]} words cannot be divided over mesh.model={mesh.shape["model"]} devices:'
        ' each device has all embeddings',
        UserNote,
        stacklevel=2,
      )
    _check_divides(name, leaf.shape, mesh, spec)
    shardings.append(expand_sharding(leaf, NamedSharding(mesh, spec)))
  return jax.tree.unflatten(structure, shardings)


def place_rows(batch: PyTree, mesh: Mesh | None, parts: int = 1) -> PyTree:
  """Splits the rows of a batch over 'data'; without a mesh it returns the batch itself.

  Every process passes the whole batch, and keeps the rows of its own devices.

  Raises:
    UserError: as `check_rows`.
  """
  if mesh is None:
    return batch
  check_rows(jax.tree.leaves(batch)[0].shape[0], mesh.shape['data'], parts)
  return jax.tree.map(lambda leaf: _put(leaf, NamedSharding(mesh, P('data'))), batch)


def check_rows(rows: int, data: int, parts: int = 1) -> None:
  """Raises UserError unless a batch divides into `parts` parts, each over `data` devices."""
  if rows % (data * parts):
    of_parts = f' in {parts} parts of a batch' if parts > 1 else ''
    raise UserError(
      f'{rows} rows cannot be divided over mesh.data={data} devices{of_parts}: give a multiple of'
      f' {data * parts} rows'
    )


def mesh_of(tree: PyTree) -> Mesh | None:
  """Returns the mesh that a tree's arrays are placed on; None without one, or inside a trace.

  Raises:
    UserError: the axes of the mesh are not 'data' and 'model'.
  """
  for leaf in jax.tree.leaves(tree):
    if isinstance(leaf, Tracer):
      continue
    sharding = getattr(leaf, 'sharding', None)
    if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh):
      check_axes(sharding.mesh)
      return sharding.mesh
  return None


def using(mesh: Mesh | None) -> contextlib.AbstractContextManager:
  """Makes `constrain` effective in programs compiled inside the block, if there is a mesh."""
  return contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh)


def constrain(x: Array, *axes: str | None) -> Array:
  """Splits dimensions of x over named axes of the mesh in use, where they divide (inside jit).

  Without a mesh it returns x."""
  sizes = axes_in_use()
  spec = []
  for n, axis in zip(x.shape, axes, strict=False):
    spec.append(axis if axis in sizes and n % sizes[axis] == 0 else None)
  return jax.lax.with_sharding_constraint(x, P(*spec)) if any(spec) else x


def by_rows(f: Callable[..., T]) -> Callable[..., T]:
  """Returns f such that each device along 'data' sees only its own rows.

  f maps arrays with rows first to such arrays. Use this where the compiler cannot know that rows
  are independent (rows picked by index, sorts): it would send all rows to all devices.
  """

  def call_by_rows(*args: Any) -> T:
    sizes = axes_in_use()
    if 'data' not in sizes or any(len(leaf) % sizes['data'] for leaf in jax.tree.leaves(args)):
      return f(*args)
    split = jax.shard_map(f, in_specs=P('data'), out_specs=P('data'), axis_names={'data'})
    return split(*args)

  return call_by_rows


def by_words(top: Top) -> Top:
  """Returns `top`, which ranks the last axis, such that each device ranks only its own words.

  The m best of each device along 'model' are exchanged. The devices have the words in the order of
  ids, so if `top` puts the lowest index first among equal entries, it does so for all words too.
  """

  def top_by_words(x: Array, m: int) -> Sequence[Array]:
    sizes, v = axes_in_use(), x.shape[-1]
    if not sizes or x.ndim == 1:
      return top(x, m)
    parts = sizes.get('model', 1)
    if parts == 1 or v % parts or parts * m >= v:
      return by_rows(lambda x: top(x, m))(x)

    def top_of_part(x: Array) -> Sequence[Array]:
      values, ids = top(x, m)
      ids += jax.lax.axis_index('model') * x.shape[-1]
      values, ids = jax.lax.all_gather((values, ids), 'model', axis=x.ndim - 1, tiled=True)
      values, places = top(values, m)
      return values, jnp.take_along_axis(ids, places, axis=-1)

    axes = {'model'}
    if 'data' in sizes and len(x) % sizes['data'] == 0:
      axes.add('data')
    rows = P('data' if 'data' in axes else None)
    split = jax.shard_map(
      top_of_part,
      in_specs=P(*rows, *[None] * (x.ndim - 2), 'model'),
      out_specs=rows,
      axis_names=axes,
      check_vma=False,  # it cannot see that all devices along 'model' have the same result
    )
    return split(x)

  return top_by_words


def _check_divides(name: str, shape: tuple[int, ...], mesh: Mesh | AbstractMesh, spec: P) -> None:
  if len(spec) > len(shape):
    raise UserError(
      f'{name} has shape {list(shape)}, and {spec} needs {len(spec)} axes: fix the table'
    )
  for size, axis in zip(shape, spec, strict=False):
    if axis is not None and size % mesh.shape[axis]:
      raise UserError(
        f'{name} has shape {list(shape)}, and {size} cannot be divided over'
        f' mesh.{axis}={mesh.shape[axis]} devices: give a divisor of {size}, mesh.{axis}=1, or a'
        ' table that does not split it'
      )


def _put(leaf: Any, sharding: NamedSharding) -> Array:
  if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
    data = _put(jax.random.key_data(leaf), sharding)
    return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
  if sharding.is_fully_addressable:
    return jax.device_put(leaf, sharding)
  host = np.asarray(leaf)
  return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])
