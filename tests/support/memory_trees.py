"""Trees of files as the kernel shows memory, control groups and pressure in them.

Sources: proc(5); the kernel's Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst and accounting/psi.rst. The
root of version 2 has no limit and no use; a limit that nobody has set is "max" there, and in version 1 the largest
number of whole pages. Lines that nobody reads stand before those that somebody does, as they do in a kernel.
"""

from __future__ import annotations

from pathlib import Path

MIB = 1 << 20
UNLIMITED = 9223372036854771712
"""Of version 1, with pages of 4 KiB."""


def write(path: Path, text: str) -> None:
    """Write a file of the tree."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", errors="surrogateescape")


def pressure(share: float) -> str:
    """Return what a file of pressure says where tasks wait for such a share of ten seconds."""
    waited = f"avg10={100 * share:.2f} avg60=0.61 avg300=0.13 total=1291283"
    return f"some {waited}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"


def machine(root: Path, *, groups: str, available: int, resident: int = 0, waiting: float = 0.0) -> None:
    """Make what /proc says.

    Args:
        root: of the tree.
        groups: the text of /proc/self/cgroup.
        available: MiB that the system has.
        resident: MiB that the process has.
        waiting: share of time in which tasks of the system wait for memory.
    """
    meminfo = f"MemTotal:        3884240 kB\nMemFree:           41116 kB\nMemAvailable: {available << 10:9} kB\n"
    write(root / "proc/meminfo", meminfo + "Buffers:           64580 kB\nSwapTotal:        102396 kB\n")
    write(root / "proc/self/cgroup", groups)
    status = f"Name:\tpython3\nVmHWM:\t  900000 kB\nVmRSS:\t{resident << 10:8} kB\nRssAnon:\t{resident << 9:8} kB\n"
    write(root / "proc/self/status", status)
    write(root / "proc/pressure/memory", pressure(waiting))


def group(root: Path, path: str, *, limit: int | None, high: int | None = None, used: int, cache: int = 0) -> None:
    """Make a group of version 2, or change it.

    Args:
        root: of the tree.
        path: of the group below the mount.
        limit: MiB; None for "max".
        high: likewise.
        used: MiB, page cache included.
        cache: MiB of that in the page cache.
    """
    folder = root / "sys/fs/cgroup" / path
    for name, mebibytes in (("memory.max", limit), ("memory.high", high)):
        write(folder / name, f"{'max' if mebibytes is None else mebibytes * MIB}\n")
    write(folder / "memory.current", f"{used * MIB}\n")
    statistics = {
        "anon": used - cache,
        "file": cache,
        "kernel": 3,
        "file_mapped": cache // 2,
        "inactive_anon": 1,
        "active_anon": used - cache,
        "inactive_file": cache - cache // 4,
        "active_file": cache // 4,
        "slab_reclaimable": 1,
    }
    write(folder / "memory.stat", "".join(f"{name} {size * MIB}\n" for name, size in statistics.items()))
    write(folder / "memory.pressure", pressure(0.0))


def group_of_version_1(root: Path, path: str, *, limit: int | None, used: int, cache: int = 0) -> None:
    """Make a group of version 1, likewise."""
    folder = root / "sys/fs/cgroup/memory" / path
    write(folder / "memory.limit_in_bytes", f"{UNLIMITED if limit is None else limit * MIB}\n")
    write(folder / "memory.soft_limit_in_bytes", f"{UNLIMITED}\n")
    write(folder / "memory.usage_in_bytes", f"{used * MIB}\n")
    own = f"cache 0\nrss {MIB}\ninactive_file {7 * MIB}\nactive_file {7 * MIB}\n"  # without the groups below it
    of_all = f"total_cache {cache * MIB}\ntotal_inactive_file {cache * MIB}\ntotal_active_file 0\n"
    write(folder / "memory.stat", own + of_all)
