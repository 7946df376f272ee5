"""Builds of the operators' sources that only tests need, kept in the build folder and brought up to date by ninja."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sysconfig
from pathlib import Path

from folders import ROOT

CONFIGURE_SECONDS, BUILD_SECONDS = 120, 900


class BuildFailedError(Exception):
    """The sources could not be built; `str(error)` is what the build printed."""


def tool(name: str) -> str:
    """Return a program of this Python environment, or else of the PATH."""
    ours = Path(sysconfig.get_path("scripts"), name)
    found = str(ours) if ours.exists() else shutil.which(name)
    assert found is not None, f"{name} is missing: pip install poet-onnx[dev]"
    return found


def build_ops(name: str, target: str, *options: str) -> Path:
    """Build a target of ops/CMakeLists.txt and return the folder that holds it; what is up to date is not built again.

    Args:
        name: of the build; tests that name the same one and give the same options share it.
        target: of the build.
        options: for cmake, such as "-DPOET_DRIVER=ON".

    Raises:
        BuildFailedError: a compiler or linker failed.
    """
    folder = ROOT / "build" / "tests" / name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed: another process of pytest may want the same
        configure = [tool("cmake"), "-S", str(ROOT / "ops"), "-B", str(folder), "-G", "Ninja"]
        configure += [f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}", *options]
        _run(configure, CONFIGURE_SECONDS)
        _run([tool("cmake"), "--build", str(folder), "--target", target], BUILD_SECONDS)
    return folder


def _run(command: list[str], timeout_seconds: int) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_seconds, check=False)
    if done.returncode != 0:
        raise BuildFailedError(f"{done.stdout}\n{done.stderr}")


def faulty_library() -> Path:
    """Return the folder of the operator library with the hooks that make its calls fail (ops/faults)."""
    return build_ops("faults", "poet_ops", "-DPOET_FAULT_INJECTION=ON", "-DCMAKE_BUILD_TYPE=Release")


def sanitized(target: str, sanitizers: str = "address,undefined") -> Path:
    """Return the folder of a target built with sanitizers: `poet_ops` or `poet_ops_driver`."""
    name = f"sanitized-{sanitizers.replace(',', '-')}"
    return build_ops(name, target, "-DPOET_DRIVER=ON", f"-DPOET_SANITIZE={sanitizers}", "-DCMAKE_BUILD_TYPE=None")
