"""Errors that poet-onnx raises: one base class, each with the exit code its kind has on the command line."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80


class PoetError(Exception):
    """Base of every error that poet-onnx raises on purpose; `str(error)` is one complete sentence."""

    exit_code = 2


class InputError(PoetError):
    """A file, option or model that cannot be used: says what, where, the number with its unit, and what to try."""


class CheckFailedError(PoetError):
    """A check of ours did not hold: the result must not be trusted."""

    exit_code = 1


class InfeasibleError(PoetError):
    """No plan exists for the given budget and deadline.

    Attributes:
        smallest_budget_bytes: the smallest budget found to work, of the kind that was asked for; None where none does.
    """

    exit_code = 3

    def __init__(self, message: str, smallest_budget_bytes: int | None = None) -> None:
        super().__init__(message)
        self.smallest_budget_bytes = smallest_budget_bytes


class LimitReachedError(PoetError):
    """A time limit or an interruption came before any plan was found.

    Attributes:
        smallest_budget_bytes: as of `InfeasibleError`.
    """

    exit_code = 4

    def __init__(self, message: str, smallest_budget_bytes: int | None = None) -> None:
        super().__init__(message)
        self.smallest_budget_bytes = smallest_budget_bytes


class PoetWarning(UserWarning):
    """Something that poet-onnx cannot decide, in one complete sentence."""


def listed(names: Iterable[str], most: int) -> str:
    """Return the first of some names, and how many more there are, as in "a, b and 3 more"."""
    every = list(names)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more


def quoted(names: Iterable[str | None], most: int = 4) -> str:
    """Return names in quotes, likewise: "'a', 'b' and 3 more"."""
    return listed((f"'{name}'" for name in names), most)


def shown(value: object) -> str:
    """Return a value that was given in few letters of one line, however long it is."""
    try:
        return " ".join(_SHORT.repr(value).split())
    except ValueError:  # of Python's, which takes no such number for text
        return "a whole number of too many digits"
