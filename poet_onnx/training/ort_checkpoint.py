"""Read the parameters in a checkpoint of onnxruntime-training, without onnxruntime-training.

The file is a FlatBuffer (https://flatbuffers.dev/internals) of the tables in
onnxruntime/core/flatbuffers/schema/ort_training_checkpoint.fbs of github.com/microsoft/onnxruntime, v1.19.2. Numbers of
fields below are their places in these tables.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from poet_onnx.errors import InputError
from poet_onnx.files.element_types import NAMES
from poet_onnx.files.held_file import HeldFile
from poet_onnx.files.regular import open_regular
from poet_onnx.files.tensor_file import flat
from poet_onnx.files.values import Kind, Values

Array = npt.NDArray[np.generic]

IDENTIFIER = b"ODTC"
"""What stands at bytes 4 to 8 of such a file."""

_MODULE_STATE = 1  # of Checkpoint
_TRAINED, _FROZEN, _NOMINAL, _EXTERNAL = 0, 1, 2, 3  # of ModuleState
_NAME, _DIMS, _TYPE, _RAW = 0, 2, 3, 4  # of Tensor


def is_ort_checkpoint(path: Path) -> bool:
    """Return whether a file is a checkpoint of onnxruntime-training.

    Raises:
        OSError: if it cannot be read.
    """
    with open_regular(path) as file:
        return file.read(8)[4:] == IDENTIFIER


class _StoredTensor(NamedTuple):
    """Where a tensor is."""

    kind: Kind
    start: int


def read_ort_checkpoint(path: Path) -> Values:
    """Return the parameters in a checkpoint, those that are not trained last; each is read when it is asked for.

    Raises:
        InputError: if it is damaged, or holds no values.
        OSError: if it cannot be read.
    """
    file = HeldFile(path)
    with mmap.mmap(file.descriptor, 0, access=mmap.ACCESS_READ) as data:
        try:
            places = dict(_parameters(_Table.root(data), path))
        except (struct.error, UnicodeDecodeError, ValueError, OverflowError, MemoryError) as error:
            raise InputError(f"{path} is damaged: {error}; export the model's artifacts again.") from error

    def read_into(name: str, array: Array) -> None:
        file.fill(flat(array), places[name].start)

    return Values(path, {name: place.kind for name, place in places.items()}, read_into)


def _parameters(checkpoint: _Table, path: Path) -> Iterator[tuple[str, _StoredTensor]]:
    module = checkpoint.table(_MODULE_STATE)
    if module is None:
        raise InputError(f"{path} holds no parameters: export the model's artifacts again.")
    if module.flag(_NOMINAL):
        raise InputError(f"{path} is a nominal checkpoint, which has no values: save it with include_parameters.")
    if module.flag(_EXTERNAL):
        raise InputError(f"{path} keeps its values in another file: save it as one file.")
    for field in (_TRAINED, _FROZEN):
        for tensor in module.tables(field):
            yield tensor.string(_NAME), _place(tensor)


def _place(tensor: _Table) -> _StoredTensor:
    number, name = tensor.number(_TYPE, "<i", 0), tensor.string(_NAME)
    if number not in NAMES:
        raise ValueError(f"'{name}' has elements of the unknown type {number}")
    shape = tuple(struct.unpack_from(f"<{tensor.length(_DIMS)}q", tensor.data, tensor.start(_DIMS)))
    size = tensor.length(_RAW)
    if min(shape, default=0) < 0 or size != math.prod(shape) * np.dtype(NAMES[number]).itemsize:
        raise ValueError(f"'{name}' of shape {list(shape)} has {size} bytes")
    return _StoredTensor(Kind(NAMES[number], shape), tensor.start(_RAW))


@dataclass(frozen=True)
class _Table:
    """A table of the FlatBuffer: where its fields are."""

    data: mmap.mmap
    position: int

    @classmethod
    def root(cls, data: mmap.mmap) -> _Table:
        return cls(data, _unsigned(data, 0))

    def table(self, field: int) -> _Table | None:
        place = self._place(field)
        return None if place is None else _Table(self.data, place + _unsigned(self.data, place))

    def tables(self, field: int) -> Iterator[_Table]:
        start = self.start(field)
        for index in range(self.length(field)):
            place = start + 4 * index
            yield _Table(self.data, place + _unsigned(self.data, place))

    def flag(self, field: int) -> bool:
        return self.number(field, "<B", 0) != 0

    def number(self, field: int, kind: str, default: int) -> int:
        place = self._place(field)
        return default if place is None else int(struct.unpack_from(kind, self.data, place)[0])

    def string(self, field: int) -> str:
        start = self.start(field)
        return self.data[start : start + self.length(field)].decode()

    def length(self, field: int) -> int:
        """Return the number of elements of a vector or string, and check that they are there."""
        place = self._place(field)
        if place is None:
            return 0
        count = _unsigned(self.data, place + _unsigned(self.data, place))
        if self.start(field) + count > len(self.data):
            raise ValueError(f"a vector of {count} elements ends behind the file's {len(self.data)} bytes")
        return count

    def start(self, field: int) -> int:
        """Return where the elements of a vector or string start."""
        place = self._place(field)
        return 0 if place is None else place + _unsigned(self.data, place) + 4

    def _place(self, field: int) -> int | None:
        layout = self.position - int(struct.unpack_from("<i", self.data, self.position)[0])
        if layout < 0:
            raise ValueError(f"a table at byte {self.position} has its layout before the file")
        (size,) = struct.unpack_from("<H", self.data, layout)
        entry = 4 + 2 * field
        if entry + 2 > size:
            return None
        (offset,) = struct.unpack_from("<H", self.data, layout + entry)
        return self.position + int(offset) if offset else None


def _unsigned(data: mmap.mmap, place: int) -> int:
    return int(struct.unpack_from("<I", data, place)[0])
