"""The processor's caches: a node in a step finds little of what it reads there, and one that is repeated finds all."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from poet_onnx.profiler.single import SingleNode

_UNKNOWN_BYTES = 4 << 20
"""Where the kernel does not tell."""

_MOST_BYTES = 32 << 20
"""Of a buffer that is read to empty a cache: of a server's larger ones this process has a part."""

_SIZE = re.compile(r"(\d+)([KM])")


class Caches:
    """Empties the caches between runs, where a step would not fit there."""

    def __init__(self, buffer_bytes: int) -> None:
        """Take a buffer.

        Args:
            buffer_bytes: as large as the caches; 0 to leave them alone.
        """
        self._buffer = np.zeros(buffer_bytes // 4, np.float32)

    @classmethod
    def of_step(cls, singles: Iterable[SingleNode], system: Path = Path("/sys")) -> Caches:
        """Return the caches for the nodes of a step.

        Args:
            singles: the nodes.
            system: where sysfs is mounted.
        """
        tensors = {
            tensor.name: tensor.size_bytes
            for single in singles
            for name in (*single.node.inputs, *single.node.outputs)
            if (tensor := single.graph.tensors.get(name)) is not None
        }
        largest = largest_cache_bytes(system)
        return cls(min(largest, _MOST_BYTES) if sum(tensors.values()) > largest else 0)

    @property
    def size_bytes(self) -> int:
        """Bytes of the buffer; 0 where the caches are left alone."""
        return self._buffer.nbytes

    def empty(self) -> None:
        """Read and write the buffer, so that nothing else is in the caches."""
        self._buffer += 1.0


def largest_cache_bytes(system: Path = Path("/sys")) -> int:
    """Return the size of the largest cache of the first processor.

    Args:
        system: where sysfs is mounted.
    """
    found = [_UNKNOWN_BYTES]
    for path in (system / "devices/system/cpu/cpu0/cache").glob("index*/size"):
        match = _SIZE.fullmatch(path.read_text().strip())
        if match is not None:
            found.append(int(match[1]) << (10 if match[2] == "K" else 20))
    return max(found[1:] or found)
