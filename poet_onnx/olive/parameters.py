"""What a workflow may say of the pass: the options of `rewrite` that JSON can hold, with their types and texts."""

from __future__ import annotations

from collections import abc
from collections.abc import Mapping
from types import UnionType
from typing import Any, SupportsIndex, Union, get_args, get_origin

from poet_onnx.options import Option, options_of
from poet_onnx.rewriting.options import RewriteOptions

_JSON = {bool: bool, int: int, SupportsIndex: int, float: float, str: str}
"""Types of Python's that JSON has, and what they are read as."""


def parameters() -> Mapping[str, tuple[Any, Option]]:
    """Return the options that a JSON file can hold, by name, with their types."""
    kinds = ((option, _in_json(option.kind)) for option in options_of(RewriteOptions))
    return {option.name: (kind, option) for option, kind in kinds if kind is not None}


def _in_json(kind: Any) -> Any:
    """Return what a JSON file can hold of a type, None if that is nothing."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is abc.Mapping:
        return dict[inner]  # type: ignore[misc, valid-type]
    if origin is abc.Sequence:
        return list[_in_json(*inner)]  # type: ignore[misc]
    if origin in (Union, UnionType):
        kinds = tuple(found for each in inner if (found := _in_json(each)) is not None)
        return Union[kinds] if kinds else None  # noqa: UP007
    return _JSON.get(kind) if isinstance(kind, type) else None
