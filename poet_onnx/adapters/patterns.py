"""How PEFT tells modules by their names: by regular expressions, which may have numbers, and by how they end."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from typing import TypeVar

_MOST_REPEATS = 8
"""A pattern may repeat at most this often: with more repeats a match may take ages."""

_Number = TypeVar("_Number", int, float)


def pattern_for(patterns: Mapping[str, _Number], module: str, default: _Number) -> _Number:
    """Return the number of the first pattern that matches a module's name, as PEFT's `get_pattern_key` finds it."""
    matching = (number for key, number in patterns.items() if re.match(rf"(.*\.)?({key})$", module))
    return next(matching, default)


def is_saved_by(names: Iterable[str], module: str) -> bool:
    """Return whether PEFT saves a module whole by names in modules_to_save: it, or one that it is in, ends as one."""
    parts = module.split(".")
    paths = [".".join(parts[: count + 1]) for count in range(len(parts))]
    return any(path.endswith(name) for name in names for path in paths)


def why_no_pattern(pattern: str, *, is_part: bool = True) -> str:
    """Return why a regular expression cannot be used; empty if it can.

    It may be a stranger's: what repeats something that repeats, or has many repeats, can take more time for a short
    name than there is.

    Args:
        pattern: the expression.
        is_part: whether it becomes a part of another one.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            re.compile(pattern)
            re.compile(f"(.*)({pattern})$" if is_part else pattern)
    except (re.error, RecursionError, OverflowError, Warning) as error:
        return f"it is no regular expression ({error})"
    plain = re.sub(r"\\.|\(\?", "", pattern)
    many = len(re.findall(r"[*+?{]", plain)) > _MOST_REPEATS
    return "it repeats too much" if many or re.search(r"\)[*+{]", plain) else ""
