"""The library without ONNX Runtime under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from ops_builds import sanitized

pytestmark = pytest.mark.deep

SCENARIOS = 32  # printed by the driver as "ok: ...", and those of FORKS where it forks
FORKS = 2


@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_driver_is_clean(tmp_path: Path, sanitizers: str) -> None:
    build, pages = sanitized("poet_ops_driver", sanitizers), tmp_path / "pages"
    pages.mkdir()
    command = [str(build / "poet_ops_driver"), str(pages)]
    if sanitizers == "thread":  # it does not support threads in the child of a fork
        command.append("nofork")
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=1", "TSAN_OPTIONS": "halt_on_error=1"}
    done = _run(command, environment)
    if "unexpected memory mapping" in done.stderr:  # older ThreadSanitizers need fewer random address bits
        done = _run(["setarch", os.uname().machine, "-R", *command], environment)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert done.stderr == ""
    assert done.stdout.count("ok: ") == SCENARIOS + FORKS * (sanitizers != "thread")
    assert list(pages.iterdir()) == []
    if sanitizers == "thread":
        return
    without = tmp_path / "without"
    without.mkdir()
    for name in ("libcrypto.so.3", "libcrypto.so.1.1"):  # found first, and no libraries
        (without / name).touch()
    done = _run([*command, "nocrypto"], {**environment, "LD_LIBRARY_PATH": str(without)})
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok: missing libcrypto is named\n", "")


def _run(command: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a driver; under ThreadSanitizer the faults of all calls of a store alone take five minutes."""
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800, check=False)
