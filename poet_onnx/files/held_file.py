"""A file that is read piece by piece into memory that is there already.

What is mapped into memory instead counts as the process's own for as long as it is mapped, and a mapped file that
becomes shorter ends the process.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterator

from poet_onnx.errors import InputError
from poet_onnx.files.regular import open_regular

_CHUNK_BYTES = 2**18


class HeldFile:
    """An open file; it is closed when nobody holds it any more."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open it.

        Raises:
            OSError: if it cannot be read, or is no regular file.
        """
        self.path = path
        file = open_regular(path)
        self.descriptor = file.fileno()
        """Descriptor of the open file."""
        self.close = weakref.finalize(self, file.close)
        """Close it now."""

    def fill(self, room: memoryview, start: int) -> None:
        """Read bytes.

        Args:
            room: gets them; as many as it has.
            start: where in the file they are.

        Raises:
            InputError: if they are not there.
        """
        done = 0
        while done < len(room):
            try:
                count = os.preadv(self.descriptor, [room[done:]], start + done)
            except OSError as error:
                raise InputError(f"{self.path} cannot be read: {error.strerror or error}.") from error
            if not count:
                raise InputError(f"{self.path} became shorter while it was read: put it back, and try again.")
            done += count

    def fill_parts(self, room: memoryview, starts: range) -> None:
        """Read parts of one size.

        Args:
            room: gets them, one behind the other; as many bytes as they have together.
            starts: where in the file each part is.

        Raises:
            InputError: if they are not there.
        """
        size_bytes, descriptor = len(room) // max(1, len(starts)), self.descriptor
        for place, start in enumerate(starts):
            part = room[place * size_bytes : (place + 1) * size_bytes]
            with contextlib.suppress(OSError):  # `fill` tries once more, and says what is wrong
                if os.preadv(descriptor, [part], start) == size_bytes:
                    continue
            self.fill(part, start)

    def chunks(self, start: int, size_bytes: int) -> Iterator[memoryview]:
        """Yield a part of the file in pieces, each of which is gone when the next one comes.

        Raises:
            InputError: if it is not there.
        """
        room = memoryview(bytearray(min(size_bytes, _CHUNK_BYTES)))
        for place in range(start, start + size_bytes, _CHUNK_BYTES):
            piece = room[: start + size_bytes - place]
            self.fill(piece, place)
            yield piece
