"""Tables that come with the package, in TOML: devices, kinds of storage, and what a process takes."""

from __future__ import annotations

import sys
from importlib import resources
from typing import Any

from poet_onnx.errors import InputError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def built_in_names(folder: str) -> tuple[str, ...]:
    """Return the names of the tables in a folder, sorted."""
    found = resources.files("poet_onnx.costing").joinpath(folder).iterdir()
    return tuple(sorted(entry.name[: -len(".toml")] for entry in found if entry.name.endswith(".toml")))


def built_in(folder: str, name: str) -> dict[str, Any]:
    """Return a table of a folder by its name."""
    data = resources.files("poet_onnx.costing").joinpath(folder, f"{name}.toml").read_bytes()
    return read_toml(data, f"{name}.toml")


def read_toml(data: bytes, file: str) -> dict[str, Any]:
    """Return the table that a file says.

    Raises:
        InputError: naming the file, which is no TOML.
    """
    try:
        return tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(f"Device profile {file} is not UTF-8 text: byte {error.start} is wrong.") from error
    except RecursionError as error:
        raise InputError(f"Device profile {file} is not usable TOML: its values are nested too deep.") from error
    except ValueError as error:  # of a whole number with thousands of digits, too
        raise InputError(f"Device profile {file} is not valid TOML: {error}.") from error
