"""Code that the page cache keeps in large folios, as installers leave it: importing takes no more memory for that."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from stock_environment import stock_python

IMPORT_BYTES = 42_600_000
"""What importing takes at most, as plans count it; 52 MB were measured with files that were written in one go."""

FOLDER = "import importlib.util as u; print(u.find_spec('onnxruntime').submodule_search_locations[0])"
IMPORT = """
from poet_onnx.runtime.installed import import_onnxruntime
from poet_onnx.training.trial import status_bytes
print(import_onnxruntime().__file__, status_bytes("VmHWM"))
"""


def run(python: str, statements: str, **environment: str) -> list[str]:
    command = [python, "-c", statements]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_importing_a_runtime_that_was_just_written_takes_no_more(tmp_path: Path) -> None:
    python = stock_python()
    (folder,) = run(python, FOLDER)
    copy = tmp_path / "onnxruntime"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("*.so*", "transformers", "quantization", "tools"))
    for library in Path(folder, "capi").glob("*.so*"):
        (copy / "capi" / library.name).write_bytes(library.read_bytes())
    for _ in range(2):
        imported, peak_bytes = run(python, IMPORT, PYTHONPATH=str(tmp_path))
        assert Path(imported).is_relative_to(tmp_path)
        assert int(peak_bytes) <= IMPORT_BYTES


def test_only_what_importing_loads_is_looked_at(tmp_path: Path) -> None:
    """The training runtime brings 811 MB for CUDA, which would take their time and their address space."""
    capi = tmp_path / "onnxruntime" / "capi"
    capi.mkdir(parents=True)
    (tmp_path / "onnxruntime" / "__init__.py").touch()
    for name in ("libonnxruntime.so.1.31.1", "libonnxruntime_providers_cuda.so", "onnxruntime_pybind11_state.so"):
        (capi / name).write_bytes(b"code")
    names = "from poet_onnx.runtime import installed; print(*(file.name for file in installed._libraries()))"
    found = run(sys.executable, names, PYTHONPATH=str(tmp_path))
    assert sorted(found) == ["libonnxruntime.so.1.31.1", "onnxruntime_pybind11_state.so"]
