"""A file of which one bit changes while it is read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest


class ChangingFile:
    """A file that is read by `os.preadv`.

    Attributes:
        reads: how often the last call read.
    """

    def __init__(self, path: Path) -> None:
        """Remember the file as it is."""
        self._path, self._whole, self.reads = path, path.read_bytes(), 0

    def restore(self) -> None:
        """Write it as it was."""
        self._path.write_bytes(self._whole)

    def during(self, call: Callable[[], object], damaged: int = -1) -> None:
        """Call, and let a bit in the middle of what is read change just before the read of that number."""
        read = os.preadv
        self.reads = 0

        def preadv(descriptor: int, rooms: list[memoryview], start: int) -> int:
            if self.reads == damaged:
                place = start + len(rooms[0]) // 2
                changed = bytes([self._whole[place] ^ 1])
                self._path.write_bytes(self._whole[:place] + changed + self._whole[place + 1 :])
            self.reads += 1
            return read(descriptor, rooms, start)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(os, "preadv", preadv)
            call()
