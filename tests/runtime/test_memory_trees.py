"""What limits a process: recorded trees of control groups of both versions, nested, shared and without limits."""

from __future__ import annotations

from pathlib import Path

import pytest
from memory_trees import MIB, group, group_of_version_1, machine, pressure, write

from poet_onnx.runtime.memory_left import memory_left, memory_pressure

SCOPE = "user.slice/user-1000.slice/user@1000.service/app.slice/train.scope"


def left(root: Path) -> tuple[int, str]:
    """Return the MiB that are left, and below the tree what sets that."""
    found = memory_left(root)
    assert found.size_bytes % MIB == 0
    return found.size_bytes // MIB, found.limit.replace(f"the control group's limit in {root}/sys/fs/cgroup/", "")


def nested(root: Path) -> None:
    """Make a scope of systemd, with five groups above it of which none has a limit."""
    machine(root, groups=f"0::/{SCOPE}\n", available=900)
    parts = SCOPE.split("/")
    for depth in range(1, len(parts) + 1):
        group(root, "/".join(parts[:depth]), limit=None, used=300, cache=100)
    write(root / "sys/fs/cgroup/memory.stat", "anon 1\n")


def test_groups_without_a_limit_leave_what_the_system_has(tmp_path: Path) -> None:
    nested(tmp_path)
    assert left(tmp_path) == (900, "MemAvailable of /proc/meminfo")


def test_the_page_cache_of_a_group_counts_as_free(tmp_path: Path) -> None:
    nested(tmp_path)
    group(tmp_path, SCOPE, limit=512, used=300, cache=100)
    assert left(tmp_path) == (512 - 300 + 100, f"{SCOPE}/memory.max")


@pytest.mark.parametrize("depth", range(1, 6))
def test_a_limit_of_a_group_above_holds_for_those_below(tmp_path: Path, depth: int) -> None:
    nested(tmp_path)
    group(tmp_path, SCOPE, limit=512, used=100)
    above = "/".join(SCOPE.split("/")[:depth])
    group(tmp_path, above, limit=480, used=450, cache=40)
    assert left(tmp_path) == (70, f"{above}/memory.max")


def test_above_a_soft_limit_less_than_nothing_is_left(tmp_path: Path) -> None:
    nested(tmp_path)
    group(tmp_path, SCOPE, limit=512, high=256, used=300, cache=100)
    assert left(tmp_path) == (56, f"{SCOPE}/memory.high")
    group(tmp_path, SCOPE, limit=512, high=160, used=300, cache=100)
    assert left(tmp_path) == (-40, f"{SCOPE}/memory.high")
    group(tmp_path, "user.slice", limit=150, used=300, cache=100)
    assert left(tmp_path) == (-50, "user.slice/memory.max")


def test_a_container_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    machine(tmp_path, groups="0::/\n", available=3000)
    group(tmp_path, "", limit=256, used=50)
    assert left(tmp_path) == (206, "memory.max")
    write(tmp_path / "proc/self/cgroup", "0::/../beside.scope\n")  # a process that entered from outside
    assert left(tmp_path) == (206, "memory.max")


def test_a_group_that_is_gone_has_those_above_it(tmp_path: Path) -> None:
    machine(tmp_path, groups="0::/system.slice/train.service (deleted)\n", available=3000)
    group(tmp_path, "system.slice", limit=400, used=100)
    assert left(tmp_path) == (300, "system.slice/memory.max")


def test_files_that_are_empty_or_half_there_set_nothing(tmp_path: Path) -> None:
    machine(tmp_path, groups="0::/a\n", available=700)
    group(tmp_path, "a", limit=100, used=10)
    write(tmp_path / "sys/fs/cgroup/a/memory.current", "")
    assert left(tmp_path) == (700, "MemAvailable of /proc/meminfo")
    group(tmp_path, "a", limit=100, used=10)
    (tmp_path / "sys/fs/cgroup/a/memory.stat").unlink()
    assert left(tmp_path) == (90, "a/memory.max")
    write(tmp_path / "proc/self/cgroup", "nonsense\n1:name\n:\n")
    assert left(tmp_path) == (700, "MemAvailable of /proc/meminfo")


def test_version_1_counts_the_cache_of_all_groups_below(tmp_path: Path) -> None:
    groups = "9:name=systemd:/\n4:cpu,memory:/docker/0cefb1\n3:cpuset,memoryless:/x\n0::/\n"
    machine(tmp_path, groups=groups, available=3000, waiting=0.02)
    group_of_version_1(tmp_path, "", limit=None, used=900)
    group_of_version_1(tmp_path, "docker", limit=None, used=400)
    group_of_version_1(tmp_path, "docker/0cefb1", limit=512, used=300, cache=40)
    assert left(tmp_path) == (252, "memory/docker/0cefb1/memory.limit_in_bytes")
    group_of_version_1(tmp_path, "docker", limit=420, used=400)
    assert left(tmp_path) == (20, "memory/docker/memory.limit_in_bytes")
    write(tmp_path / "sys/fs/cgroup/unified/memory.pressure", pressure(0.3))  # version 2 beside it
    assert memory_pressure(tmp_path) == pytest.approx(0.3)


def test_pressure_is_the_largest_of_nested_groups(tmp_path: Path) -> None:
    nested(tmp_path)
    write(tmp_path / "proc/pressure/memory", pressure(0.01))
    assert memory_pressure(tmp_path) == pytest.approx(0.01)
    write(tmp_path / "sys/fs/cgroup/user.slice/user-1000.slice/memory.pressure", pressure(0.25))
    assert memory_pressure(tmp_path) == pytest.approx(0.25)
    write(tmp_path / f"sys/fs/cgroup/{SCOPE}/memory.pressure", pressure(0.0625))
    assert memory_pressure(tmp_path) == pytest.approx(0.25)
    write(tmp_path / "sys/fs/cgroup/user.slice/other.slice/memory.pressure", pressure(0.9))
    assert memory_pressure(tmp_path) == pytest.approx(0.25), "another branch"


def test_names_of_groups_have_any_bytes(tmp_path: Path) -> None:
    name = b"caf\xe9.slice".decode(errors="surrogateescape")
    machine(tmp_path, groups=f"0::/{name}\n", available=700)
    group(tmp_path, name, limit=100, used=25)
    write(tmp_path / "sys/fs/cgroup" / name / "memory.pressure", pressure(0.5))
    assert memory_left(tmp_path).size_bytes == 75 * MIB
    assert memory_pressure(tmp_path) == pytest.approx(0.5)
