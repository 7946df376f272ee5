"""Energy-optimal training schedules for small machines, as an ONNX graph rewrite."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from poet_onnx.errors import (
        CheckFailedError,
        InfeasibleError,
        InputError,
        LimitReachedError,
        PoetError,
        PoetWarning,
    )
    from poet_onnx.ops import library_path
    from poet_onnx.plan import Plan
    from poet_onnx.rewrite import RewriteResult, pipeline, rewrite
    from poet_onnx.runtime import count_allocations, session_options, training_module
    from poet_onnx.training.optimizers import SGD, Adam, AdamW
    from poet_onnx.training.session import TrainingSession
    from poet_onnx.verify import VerificationReport, verify

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "CheckFailedError",
    "InfeasibleError",
    "InputError",
    "LimitReachedError",
    "Plan",
    "PoetError",
    "PoetWarning",
    "RewriteResult",
    "TrainingSession",
    "VerificationReport",
    "count_allocations",
    "library_path",
    "pipeline",
    "rewrite",
    "session_options",
    "training_module",
    "verify",
]

_HOMES = {
    "errors": ("CheckFailedError", "InfeasibleError", "InputError", "LimitReachedError", "PoetError", "PoetWarning"),
    "ops": ("library_path",),
    "plan": ("Plan",),
    "rewrite": ("RewriteResult", "pipeline", "rewrite"),
    "runtime": ("count_allocations", "session_options", "training_module"),
    "training.optimizers": ("SGD", "Adam", "AdamW"),
    "training.session": ("TrainingSession",),
    "verify": ("VerificationReport", "verify"),
}


class _Export:
    """A name of the package that is imported when it is first asked for.

    A function has the name of its module: what the import system sets, the module, does not take its place.
    """

    def __init__(self, home: str, name: str) -> None:
        self._home, self._name = home, name
        self._value: object = None

    def __get__(self, package: object, _: type | None = None) -> object:
        """Return what has the name."""
        if self._value is None:
            self._value = getattr(import_module(f"poet_onnx.{self._home}"), self._name)
        return self._value

    def __set__(self, package: object, value: object) -> None:
        """Give the name another meaning, but no module's."""
        if not isinstance(value, ModuleType):
            self._value = value


_EXPORTS = {name: _Export(home, name) for home, names in _HOMES.items() for name in names}
sys.modules[__name__].__class__ = type("Package", (ModuleType,), _EXPORTS)
