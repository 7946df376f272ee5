"""Messages of protobuf, read where they lie and written piece by piece, without a parser of ONNX.

A message is a sequence of fields, each a key (number of the field times 8, plus how it is written) and its content; a
message within it is its length in bytes and then its fields (https://protobuf.dev, "Encoding").
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias, overload

from poet_onnx.errors import InputError
from poet_onnx.files.held_file import HeldFile

VARINT, EIGHT_BYTES, MESSAGE, FOUR_BYTES = 0, 1, 2, 5
"""How a field's content is written: a number, so many bytes, or a length and bytes (messages and texts)."""

_FIXED_BYTES = {EIGHT_BYTES: 8, FOUR_BYTES: 4}
_MOST_VARINT_BYTES = 10
_WINDOW_BYTES = 2**16
_CHUNK_BYTES = 2**18


class FileBytes:
    """The bytes of an open file: what is looked at is read, a window at a time, and not kept."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open it.

        Raises:
            OSError: if it cannot be read.
        """
        self._file = HeldFile(path)
        self._size_bytes = os.fstat(self._file.descriptor).st_size
        self._start, self._window = 0, b""
        self._added = bytearray()

    def add(self, data: bytes) -> int:
        """Let bytes stand behind those of the file, which do not get longer by that; return where they begin."""
        self._added += data
        return self._size_bytes + len(self._added) - len(data)

    def __len__(self) -> int:
        """Return the size of the file when it was opened."""
        return self._size_bytes

    @overload
    def __getitem__(self, place: int) -> int: ...

    @overload
    def __getitem__(self, place: slice) -> bytes: ...

    def __getitem__(self, place: int | slice) -> int | bytes:
        """Return a byte, or a part.

        Raises:
            InputError: if the file became shorter.
        """
        if isinstance(place, slice):
            start, end, _ = place.indices(self._size_bytes + len(self._added))
            return self._read(start, max(start, end))
        if not 0 <= place - self._start < len(self._window):
            whole = self._size_bytes if place < self._size_bytes else self._size_bytes + len(self._added)
            self._window = self._read(place, min(place + _WINDOW_BYTES, whole))
            self._start = place
        return self._window[place - self._start]

    def fill_parts(self, room: memoryview, starts: range) -> None:
        """Fill memory as `HeldFile.fill_parts` does.

        Raises:
            InputError: if the file became shorter.
        """
        self._file.fill_parts(room, starts)

    def chunks(self, start: int, end: int) -> Iterator[memoryview]:
        """Yield a part in pieces, each of which is gone when the next one comes.

        Raises:
            InputError: if the file became shorter.
        """
        if start >= self._size_bytes:
            return in_chunks(memoryview(self._read(start, end)))
        return self._file.chunks(start, end - start)

    def _read(self, start: int, end: int) -> bytes:
        if start >= self._size_bytes:
            return bytes(self._added[start - self._size_bytes : end - self._size_bytes])
        if self._start <= start and end <= self._start + len(self._window):
            return self._window[start - self._start : end - self._start]
        data = bytearray(end - start)
        self._file.fill(memoryview(data), start)
        return bytes(data)


Bytes: TypeAlias = "bytes | FileBytes"
Chunk: TypeAlias = "bytes | memoryview"


class Field(NamedTuple):
    """A field of a message: its number and form, where it begins, and where its content begins and ends."""

    number: int
    form: int
    begin: int
    content: int
    end: int


class Piece(NamedTuple):
    """A part of what is written.

    Attributes:
        size_bytes: of it.
        chunks: yields its bytes, each time anew.
    """

    size_bytes: int
    chunks: Callable[[], Iterable[Chunk]]


def whole(message: Bytes) -> Field:
    """Return bytes as a message."""
    return Field(0, MESSAGE, 0, 0, len(message))


def fields(data: Bytes, message: Field) -> Iterator[Field]:
    """Yield the fields of a message.

    Raises:
        InputError: if it is none.
    """
    place = message.content
    while place < message.end:
        begin = place
        key, place = _varint(data, place, message.end)
        key %= 2**32  # parsers of protobuf drop what is beyond
        form, content = key & 7, place
        if form == VARINT:
            _, place = _varint(data, place, message.end)
        elif form == MESSAGE:
            size, content = _varint(data, place, message.end)
            place = content + size
        elif form in _FIXED_BYTES:
            place += _FIXED_BYTES[form]
        else:
            raise no_model()
        if place > message.end:
            raise no_model()
        yield Field(key >> 3, form, begin, content, place)


def texts(data: Bytes, message: Field, number: int) -> list[str]:
    """Return the fields of a number in a message, as text."""
    return [text.decode("utf-8", errors="replace") for text in contents(data, message, number)]


def contents(data: Bytes, message: Field, number: int) -> list[bytes]:
    """Return the fields of a number in a message, as they are."""
    return [content(data, field) for field in fields(data, message) if field.number == number]


def content(data: Bytes, field: Field) -> bytes:
    """Return what is in a field."""
    return bytes(data[field.content : field.end])


def text(data: Bytes, field: Field) -> str:
    """Return what is in a field, as text."""
    return content(data, field).decode("utf-8", errors="replace")


def numbers(data: Bytes, field: Field) -> list[int]:
    """Return a number, or several that are packed into one field."""
    found, place = [], field.content
    while place < field.end:
        number, place = _varint(data, place, field.end)
        found.append(number)
    return found


def last_number(data: Bytes, found: Iterable[Field], default: int = 0) -> int:
    """Return the number in the last of some fields, which is what counts."""
    number = default
    for field in found:
        number = (numbers(data, field) or [number])[-1]
    return number


def no_model() -> InputError:
    """Return what to raise where bytes are no message."""
    return InputError("The model is damaged: it is no protobuf message; write it again.")


def copied(data: Bytes, begin: int, end: int) -> Piece:
    """Return a part of bytes, to be written as it is."""

    def chunks() -> Iterator[Chunk]:
        if isinstance(data, FileBytes):
            yield from data.chunks(begin, end)
        else:
            yield from in_chunks(memoryview(data)[begin:end])

    return Piece(end - begin, chunks)


def in_chunks(data: memoryview) -> Iterator[memoryview]:
    """Yield bytes in pieces that are quick to handle, and copied nowhere."""
    for start in range(0, len(data), _CHUNK_BYTES):
        yield data[start : start + _CHUNK_BYTES]


def written(field_bytes: bytes) -> Piece:
    """Return bytes that are known, to be written."""
    return Piece(len(field_bytes), lambda: (field_bytes,))


def number_field(number: int, value: int) -> bytes:
    """Return a field with a number of at least 0."""
    return _encoded(number << 3 | VARINT) + _encoded(value)


def text_field(number: int, value: str | bytes) -> bytes:
    """Return a field with a text, or with a message that is encoded already."""
    data = value.encode() if isinstance(value, str) else value
    return _encoded(number << 3 | MESSAGE) + _encoded(len(data)) + data


def message_field(number: int, pieces: Sequence[Piece]) -> list[Piece]:
    """Return a field with a message of pieces."""
    size_bytes = sum(piece.size_bytes for piece in pieces)
    return [written(_encoded(number << 3 | MESSAGE) + _encoded(size_bytes)), *pieces]


def _encoded(number: int) -> bytes:
    """Return a number written seven bits a byte, lowest first."""
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _varint(data: Bytes, place: int, end: int) -> tuple[int, int]:
    """Return a number written seven bits a byte, lowest first, and where it ends."""
    number = 0
    for index in range(min(_MOST_VARINT_BYTES, end - place)):
        byte = data[place + index]
        number |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return number, place + index + 1
    raise no_model()
