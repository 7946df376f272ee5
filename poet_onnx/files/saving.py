"""Save a model whole or not at all; weights that are external stay external."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path, PurePosixPath

import onnx_ir as ir

from poet_onnx.errors import InputError
from poet_onnx.files.atomic import Written, cannot_write, write_file
from poet_onnx.files.data_files import LARGEST_FILE_BYTES, SMALL_BYTES, DataPiece, copy_data, write_beside
from poet_onnx.files.embedded import EmbeddedTensor
from poet_onnx.files.external_data import FileTensor, hold_external, replace_tensors
from poet_onnx.files.model_writing import bytes_of_model
from poet_onnx.files.regular import as_path, resolved


def save_model(
    model: ir.Model, path: str | os.PathLike[str], *, replace: bool = True, written: Written | None = None
) -> None:
    """Write a model to a file, atomically: after a failure or a crash there is the old file or the new one.

    Weights kept as external data in the folder of `path`, or below it, are left where they are. Of those elsewhere,
    what the model declares is copied beside `path`, readable to no more users than it was: a model may not refer to
    files outside its folder. The model itself is not changed.

    Args:
        model: what to write.
        path: of the file.
        replace: whether a file of that name may be replaced.
        written: gets to know the files; by default those that are new are removed after an error.

    Raises:
        InputError: if the file cannot be written, or is there and must stay, or external data are missing.
    """
    target = as_path(path)
    try:
        with written or Written() as files:
            clone = model.clone()
            hold_external(clone)
            _bring_data(clone, target, files)
            _move_out_if_large(clone, target, files)
            pieces = bytes_of_model(clone)
            chunks = (chunk for piece in pieces for chunk in piece.chunks())
            write_file(target, lambda file: file.writelines(chunks), replace=replace, written=files)
    except OSError as error:
        raise cannot_write(target, error) from error
    except ValueError as error:
        raise InputError(f"{target} cannot be written: {error}.") from error


def _bring_data(model: ir.Model, target: Path, written: Written) -> None:
    """Let all external data be in the target's folder; changes the model."""
    folder = resolved(target.parent)
    elsewhere: dict[Path, list[FileTensor]] = {}

    def bring(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        if not isinstance(tensor, FileTensor):
            return tensor
        source = Path(tensor.path)
        if source.is_relative_to(folder):
            moved = tensor.moved(folder, PurePosixPath(source.relative_to(folder)), tensor.first)
            with tensor.opened(), moved.opened():
                return moved
        elsewhere.setdefault(source, []).append(tensor)
        return tensor

    replace_tensors(model, bring)
    brought: dict[FileTensor, FileTensor] = {}
    for tensors in elsewhere.values():
        name, starts = copy_data(tensors, target, written)
        brought |= {each: each.moved(folder, PurePosixPath(name), starts[each]) for each in tensors}
    replace_tensors(model, lambda tensor: brought.get(tensor, tensor) if isinstance(tensor, FileTensor) else tensor)


def _move_out_if_large(model: ir.Model, target: Path, written: Written) -> None:
    """Write embedded weights into a data file of their own if they do not fit into a protobuf file."""
    embedded = [
        (value, value.const_value)
        for graph in model.graphs()
        for value in graph.initializers.values()
        if value.const_value is not None
        and not isinstance(value.const_value, ir.ExternalTensor)
        and value.const_value.dtype is not ir.DataType.STRING
    ]
    if sum(tensor.nbytes for _, tensor in embedded) <= LARGEST_FILE_BYTES:
        return
    large = [(value, tensor) for value, tensor in embedded if tensor.nbytes > SMALL_BYTES]
    starts = [0, *itertools.accumulate(tensor.nbytes for _, tensor in large)]
    pieces = [DataPiece(start, partial(_whole, tensor)) for start, (_, tensor) in zip(starts, large, strict=False)]
    name = write_beside(target, "weights", pieces, 0o777, written)
    for start, (value, tensor) in zip(starts, large, strict=False):
        value.const_value = ir.ExternalTensor(
            *(name, start, tensor.nbytes, tensor.dtype),
            shape=ir.Shape(tensor.shape.numpy()),
            name=tensor.name or value.name or "",
            base_dir=str(resolved(target.parent)),
        )


def _whole(tensor: ir.TensorProtocol) -> Iterator[bytes | memoryview]:
    yield from tensor.chunks() if isinstance(tensor, EmbeddedTensor) else [tensor.tobytes()]
