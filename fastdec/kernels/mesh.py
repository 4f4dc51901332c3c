"""What a program knows about its mesh of devices while it is traced."""

import jax
from jax.sharding import AxisType

AUTO = AxisType.Auto  # JAX's default, Explicit, refuses embeddings and scattered updates


def axes_in_use() -> dict[str, int]:
  """Returns the sizes of the mesh's axes over which the compiler splits arrays."""
  mesh = jax.sharding.get_abstract_mesh()
  sizes = {}
  for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True):
    if kind == AUTO:
      sizes[name] = mesh.shape[name]
  return sizes


def is_split() -> bool:
  """True if the compiler splits arrays over several devices."""
  return max(axes_in_use().values(), default=1) > 1
