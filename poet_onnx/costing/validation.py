"""What files of numbers share that people write: text that can be shown, and one line for the first thing wrong."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, ValidationError

Text = Annotated[str, Field(pattern=r"^[^\x00-\x08\x0b-\x1f\x7f-\x9f]*$")]
"""Text of a file that is shown to people: without what a terminal obeys."""

_SHOWN_LETTERS = 120


def describe_first_error(error: ValidationError) -> str:
    """Describe the first thing that a validation found wrong, with its key and the value found there, in one line."""
    first = error.errors(include_url=False)[0]
    key = _shortened("".join(f"{part}." for part in first["loc"]).removesuffix("."))[1:-1]
    message = first["msg"].removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    found = first["input"]
    shown = f" (found {_shortened(found)})" if isinstance(found, (bool, int, float, str)) else ""
    return f"{key}{': ' if key else ''}{message}{shown}"


def _shortened(value: float | str) -> str:
    """Return how a value is written in Python, without the middle of a long one."""
    text = repr(value)
    return text if len(text) <= _SHOWN_LETTERS else f"{text[: _SHOWN_LETTERS // 2]}...{text[-_SHOWN_LETTERS // 2 :]}"
