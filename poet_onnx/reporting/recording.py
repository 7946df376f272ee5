"""A step that was measured: what ONNX Runtime's own profiling wrote of it, node by node."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pydantic

from poet_onnx.errors import InputError
from poet_onnx.record import Record

_KERNEL = "_kernel_time"
_MOST_BYTES = 2**30
_STEP = "model_run"


class Ran(Record):
    """A node that ran.

    Attributes:
        name, operator: of the node.
        start_seconds, seconds: from the step's begin, and how long.
    """

    name: str
    operator: str
    start_seconds: float = pydantic.Field(ge=0, allow_inf_nan=False)
    seconds: float = pydantic.Field(ge=0, allow_inf_nan=False)


class Recording(Record):
    """A measured step.

    Attributes:
        nodes: in the order in which they ran.
        seconds: of the step.
    """

    nodes: tuple[Ran, ...]
    seconds: float = pydantic.Field(ge=0, allow_inf_nan=False)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Recording:
        """Return the last step of which ONNX Runtime's profiling wrote to a file.

        Raises:
            InputError: if it is no such file, or no node ran.
        """
        try:
            if Path(path).stat().st_size > _MOST_BYTES:
                raise InputError(f"{path} is larger than {_MOST_BYTES:,} bytes: profile fewer steps.")
            events = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}.") from error
        except (ValueError, RecursionError) as error:
            raise _no_profile(path) from error
        try:
            return cls._of(_last_step(events))
        except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:  # pydantic's is a ValueError
            raise _no_profile(path) from error

    @classmethod
    def _of(cls, events: list[dict[str, Any]]) -> Recording:
        begin = min(event["ts"] for event in events)
        end = max(event["ts"] + event["dur"] for event in events)
        return cls(nodes=tuple(_ran(events, begin)), seconds=(end - begin) / 1e6)


def _no_profile(path: str | os.PathLike[str]) -> InputError:
    return InputError(
        f"{path} is no profile of a step: give the JSON file that ONNX Runtime writes with enable_profiling."
    )


def _last_step(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the last run of the whole model, and the nodes that ran within it."""
    step = max((event for event in events if event.get("name") == _STEP), key=lambda event: float(event["ts"]))
    begin, end = step["ts"], step["ts"] + step["dur"]
    nodes = [event for event in _kernels(events) if begin <= event["ts"] <= end]
    return [step, *sorted(nodes, key=lambda event: float(event["ts"]))]


def _kernels(events: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    return (event for event in events if event.get("cat") == "Node" and event["name"].endswith(_KERNEL))


def _ran(events: Iterable[dict[str, Any]], begin: float) -> Iterator[Ran]:
    for event in _kernels(events):
        yield Ran(
            name=event["name"].removesuffix(_KERNEL),
            operator=event["args"]["op_name"],
            start_seconds=(event["ts"] - begin) / 1e6,
            seconds=event["dur"] / 1e6,
        )
