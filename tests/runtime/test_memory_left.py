"""What the kernel says of memory is read as it says it: files in the formats that its documentation shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from poet_onnx.runtime.memory_left import anonymous_bytes, memory_left, memory_pressure, resident_bytes
from poet_onnx.verification.limits import can_make_cgroup, memory_cgroup

PRESSURE = """some avg10={share:.2f} avg60=0.10 avg300=0.02 total=12345
full avg10=99.00 avg60=0.05 avg300=0.01 total=2345
"""
"""Documentation/accounting/psi.rst of the kernel."""


def tree(root: Path, files: dict[str, str]) -> Path:
    """Write files below a folder, and return it."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def test_pressure_is_that_of_the_system_or_of_a_group_above(tmp_path: Path) -> None:
    shares = {"proc/pressure/memory": 1.5, "sys/fs/cgroup/memory.pressure": 2.0}
    shares |= {
        "sys/fs/cgroup/app.slice/train.scope/memory.pressure": 31.25,
        "sys/fs/cgroup/other/memory.pressure": 80.0,
    }
    files = {name: PRESSURE.format(share=share) for name, share in shares.items()}
    root = tree(tmp_path, files | {"proc/self/cgroup": "0::/app.slice/train.scope\n"})
    assert memory_pressure(root) == pytest.approx(0.3125)
    tree(root, {"proc/self/cgroup": "9:memory:/app.slice/train.scope\n0::/\n"})
    assert memory_pressure(root) == pytest.approx(0.02)
    (root / "sys/fs/cgroup/memory.pressure").unlink()
    assert memory_pressure(root) == pytest.approx(0.015)


def test_without_what_the_kernel_tells_there_is_none(tmp_path: Path) -> None:
    assert memory_pressure(tmp_path) == 0.0
    assert resident_bytes(tmp_path) == 0
    tree(
        tmp_path, {"proc/self/status": "Name:\tpython\nVmHWM:\t 9000 kB\nVmRSS:\t    5124 kB\nRssAnon:\t    3100 kB\n"}
    )
    assert (resident_bytes(tmp_path), anonymous_bytes(tmp_path)) == (5124 << 10, 3100 << 10)


def test_there_is_memory_left_here() -> None:
    left = memory_left()
    assert left.size_bytes > 2**20
    assert left.limit
    assert resident_bytes() > anonymous_bytes() > 2**20


ASKS = "from poet_onnx.runtime.memory_left import memory_left; left = memory_left(); print(left.size_bytes, left.limit)"


@pytest.mark.skipif(not can_make_cgroup(), reason="this process may not make control groups")
def test_a_group_that_has_too_much_has_less_than_nothing_left() -> None:
    with memory_cgroup(1 << 30) as group:
        is_first = (group / "memory.limit_in_bytes").exists()
        soft = "memory.soft_limit_in_bytes" if is_first else "memory.high"
        for limit_bytes, is_below in ((512 << 20, False), (1 << 20, True)):
            (group / soft).write_text(str(limit_bytes))
            enter = f"open({str(group / 'cgroup.procs')!r}, 'w').write('0'); {ASKS}"
            said = subprocess.run([sys.executable, "-c", enter], check=True, capture_output=True, text=True).stdout
            size, _, limit = said.strip().partition(" ")
            assert (int(size) < 0) == is_below
            assert int(size) < limit_bytes
            assert soft in limit
