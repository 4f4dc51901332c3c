"""Frozen dataclasses that are JAX pytrees.

Two things differ from `flax.struct`. Fields marked `static()` are part of the tree's structure, so
they must be hashable. And unflattening bypasses `__init__`: JAX also rebuilds trees from specs,
None and tracers of a different rank, which a checked constructor would refuse. `Cls(...)` and
`dataclasses.replace` stay checked. A missing or unknown argument is a `UserError`.
"""

import dataclasses
import functools
import inspect
import operator
import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, dataclass_transform

import jax

from fastdec.errors import UserError

T = TypeVar('T')


def static(**kwargs: Any) -> Any:
  """Returns a dataclass field of the tree's structure: hashable, a key of compiled programs."""
  return dataclasses.field(metadata={'static': True}, **kwargs)


@dataclass_transform(frozen_default=True, field_specifiers=(static, dataclasses.field))
def pytree(cls: type[T]) -> type[T]:
  """Decorates a class as a frozen dataclass whose non-static fields are a pytree's children.

  >>> @pytree
  ... class Scaled:
  ...   x: Any
  ...   by: int = static()
  >>> jax.tree.map(lambda leaf: 2 * leaf, Scaled(1.5, by=3))
  Scaled(x=3.0, by=3)
  """
  cls = dataclasses.dataclass(frozen=True)(cls)
  cls.__init__ = _check_arguments(cls.__name__, cls.__init__)
  fields: tuple[dataclasses.Field, ...] = dataclasses.fields(cls)  # pyright: ignore
  leaves = tuple(f.name for f in fields if not f.metadata.get('static'))
  statics = tuple(f.name for f in fields if f.metadata.get('static'))

  def flatten_with_keys(tree: Any) -> tuple[Any, Any]:
    children = tuple((jax.tree_util.GetAttrKey(name), getattr(tree, name)) for name in leaves)
    return children, tuple(getattr(tree, name) for name in statics)

  get_children, get_statics = _make_getter(leaves), _make_getter(statics)

  # JAX flattens every node of the parameters whenever a program starts, so this must be fast.
  def flatten(tree: Any) -> tuple[Any, Any]:
    return get_children(tree), get_statics(tree)

  def unflatten(aux: Any, children: Any) -> Any:
    tree = object.__new__(cls)
    for name, value in zip(statics + leaves, (*aux, *children), strict=True):
      object.__setattr__(tree, name, value)
    return tree

  jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
  return cls


def _check_arguments(name: str, init: Callable[..., None]) -> Callable[..., None]:
  """Returns a constructor that raises a UserError for missing or unknown arguments."""

  @functools.wraps(init)
  def checked(self: Any, *args: Any, **kwargs: Any) -> None:
    try:
      init(self, *args, **kwargs)
    except TypeError:
      signature = inspect.signature(init)
      try:
        signature.bind(self, *args, **kwargs)
      except TypeError as error:
        known = ', '.join(list(signature.parameters)[1:])
        raise UserError(f'{name}: {error}: its arguments are {known}') from None
      raise

  return checked


def _make_getter(names: tuple[str, ...]) -> Callable[[Any], tuple]:
  """Returns a function that gives these attributes of an object, as a tuple."""
  if not names:
    return lambda _: ()
  if len(names) == 1:
    get_one = operator.attrgetter(names[0])
    return lambda instance: (get_one(instance),)
  return operator.attrgetter(*names)


def assign(instance: Any, **values: Any) -> None:
  """Sets fields of a frozen dataclass, for its own `__post_init__` to normalise arguments."""
  for name, value in values.items():
    object.__setattr__(instance, name, value)


def bound(pair: Any, name: str) -> 'Bound':
  """Returns a module with its parameters, as one value.

  Args:
    pair: (module, params), or a `Bound`.
    name: the caller's argument, for the message.

  Raises:
    UserError: it is something else.
  """
  if isinstance(pair, Bound):
    return pair
  if isinstance(pair, tuple | list) and len(pair) == 2:
    return Bound(*pair)
  value = type(pair).__name__
  if isinstance(pair, str | os.PathLike):
    value = repr(pair)
  raise UserError(
    f'{name} must be a pair (module, params), as loading returns it, not {value}: give both'
  )


@pytree
class Bound:
  """A static module (a model, or heads) with its parameters: an argument for jit.

  It unpacks as (module, params). `laws` change a target's law (`decoding.law`)."""

  module: Any = static()
  params: Any
  laws: Any = ()

  def __iter__(self) -> Iterator[Any]:
    return iter((self.module, self.params))
