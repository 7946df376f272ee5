"""How much memory this process has, how much more it may take, and whether others wait for memory.

Sources: proc(5); the kernel's Documentation/accounting/psi.rst and admin-guide/cgroup-v2.rst.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

from poet_onnx.runtime.library import operator_library

_LONGEST = 4352
_ROOT = Path("/")
_MOUNTS = ("sys/fs/cgroup", "sys/fs/cgroup/unified")
"""Of control groups, version 2: the second where those of version 1 are mounted, too."""


@dataclass(frozen=True)
class MemoryLeft:
    """How much more memory a process may take.

    Attributes:
        size_bytes: before the kernel stops it, or takes memory back; below 0 how much it has too much by now.
        limit: what sets that, in words.
    """

    size_bytes: int
    limit: str


def memory_left(root: Path = _ROOT) -> MemoryLeft:
    """Return what the system, control groups and limits of resources leave this process.

    Args:
        root: of the file system, which a test may have recorded; limits of resources count for the real one alone.

    Raises:
        InputError: the operator library was not built with the package.
    """
    limit = ctypes.create_string_buffer(_LONGEST)
    recorded = b"" if root == _ROOT else os.fsencode(root)
    size_bytes = int(operator_library().poet_memory_left(limit, _LONGEST, recorded))
    return MemoryLeft(size_bytes, limit.value.decode(errors="replace"))


def resident_bytes(root: Path = _ROOT) -> int:
    """Return what this process has in memory; 0 where that cannot be told.

    Args:
        root: of the file system, which a test may have recorded.
    """
    return _status_bytes(root, "VmRSS")


def anonymous_bytes(root: Path = _ROOT) -> int:
    """Return what this process has in memory besides pages of files; 0 where that cannot be told.

    Args:
        root: of the file system, which a test may have recorded.
    """
    return _status_bytes(root, "RssAnon")


def memory_pressure(root: Path = _ROOT) -> float:
    """Return the largest share of the last ten seconds in which a task waited for memory, of the system and the groups.

    It is 0 where the kernel does not tell, as without CONFIG_PSI.

    Args:
        root: of the file system, which a test may have recorded.
    """
    found = [_waiting(root / "proc/pressure/memory")]
    for line in _lines(root / "proc/self/cgroup"):
        number, _, path = line.partition("::")  # version 2 alone has an empty list of controllers
        group = Path(path.strip().lstrip("/"))
        if number == "0":
            for mount in _MOUNTS:
                found += [_waiting(root / mount / each / "memory.pressure") for each in (group, *group.parents)]
    return max(found)


def _status_bytes(root: Path, key: str) -> int:
    for line in _lines(root / "proc/self/status"):
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) << 10
    return 0


def _waiting(path: Path) -> float:
    """Return the share of a line such as "some avg10=1.53 avg60=0.87 avg300=0.50 total=58761459"."""
    for line in _lines(path):
        kind, *figures = line.split()
        if kind == "some":
            shares = dict(figure.partition("=")[::2] for figure in figures)
            return float(shares.get("avg10", "0")) / 100
    return 0.0


def _lines(path: Path) -> list[str]:
    try:
        # Names of groups may have any bytes.
        return path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []
