"""How the page cache keeps files of code, which decides how much of one a process maps with each page that it uses."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from pathlib import Path

_PROBE_BYTES = 2 << 20
"""No folio of a file is larger on usual processors, so that each look finds another one."""
_PIECE_BYTES = 64 << 10
_FOLIO_BYTES = 128 << 10
"""Some 64 KiB around a fault are mapped anyway; folios above this size make an import some MB larger."""


def read_again_in_small_pieces(libraries: Iterable[Path]) -> None:
    """Read libraries anew that the page cache keeps in large folios, so that it keeps them in small ones.

    Installers write files in one go, and the page cache then keeps them in folios of up to 2 MiB. From Linux 6.18 on a
    fault maps a whole folio: 12 MB more for importing onnxruntime. Pages that another process has mapped stay.

    Args:
        libraries: files that are not empty, and that this process has not mapped yet.

    Raises:
        OSError: a file cannot be read.
    """
    for library in libraries:
        with library.open("rb", buffering=0) as file:
            if _mapped_bytes_of_fault(file.fileno()) > _FOLIO_BYTES:
                os.fsync(file.fileno())  # what is not on the disk yet cannot be dropped
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # no reading ahead, in larger folios
                piece = bytearray(_PIECE_BYTES)
                while file.readinto(piece):
                    pass


def _mapped_bytes_of_fault(file: int) -> float:
    """Return how many bytes of a file a fault takes into this process's memory, as the mean over the file."""
    sizes_bytes = []
    with mmap.mmap(file, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ) as mapping:
        for place in range(0, len(mapping), _PROBE_BYTES):
            before_bytes = _file_bytes()
            mapping[place]
            sizes_bytes.append(_file_bytes() - before_bytes)
            mapping.madvise(mmap.MADV_DONTNEED)  # this process's peak is to stay as it was, too
    return sum(sizes_bytes) / len(sizes_bytes)


def _file_bytes() -> int:
    """Return how many bytes of files are in this process's memory."""
    with Path("/proc/self/statm").open("rb") as statm:
        return int(statm.read().split()[2]) * mmap.PAGESIZE
