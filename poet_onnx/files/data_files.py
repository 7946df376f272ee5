"""Data files beside a model: what a copied model refers to, and weights that a protobuf file cannot hold."""

from __future__ import annotations

import contextlib
import itertools
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple, TypeVar

from poet_onnx.errors import InputError
from poet_onnx.files.atomic import Written, set_permissions, write_file
from poet_onnx.files.contained import InFile, chunks_of, open_below

T = TypeVar("T", bound=InFile)

LARGEST_FILE_BYTES = 2**31 - 2**26
"""Embedded weights beyond this are written beside the model: a protobuf file ends at 2 GiB."""

SMALL_BYTES = 1024
"""What stays embedded in any case: shapes, axes, scalars."""

_PAGE_BYTES = 4096  # what starts at a page in one file does so in a copy, for who maps it into memory


class DataPiece(NamedTuple):
    """A part of a data file: where it starts, and its bytes in chunks."""

    start: int
    chunks: Callable[[], Iterable[bytes | memoryview]]


class _Stretch(NamedTuple):
    """Bytes of a file that a copy has too."""

    first: int
    last: int
    start: int

    @property
    def end(self) -> int:
        return self.start + self.last - self.first


def copy_data(tensors: Sequence[T], target: Path, written: Written) -> tuple[str, Mapping[T, int]]:
    """Copy what tensors have of one file, and return the copy's name and where each starts in it."""
    stretches: list[_Stretch] = []
    starts: dict[T, int] = {}
    for tensor in sorted(tensors, key=lambda each: each.first):
        first, last = tensor.first, tensor.first + tensor.nbytes
        if stretches and first <= stretches[-1].last:
            stretches[-1] = stretches[-1]._replace(last=max(last, stretches[-1].last))
        else:
            end = stretches[-1].end if stretches else 0
            stretches.append(_Stretch(first, last, end + (first - end) % _PAGE_BYTES))
        starts[tensor] = stretches[-1].start + first - stretches[-1].first
    with tensors[0].opened() as source:
        pieces = [DataPiece(each.start, partial(chunks_of, source, each.first, each.last)) for each in stretches]
        permissions = stat.S_IMODE(os.fstat(source).st_mode)
        return write_beside(target, "data", pieces, permissions, written), starts


def write_beside(target: Path, kind: str, pieces: Sequence[DataPiece], permissions: int, written: Written) -> str:
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


def _same(folder: Path, name: str, pieces: Sequence[DataPiece]) -> bool:
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
