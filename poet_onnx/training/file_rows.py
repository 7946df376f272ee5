"""Samples of an array in a file, each read when it is asked for.

Read by way of the mapping, a sample may bring 2 MiB around it into the process's memory: as much as the kernel has of
the file in one piece.
"""

from __future__ import annotations

import mmap
import os
import weakref
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from poet_onnx.errors import InputError
from poet_onnx.files.regular import open_regular

Array = npt.NDArray[Any]

_COMPARED_BYTES = 64 << 10


def read_from_file(array: Any) -> Any:
    """Return the rows of a numpy file that was mapped, to be read one by one; any other array as it is.

    What is changed in memory alone stays an array, and so do rows that have gaps in the file.
    """
    mapping, root = mapping_of(array), _root(array)
    if mapping is None or not array.size or not array[:1].flags.c_contiguous or root.filename is None:
        return array
    try:
        file = open_regular(root.filename)
    except OSError:
        return array
    rows = FileRows(array, root.filename, file, root.offset + array.ctypes.data - root.ctypes.data)
    # Another file may have its name now.
    return rows if all(rows.shares(array, row, mapping) for row in {0, len(array) - 1}) else array


def mapping_of(array: Any) -> mmap.mmap | None:
    """Return what maps the file of an array; None for one that is in no file, or whose changes are in none."""
    root = _root(array)
    held: Any = getattr(root, "base", None)
    is_shared = isinstance(root, np.memmap) and root.mode != "c"
    return held if is_shared and isinstance(held, mmap.mmap) else None


def _root(array: Any) -> Any:
    """Return the array of which another one is a view."""
    while isinstance(array, np.ndarray) and isinstance(array.base, np.ndarray):
        array = array.base
    return array


class FileRows:
    """Reads rows of an array from its file.

    Attributes:
        shape: of the array.
    """

    def __init__(self, array: Array, path: str, file: BinaryIO, offset_bytes: int) -> None:
        """Say where the array lies in the file, which is closed with the object."""
        self.shape = array.shape
        self._dtype, self._stride_bytes, self._row_bytes = array.dtype, array.strides[0], array[:1].nbytes
        self._path, self._file, self._offset_bytes = path, file, offset_bytes
        weakref.finalize(self, file.close)

    def __getitem__(self, rows: Array) -> Array:
        """Read some rows.

        Raises:
            InputError: if the file has become shorter, or its storage fails.
        """
        data = np.empty((len(rows), self._row_bytes), np.uint8)
        for into, row in zip(data, rows.tolist(), strict=True):
            self._read(into, row)
        return data.view(self._dtype).reshape(len(rows), *self.shape[1:])

    def _read(self, into: Array, row: int, begin_bytes: int = 0) -> None:
        """Fill an array with a row's bytes from one on.

        Raises:
            InputError: if the file has become shorter, or its storage fails.
        """
        try:
            at_bytes = self._offset_bytes + row * self._stride_bytes + begin_bytes
            count = os.preadv(self._file.fileno(), [into.data], at_bytes)
        except OSError as error:
            raise InputError(f"Sample {row} of {self._path} cannot be read: {error.strerror}.") from error
        if count < len(into):
            raise InputError(f"{self._path} ends before sample {row}: it was cut while it was in use.")

    def shares(self, array: Array, row: int, mapping: mmap.mmap) -> bool:
        """Return whether a row of the file has an array's bytes; a piece at a time is in memory, mapped and read."""
        held = array[row : row + 1].reshape(-1).view(np.uint8)
        piece = np.empty(min(self._row_bytes, _COMPARED_BYTES), np.uint8)
        for begin in range(0, self._row_bytes, len(piece)):
            part = held[begin : begin + len(piece)]
            try:
                self._read(piece[: len(part)], row, begin)
            except InputError:
                return False
            is_same = np.array_equal(piece[: len(part)], part)
            mapping.madvise(mmap.MADV_DONTNEED)
            if not is_same:
                return False
        return True
