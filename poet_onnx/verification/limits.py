"""A bound on the memory of another process: a memory cgroup of its own."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

_HIERARCHY = Path("/sys/fs/cgroup")
_BURIALS = 50
"""Times that a group is tried to be removed: what the kernel killed in it leaves it a moment later."""


@contextlib.contextmanager
def memory_cgroup(limit_bytes: int) -> Iterator[Path]:
    """Make a memory cgroup, of version 1 or 2, with a limit and no swap; it is gone afterwards.

    A process is in it once its number is written to `cgroup.procs` there.

    Raises:
        OSError: there is none, or this process may not make one.
    """
    first = _HIERARCHY / "memory"
    parent = first if first.is_dir() else _HIERARCHY
    group = parent / f"poet-{os.getpid()}"
    group.mkdir()
    try:
        files = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes") if parent == first else ("memory.max",)
        (group / files[0]).write_text(str(limit_bytes))
        for name in (*files[1:], "memory.swap.max"):
            with contextlib.suppress(OSError):  # without swap there is nothing to limit
                if (group / name).exists():
                    (group / name).write_text(str(limit_bytes) if name in files else "0")
        yield group
    finally:
        for _ in range(_BURIALS):
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.1)


def can_make_cgroup() -> bool:
    """Return whether this process may make a memory cgroup."""
    try:
        with memory_cgroup(1 << 30):
            return True
    except OSError:
        return False
