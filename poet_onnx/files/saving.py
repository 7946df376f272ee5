"""Save a model whole or not at all; weights that are external stay external."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple

import onnx_ir as ir

from poet_onnx.errors import InputError
from poet_onnx.files.atomic import Written, cannot_write, set_permissions, write_file
from poet_onnx.files.contained import open_below
from poet_onnx.files.external_data import FileTensor, hold_external, replace_tensors

LARGEST_FILE_BYTES = 2**31 - 2**26
"""Embedded weights beyond this are written beside the model: a protobuf file ends at 2 GiB."""

_SMALL_BYTES = 1024  # what stays embedded in any case: shapes, axes, scalars
_CHUNK_BYTES = 2**20
_PAGE_BYTES = 4096  # what starts at a page in one file does so in a copy, for who maps it into memory


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
    target = Path(path)
    try:
        with written or Written() as files:
            clone = model.clone()
            hold_external(clone)
            _bring_data(clone, target, files)
            _move_out_if_large(clone, target, files)
            payload = ir.to_proto(clone).SerializeToString(deterministic=True)
            write_file(target, lambda file: file.write(payload), replace=replace, written=files)
    except OSError as error:
        raise cannot_write(target, error) from error
    except ValueError as error:
        raise InputError(f"{target} cannot be written: {error}.") from error


class _Piece(NamedTuple):
    """A part of a data file: where it starts, and its bytes in chunks."""

    start: int
    chunks: Callable[[], Iterator[bytes]]


def _bring_data(model: ir.Model, target: Path, written: Written) -> None:
    """Let all external data be in the target's folder; changes the model."""
    folder = target.parent.resolve()
    elsewhere: dict[Path, list[FileTensor]] = {}

    def bring(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        if not isinstance(tensor, FileTensor):
            return tensor
        source = Path(tensor.path)
        if source.is_relative_to(folder):
            moved = tensor.moved(folder, PurePosixPath(source.relative_to(folder)), tensor.first)
            with moved.opened():
                return moved
        elsewhere.setdefault(source, []).append(tensor)
        return tensor

    replace_tensors(model, bring)
    brought: dict[FileTensor, FileTensor] = {}
    for tensors in elsewhere.values():
        name, starts = _copied(tensors, target, written)
        brought |= {each: each.moved(folder, PurePosixPath(name), starts[each]) for each in tensors}
    replace_tensors(model, lambda tensor: brought.get(tensor, tensor) if isinstance(tensor, FileTensor) else tensor)


class _Stretch(NamedTuple):
    """Bytes of a file that a copy has too."""

    first: int
    last: int
    start: int

    @property
    def end(self) -> int:
        return self.start + self.last - self.first


def _copied(tensors: Sequence[FileTensor], target: Path, written: Written) -> tuple[str, Mapping[FileTensor, int]]:
    """Copy what tensors have of one file, and return the copy's name and where each starts in it."""
    stretches: list[_Stretch] = []
    starts: dict[FileTensor, int] = {}
    for tensor in sorted(tensors, key=lambda each: each.first):
        first, last = tensor.first, tensor.first + tensor.nbytes
        if stretches and first <= stretches[-1].last:
            stretches[-1] = stretches[-1]._replace(last=max(last, stretches[-1].last))
        else:
            end = stretches[-1].end if stretches else 0
            stretches.append(_Stretch(first, last, end + (first - end) % _PAGE_BYTES))
        starts[tensor] = stretches[-1].start + first - stretches[-1].first
    with tensors[0].opened() as source:
        pieces = [_Piece(each.start, partial(_read, source, each)) for each in stretches]
        permissions = stat.S_IMODE(os.fstat(source).st_mode)
        return _write_beside(target, "data", pieces, permissions, written), starts


def _read(source: int, stretch: _Stretch) -> Iterator[bytes]:
    """Yield the bytes of a stretch."""
    for position in range(stretch.first, stretch.last, _CHUNK_BYTES):
        size_bytes = min(_CHUNK_BYTES, stretch.last - position)
        chunk = os.pread(source, size_bytes, position)
        if len(chunk) < size_bytes:
            raise InputError("A data file of the model became shorter while it was copied: put it back, and try again.")
        yield chunk


def _write_beside(target: Path, kind: str, pieces: Sequence[_Piece], permissions: int, written: Written) -> str:
    """Write a data file beside a model and return its name; what is there stays, and is used if it is the same."""

    def fill(file: BinaryIO) -> None:
        set_permissions(file.fileno(), permissions & stat.S_IMODE(os.fstat(file.fileno()).st_mode))
        for piece in pieces:
            file.seek(piece.start)
            file.writelines(piece.chunks())

    for number in itertools.count():
        path = target.with_name(f"{target.name}.{kind}{number or ''}")
        if not os.path.lexists(path):
            with contextlib.suppress(FileExistsError):  # another process may do the same
                write_file(path, fill, replace=False, written=written)
                return path.name
        if _same(target.parent, path.name, pieces):
            return path.name
    raise AssertionError  # the count has no end


def _same(folder: Path, name: str, pieces: Sequence[_Piece]) -> bool:
    """Return whether a data file has these pieces."""
    try:
        with open_below(folder, PurePosixPath(name), "A data file") as file:
            for piece in pieces:
                position = piece.start
                for chunk in piece.chunks():
                    if os.pread(file, len(chunk), position) != chunk:
                        return False
                    position += len(chunk)
            return True
    except InputError:
        return False


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
    large = [(value, tensor) for value, tensor in embedded if tensor.nbytes > _SMALL_BYTES]
    starts = [0, *itertools.accumulate(tensor.nbytes for _, tensor in large)]
    pieces = [_Piece(start, partial(_whole, tensor)) for start, (_, tensor) in zip(starts, large, strict=False)]
    name = _write_beside(target, "weights", pieces, 0o777, written)
    for start, (value, tensor) in zip(starts, large, strict=False):
        value.const_value = ir.ExternalTensor(
            *(name, start, tensor.nbytes, tensor.dtype),
            shape=ir.Shape(tensor.shape.numpy()),
            name=tensor.name or value.name or "",
            base_dir=str(target.parent.resolve()),
        )


def _whole(tensor: ir.TensorProtocol) -> Iterator[bytes]:
    yield tensor.tobytes()
