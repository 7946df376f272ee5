"""Save a model whole or not at all; weights that are external stay external."""

from __future__ import annotations

import contextlib
import filecmp
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import onnx_ir as ir

from poet_onnx.atomic import write_file
from poet_onnx.errors import InputError

LARGEST_FILE_BYTES = 2**31 - 2**26
"""Embedded weights beyond this are written beside the model: a protobuf file ends at 2 GiB."""

_SMALL_BYTES = 1024  # what stays embedded in any case: shapes, axes, scalars


def save_model(model: ir.Model, path: str | os.PathLike[str]) -> None:
    """Write a model to a file, atomically: after a failure or a crash there is the old file or the new one.

    Weights kept as external data in the folder of `path`, or below it, are left where they are. Those elsewhere are
    copied beside `path`, for a model may not refer to files outside its folder. The model itself is not changed.

    Raises:
        InputError: if the file cannot be written or external data is missing.
    """
    target = Path(path)
    written: list[Path] = []
    try:
        with contextlib.ExitStack() as undo:
            undo.callback(_remove, written)
            proto = ir.to_proto(_with_local_data(model, target, written))
            payload = proto.SerializeToString(deterministic=True)
            write_file(target, lambda file: file.write(payload))
            undo.pop_all()
    except OSError as error:
        raise InputError(f"{target} cannot be written: {error.strerror or error}.") from error
    except ValueError as error:
        raise InputError(f"{target} cannot be written: {error}.") from error


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _with_local_data(model: ir.Model, target: Path, written: list[Path]) -> ir.Model:
    """Return a model all of whose external data lie in the target's folder; data files made for that are noted."""
    folder = target.parent.resolve()
    clone = model.clone()
    locations: dict[Path, str] = {}
    for value in _initializers(clone):
        tensor = value.const_value
        if not isinstance(tensor, ir.ExternalTensor):
            continue
        source = Path(tensor.path).resolve()
        if source not in locations:
            locations[source] = _local(source, folder, target, written)
        value.const_value = ir.ExternalTensor(
            locations[source],
            tensor.offset,
            tensor.length,
            tensor.dtype,
            shape=tensor.shape,
            name=tensor.name,
            doc_string=tensor.doc_string,
            base_dir=str(folder),
        )
    _move_out_if_large(clone, target, written)
    return clone


def _initializers(model: ir.Model) -> Iterator[ir.Value]:
    for graph in model.graphs():
        yield from graph.initializers.values()


def _local(source: Path, folder: Path, target: Path, written: list[Path]) -> str:
    """Return a data file's name relative to the folder, after copying it there if it is elsewhere."""
    if not source.is_file():
        raise InputError(f"The external data {source} of the model is missing: put it back beside the model.")
    if source.is_relative_to(folder):
        return source.relative_to(folder).as_posix()
    copy, number = target.with_name(f"{target.name}.data"), 0
    while copy.exists() or copy in written:
        # What is there may be the data of the model that this one replaces: use it if it is the same, else leave it.
        if copy not in written and filecmp.cmp(source, copy, shallow=False):
            return copy.name
        number += 1
        copy = target.with_name(f"{target.name}.data{number}")

    def copy_from(file: BinaryIO) -> None:
        with source.open("rb") as original:
            shutil.copyfileobj(original, file, 1 << 20)

    write_file(copy, copy_from)
    written.append(copy)
    return copy.name


def _move_out_if_large(model: ir.Model, target: Path, written: list[Path]) -> None:
    """Write embedded weights into a data file of their own if they do not fit into a protobuf file."""
    embedded = [
        (value, value.const_value)
        for value in _initializers(model)
        if value.const_value is not None
        and not isinstance(value.const_value, ir.ExternalTensor)
        and value.const_value.dtype is not ir.DataType.STRING
    ]
    if sum(tensor.nbytes for _, tensor in embedded) <= LARGEST_FILE_BYTES:
        return
    large = [(value, tensor) for value, tensor in embedded if tensor.nbytes > _SMALL_BYTES]
    data = target.with_name(f"{target.name}.weights")

    def write_all(file: BinaryIO) -> None:
        for _, tensor in large:
            file.write(tensor.tobytes())

    write_file(data, write_all)
    written.append(data)
    offset = 0
    for value, tensor in large:
        value.const_value = ir.ExternalTensor(
            *(data.name, offset, tensor.nbytes, tensor.dtype),
            shape=ir.Shape(tensor.shape.numpy()),
            name=tensor.name or value.name or "",
            base_dir=str(target.parent.resolve()),
        )
        offset += tensor.nbytes
