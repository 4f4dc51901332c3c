"""Imports that wait until a name is used, so that a package lists its public names only once.

Type checkers and editors read the list as plain imports, and `from package import name` loads only
the module of that name:

  with lazy.imports(globals()) as modules:
    from package.methods.eagle import Eagle

  def __getattr__(name):
    return lazy.load(name, modules, globals())
"""

import builtins
import contextlib
import importlib
import types
from collections.abc import Iterator, Mapping
from typing import Any


@contextlib.contextmanager
def imports(namespace: dict[str, Any]) -> Iterator[dict[str, str]]:
  """Makes `from module import name` in a package's own file note the name instead of importing it.

  Imports of other files, and those of other threads, work as usual meanwhile.

  Args:
    namespace: globals() of the package.

  Yields:
    A dictionary that is filled with the module of each name.
  """
  modules: dict[str, str] = {}
  original = builtins.__import__

  def note(
    module: str, scope: Any = None, local: Any = None, names: Any = (), level: int = 0
  ) -> Any:
    if scope is not namespace:
      return original(module, scope, local, names, level)
    modules.update(dict.fromkeys(names, module))
    return types.SimpleNamespace(**dict.fromkeys(names))

  builtins.__import__ = note
  try:
    yield modules
  finally:
    builtins.__import__ = original
  for name in modules:
    del namespace[name]


def load(name: str, modules: Mapping[str, str], namespace: dict[str, Any]) -> Any:
  """Imports what a name means, and keeps it in the package's namespace.

  Raises:
    AttributeError: the package does not have this name.
  """
  if name not in modules:
    raise AttributeError(f'module {namespace["__name__"]} has no attribute {name!r}')
  values = vars(importlib.import_module(modules[name]))
  if name not in values:
    importlib.import_module(f'{modules[name]}.{name}')  # a submodule, which then is an attribute
  namespace[name] = values[name]
  return namespace[name]
