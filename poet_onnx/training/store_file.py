"""A parameter store on disk: named tensors in a directory, read and written in pieces, and committed all together.

What it holds is found again after a crash or a loss of power as it was at a commit (ops/parameters). One process at a
time has it open.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import re
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from poet_onnx.errors import InputError
from poet_onnx.files.folders import make_folder
from poet_onnx.files.tensor_file import flat
from poet_onnx.files.values import Kind, Values
from poet_onnx.runtime.library import operator_library

Array = npt.NDArray[np.generic]

PAGE_BYTES = 128 << 10
"""Size of a store's page. Each page has a checksum. ops/parameters/parameter_file.h has the same number."""

ACCESS = ("auto", "cached", "direct")
"""How pages are read and written: through the page cache or past it."""

_FILE = "parameters.poet"
_FORMAT = 1
_ERROR_BYTES = 1024


@dataclass(frozen=True)
class Stored:
    """A tensor of a store.

    Attributes:
        kind: element type and shape.
        changes: whether it is trained; what is not is written once.
        rates_of: tensors in front of it, a table and what its optimizer keeps for it, whose updates may be deferred: it
            holds their rates (ops/parameters/deferred_updates.h).
    """

    kind: Kind
    changes: bool
    rates_of: int = 0

    @property
    def code(self) -> int:
        """Return what a store keeps of `changes` and `rates_of`."""
        return 1 + self.rates_of if self.changes else 0

    @property
    def size_bytes(self) -> int:
        """Return how many bytes its elements have."""
        return math.prod(self.kind.shape) * np.dtype(self.kind.dtype).itemsize


@dataclass(frozen=True)
class StoreStatistics:
    """What a store has done since it was opened.

    Attributes:
        read_bytes, written_bytes: from and to the file.
        read_ahead_bytes: of pages that were in memory, or on their way, when the step wanted them.
        commits: since the store was made.
        file_bytes: of the file.
        buffer_bytes: of memory that pages pass through.
        is_direct: 1 where pages go past the page cache.
    """

    read_bytes: int
    read_ahead_bytes: int
    written_bytes: int
    commits: int
    file_bytes: int
    buffer_bytes: int
    is_direct: int


class _Statistics(ctypes.Structure):
    """`ParameterStatistics` of ops/parameters/parameter_store.h."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in StoreStatistics.__dataclass_fields__)


def is_of_store(path: Path) -> bool:
    """Return whether a path is of a file that a store has in its directory."""
    return path.name in (_FILE, f"{_FILE}.new", "lock")


def has_store(directory: str | os.PathLike[str]) -> bool:
    """Return whether there is a store in a directory."""
    return os.path.lexists(Path(directory, _FILE))


class StoreFile:
    """An open store. A tensor is read and written in pieces, or whole into an array of the caller's."""

    def __init__(self, directory: Path, number: int) -> None:
        """Take over a store that is open; `make_store` and `open_store` are how to get one.

        Raises:
            InputError: if it does not say what is in it.
        """
        self.directory = directory
        self._number = number
        self.close = weakref.finalize(self, _called, "poet_store_close", number)
        """Let others open it; what was written since the last commit is lost. It is called at the latest by the end."""
        about = _parsed(self._text("poet_store_description"), directory)
        self.about: Mapping[str, Any] = about["about"]
        """What was said when it was made."""
        self.tensors: dict[str, Stored] = {}
        """Tensors by name, in the order of the file."""
        for name, dtype, shape, code in about["tensors"]:
            self.tensors[name] = Stored(Kind(dtype, tuple(shape)), code > 0, max(0, code - 1))
        self._places = {name: place for place, name in enumerate(self.tensors)}

    def committed(self) -> dict[str, Any]:
        """Return what was said at the last commit."""
        return _parsed(self._text("poet_store_text"), self.directory)

    def handle(self, name: str) -> int:
        """Return what nodes of a graph are given to name a tensor."""
        return int(operator_library().poet_store_handle(self._number, self._places[name]))

    def read_into(self, name: str, array: Array) -> None:
        """Read a tensor into a contiguous array of its kind.

        Raises:
            InputError: if it cannot be read, or is damaged.
        """
        stored = self.tensors[name]
        assert stored.kind == (array.dtype.name, array.shape)
        assert array.flags.c_contiguous
        self._call("poet_store_read", self._places[name], 0, array.ctypes.data, array.nbytes)

    def pieces(self, name: str) -> Iterator[memoryview]:
        """Yield a tensor's bytes, page by page; each piece lasts until the next one.

        Raises:
            InputError: if they cannot be read, or are damaged.
        """
        size_bytes = self.tensors[name].size_bytes
        room = np.empty(min(PAGE_BYTES, size_bytes), np.uint8)
        for start in range(0, size_bytes, PAGE_BYTES):
            piece = room[: min(PAGE_BYTES, size_bytes - start)]
            self._call("poet_store_read", self._places[name], start, piece.ctypes.data, piece.nbytes)
            yield flat(piece)

    def write(self, name: str, array: Array) -> None:
        """Write a whole tensor from a contiguous array of its kind.

        Raises:
            InputError: if it cannot be written.
        """
        assert self.tensors[name].kind == (array.dtype.name, array.shape)
        self.write_piece(name, 0, flat(np.ascontiguousarray(array)))

    def write_piece(self, name: str, start: int, data: bytes | bytearray | memoryview) -> None:
        """Write some of a tensor's bytes; pieces of whole pages are written at once.

        Raises:
            InputError: if they cannot be written.
        """
        piece = np.frombuffer(data, np.uint8)
        self._call("poet_store_write", self._places[name], start, piece.ctypes.data, piece.nbytes)

    def update(self, name: str, tensors: int, gradient: str, rates: Array) -> None:
        """Update a parameter and the tensors behind it, page by page, with a gradient that is in the store, too.

        Args:
            name: of the parameter.
            tensors: that change: the parameter and what its optimizer keeps for it.
            gradient: name of its gradient.
            rates: of the operator that updates it, as floats.

        Raises:
            InputError: if something cannot be read or written; a part may be updated then.
        """
        first = 0
        for piece in self.pieces(gradient):
            part = np.frombuffer(piece, np.float32)
            place, rates_at = self._places[name], rates.ctypes.data
            self._call("poet_store_update", place, tensors, part.ctypes.data, first, part.size, rates_at)
            first += part.size

    def values(self) -> Values:
        """Return the tensors by name, each read when it is asked for."""
        kinds = {name: stored.kind for name, stored in self.tensors.items()}
        return Values(self.directory, kinds, self.read_into, self.pieces)

    def begin_step(self) -> None:
        """Read ahead, from now on, what was read since the last call, in the same order, where that saves time.

        Raises:
            InputError: if the store failed earlier.
        """
        self._call("poet_store_begin_step")

    def commit(self, said: Mapping[str, object]) -> None:
        """Make what was written since the last commit last, or nothing of it.

        Args:
            said: what else is to be kept, as values that JSON knows.

        Raises:
            InputError: if it fails; the store then opens at this commit or the last one, and takes no more writes.
        """
        text = _to_text(said)
        self._call("poet_store_commit", text, len(text))

    def verify(self) -> None:
        """Read all of it.

        Raises:
            InputError: if something is damaged.
        """
        self._call("poet_store_verify")

    def statistics(self) -> StoreStatistics:
        """Return what it has done since it was opened."""
        values = _Statistics()
        self._call("poet_store_statistics", ctypes.byref(values))
        return StoreStatistics(**{name: int(getattr(values, name)) for name in StoreStatistics.__dataclass_fields__})

    def _text(self, function: str) -> bytes:
        size_bytes = self._call(function, None, 0)
        room = ctypes.create_string_buffer(size_bytes)
        self._call(function, room, size_bytes)
        return room.raw

    def _call(self, function: str, *arguments: object) -> int:
        try:
            return _called(function, self._number, *arguments)
        except InputError as error:
            raise InputError(self.named(str(error))) from error.__cause__

    def named(self, said: str) -> str:
        """Return what the library says of a store's tensors, which have numbers there, with their names."""
        names = list(self.tensors)
        return re.sub(r"ensor (\d+) of the store", lambda found: f"ensor '{names[int(found[1])]}' of the store", said)


def make_store(
    directory: str | os.PathLike[str],
    tensors: Mapping[str, Stored],
    about: Mapping[str, object],
    first: Mapping[str, object],
    *,
    access: str = "auto",
) -> StoreFile:
    """Make a store of zeros, which nobody else sees before its first commit.

    Args:
        directory: where it is to be; it is made if it is not there.
        tensors: by name.
        about: what is always true of it.
        first: what will be said at its first commit: later ones may be twice as long.
        access: one of `ACCESS`.

    Raises:
        InputError: if there is one already, it is in use, the disk has no room for it, or it cannot be written.
    """
    path = Path(directory)
    make_folder(path, "directory of the store")
    listed = [[name, stored.kind.dtype, list(stored.kind.shape), stored.code] for name, stored in tensors.items()]
    text = _to_text({"about": dict(about), "tensors": listed})
    count = len(tensors)
    sizes = (ctypes.c_uint64 * count)(*(stored.size_bytes for stored in tensors.values()))
    changes = (ctypes.c_uint8 * count)(*(stored.code for stored in tensors.values()))
    room = 2 * len(_to_text(first)) + PAGE_BYTES // 32
    number = _called(
        "poet_store_make", os.fsencode(path), sizes, changes, count, text, len(text), room, ACCESS.index(access)
    )
    return StoreFile(path, number)


def open_store(directory: str | os.PathLike[str], *, access: str = "auto") -> StoreFile:
    """Open the store in a directory at its last commit.

    Raises:
        InputError: if there is none, it is in use, or damaged.
    """
    return StoreFile(Path(directory), _called("poet_store_open", os.fsencode(directory), ACCESS.index(access)))


def _called(function: str, *arguments: object) -> int:
    """Call a function of the library, and return what it returns.

    Raises:
        InputError: with what the library says is wrong.
    """
    library = operator_library()
    error = ctypes.create_string_buffer(_ERROR_BYTES)
    found = int(getattr(library, function)(*arguments, error))
    if found < 0:
        said = error.value.decode(errors="replace")
        raise InputError(f"{said[:1].upper()}{said[1:]}.")
    return found


def _to_text(values: Mapping[str, object]) -> bytes:
    said = {"store_format": _FORMAT, **values}
    return json.dumps(said, separators=(",", ":"), allow_nan=False, default=float).encode()


def _parsed(text: bytes, directory: Path) -> dict[str, Any]:
    values = json.loads(text)  # its checksum was right: it is what was written
    if values.pop("store_format", None) != _FORMAT:
        raise InputError(f"The store in {directory} is in another format: it was made by another version of poet-onnx.")
    assert isinstance(values, dict)
    return values
