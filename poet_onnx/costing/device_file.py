"""Writes a device profile as the TOML file that `load_device` reads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from poet_onnx.costing.device import DeviceProfile, StorageBus, device_names
from poet_onnx.errors import InputError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LEFT_OUT = {"sources"}


def device_name(path: Path) -> str:
    """Return what the device of a file is called: as the file is.

    Raises:
        InputError: the file is not called as a device can be, or as a built-in one is.
    """
    if path.suffix != ".toml":
        raise InputError(f"{path.name} would not be found as a device's profile: let its name end in .toml.")
    if not _NAME.fullmatch(path.stem):
        raise InputError(
            f"{path.stem!r} cannot be the name of a device: use up to 64 letters, digits, dots, dashes and underscores."
        )
    if path.stem in device_names():
        raise InputError(f"There is a built-in device {path.stem!r}: give another name, such as my-{path.stem}.toml.")
    return path.stem


def device_toml(device: DeviceProfile, heading: str = "") -> str:
    """Return the text of a device's file, each number with its source.

    Args:
        device: to write; where it has a choice of storage, that is written, and not the one that was chosen.
        heading: stands in the first line as a comment, if it is not empty.
    """
    if device.storage_kinds:
        device = device.model_copy(update={"storage": None})
    lines = [f"# {heading}"] if heading else []
    return "\n".join([*lines, *_table(device, "")]) + "\n"


def _table(table: BaseModel, path: str) -> Iterator[str]:
    """Yield the lines of a table: what it says itself, then the tables in it."""
    sources = getattr(table, "sources", {})
    values = {name: getattr(table, name) for name in type(table).model_fields if name not in _LEFT_OUT}
    for name, value in values.items():
        if name in sources and value is not None:
            yield f"{name} = {_sourced(value, sources[name])}"
        elif isinstance(value, str) or value is True:
            yield f"{name} = {_value(value)}"
    for name, value in values.items():
        inner = f"{path}.{name}" if path else name
        if isinstance(value, BaseModel):
            yield from ("", f"[{inner}]", *_table(value, inner))
        elif isinstance(value, dict) and value:
            yield from ("", f"[{inner}]")
            for key, each in value.items():
                assert isinstance(each, StorageBus)
                yield f"{_value(key)} = {_sourced(each.value, each.source)}"


def _sourced(value: float, source: str) -> str:
    return f"{{ value = {_value(value)}, source = {_value(source)} }}"


def _value(value: float | str) -> str:
    """Return a value as TOML has it: its texts and numbers are written as JSON's."""
    return json.dumps(value, ensure_ascii=False)
