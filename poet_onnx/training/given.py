"""Checks of what a session is given to call and to read, before anything is trained with it."""

from __future__ import annotations

import inspect
import os
import sys

from poet_onnx.description.optimizers import Optimizer
from poet_onnx.errors import InputError, shown

_CONTAINERS = (list, tuple, dict, set, frozenset, str, bytes)
"""Classes that take one argument, but no number."""


def check_optimizer(optimizer: object) -> None:
    """Check that settings of an optimizer are some, or None.

    Raises:
        InputError: if they are not.
    """
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        raise InputError(f"optimizer is {shown(optimizer)}, but must be settings of one: give poet_onnx.AdamW(...).")


def check_schedule(schedule: object) -> None:
    """Check that a schedule can be called with the number of updates, or is None.

    Raises:
        InputError: if it cannot.
    """
    if schedule is not None and not _takes_number(schedule):
        raise InputError(
            f"schedule is {shown(schedule)}, but must be a function of the number of updates made: give one, or "
            "poet_onnx.StepLR(...)."
        )


def check_eval_model(model: object) -> None:
    """Check that an evaluation graph is a path or a model, or None; no parser of ONNX is imported.

    Raises:
        InputError: if it is not.
    """
    if model is None or isinstance(model, (str, os.PathLike)):
        return
    if not is_a(model, "onnx", "ModelProto") and not is_a(model, "onnx_ir", "Model"):
        raise InputError(
            f"eval_model is {shown(model)}, but must be a path, an onnx.ModelProto or an onnx_ir.Model: give the "
            "evaluation graph beside the training graph."
        )


def check_loader(loader: object) -> None:
    """Check that a loader can be read, or called with the number of an epoch.

    Raises:
        InputError: if it can be neither.
    """
    if isinstance(loader, type) and issubclass(loader, _CONTAINERS):
        raise InputError(f"The loader is {shown(loader)} itself: give one with batches in it.")
    if not callable(loader):
        check_batches(loader)
    elif not _takes_number(loader):
        raise InputError(f"The loader {shown(loader)} takes no number of an epoch: give a function of it, or a list.")


def check_batches(source: object) -> None:
    """Check that something gives batches.

    Raises:
        InputError: if it does not.
    """
    if not any(hasattr(type(source), way) for way in ("__iter__", "__getitem__")):
        raise InputError(
            f"Batches cannot be read from {shown(source)}: give a list of them, a poet_onnx.ArrayLoader or a "
            "DataLoader."
        )


def is_a(value: object, module: str, name: str) -> bool:
    """Return whether a value is of a class in a module, which is not imported: before that there is no such value."""
    found = getattr(sys.modules.get(module), name, None)
    return isinstance(found, type) and isinstance(value, found)


def _takes_number(function: object) -> bool:
    """Return whether something can be called with one argument; of what does not tell it is not known before."""
    if not callable(function):
        return False
    try:
        signature = inspect.signature(function)
    except ValueError:
        return True
    try:
        signature.bind(0)
    except TypeError:
        return False
    return True
