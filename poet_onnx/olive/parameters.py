"""What a workflow may say of the pass: the arguments of `rewrite` that JSON can hold, with their types and texts."""

from __future__ import annotations

import inspect
import re
from collections import abc
from types import UnionType
from typing import Any, NamedTuple, SupportsIndex, Union, get_args, get_origin, get_type_hints

from poet_onnx.rewriting.rewrite import rewrite

_JSON = {bool: bool, int: int, SupportsIndex: int, float: float, str: str}
"""Types of Python's that JSON has, and what they are read as."""

_ONLY_IN_PYTHON = dict.fromkeys(("MeasuredCosts", "Progress"))
"""Types that `rewrite` imports for type checkers alone."""

_ARGUMENT = re.compile(r"^ {4}(\w+): (.*(?:\n {8,}.*)*)", re.MULTILINE)
"""A name and its text, in a docstring."""


class Parameter(NamedTuple):
    """An argument of `rewrite`.

    Attributes:
        kind: what JSON gives for it.
        required: whether something must be said.
        default: where nothing is said; None stands for whatever `rewrite` then does.
        description: for people.
    """

    kind: Any
    required: bool
    default: Any
    description: str


def parameters() -> dict[str, Parameter]:
    """Return the arguments of `rewrite` by name, without the model and what no JSON holds."""
    hints = get_type_hints(rewrite, localns=_ONLY_IN_PYTHON)
    texts = dict(_ARGUMENT.findall(inspect.getdoc(rewrite) or ""))
    arguments = [each for each in inspect.signature(rewrite).parameters.values() if each.kind is each.KEYWORD_ONLY]
    kinds = {each.name: kind for each in arguments if (kind := _in_json(hints[each.name])) is not None}
    return {
        each.name: Parameter(
            kinds[each.name],
            required=each.default is each.empty,
            default=None if each.default in (each.empty, ()) else each.default,
            description=" ".join(texts[each.name].split()),
        )
        for each in arguments
        if each.name in kinds
    }


def _in_json(hint: Any) -> Any:
    """Return what a JSON file can hold of a type, None if that is nothing."""
    origin = get_origin(hint)
    if origin is abc.Mapping:
        return dict[get_args(hint)]  # type: ignore[misc]
    if origin is abc.Sequence:
        return list[_in_json(*get_args(hint))]  # type: ignore[misc]
    if origin in (Union, UnionType):
        kinds = tuple(kind for each in get_args(hint) if (kind := _in_json(each)) is not None)
        return Union[kinds] if kinds else None  # noqa: UP007
    return _JSON.get(hint) if isinstance(hint, type) else None
