"""Modules that a library imports and a command hardly ever needs, loaded when something in them is asked for.

onnx_ir imports sympy, for dimensions that are sums and products of names. That takes a fifth of a second and 25 MiB,
and the dimensions of what is planned here are numbers.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec
from types import ModuleType

HARDLY_NEEDED = ("sympy", "onnx_ir._symbolic_shapes")


class _Deferred(ModuleType):
    """A module that is loaded with the first look at what is in it. `importlib.util.LazyLoader` loads at `import`."""

    def __getattr__(self, name: str) -> object:
        spec = self.__spec__
        if spec is None or spec.loader is None or name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        self.__class__ = ModuleType  # type: ignore[assignment]  # from here on it is as any other
        spec.loader.exec_module(self)
        return getattr(self, name)


def defer(*names: str) -> None:
    """Have modules loaded when they are needed; what is loaded already, or is not there, is left as it is.

    Args:
        names: of modules, at most one level down in a package, which is not imported.
    """
    for name in names:
        spec = _spec_of(name)
        if name in sys.modules or spec is None:
            continue
        module = module_from_spec(spec)
        module.__class__ = _Deferred
        sys.modules[name] = module


def _spec_of(name: str) -> ModuleSpec | None:
    package, _, inside = name.partition(".")
    found = PathFinder.find_spec(package)
    return PathFinder.find_spec(name, found.submodule_search_locations) if found is not None and inside else found
