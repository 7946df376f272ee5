"""What the run time imports, by name, in processes of their own: numpy, onnxruntime and safetensors alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stock_environment import NEEDS_STOCK, STOCK_PYTHON

import poet_onnx

MOST_BYTES = 45 * 2**20
"""Resident memory that imports and session options may add to the interpreter's; 40 MiB were measured."""

MOST_OPENSSL_BYTES = 1 << 20
"""Of OpenSSL, which `numpy.random` imports; it is 3.6 MiB where its code is not released."""


PROGRAM = """
import json, sys

def resident():
    with open("/proc/self/status") as status:
        return next(1024 * int(line.split()[1]) for line in status if line.startswith("VmRSS"))

before, start = set(sys.modules), resident()
exec(sys.argv[1])
added = resident() - start
new = {name.split(".")[0] for name in sys.modules.keys() - before}
names = {name for name in new if not name.startswith(("_cython_", "cython_runtime"))} - set(sys.stdlib_module_names)
openssl, mapping = 0, ""
for line in open("/proc/self/smaps"):
    words = line.split()
    mapping = line if "-" in words[0] else mapping
    if words[0] == "Rss:" and ("libcrypto" in mapping or "libssl" in mapping):
        openssl += int(words[1]) << 10
print(json.dumps({"names": sorted(names), "added_bytes": added, "openssl_bytes": openssl}))
"""

TRAIN = """
import numpy as np
from poet_onnx import TrainingSession
session = TrainingSession(sys.argv[2], sys.argv[3], eval_model=sys.argv[5])
batch = {put.name: np.zeros([size if isinstance(size, int) else 1 for size in put.shape], put.dtype)
         for put in session.data_inputs}
session.step(batch)
session.save_checkpoint(sys.argv[4])
session.load_checkpoint(sys.argv[4])
TrainingSession(sys.argv[2], sys.argv[4]).step(batch)
"""


def run(python: str, statements: str, *arguments: object) -> dict[str, Any]:
    """Return what statements import in a fresh process, and the memory that takes."""
    command = [python, "-c", PROGRAM, statements, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_the_package_alone_imports_nothing() -> None:
    assert run(sys.executable, "import poet_onnx")["names"] == ["poet_onnx"]
    names = run(sys.executable, "from poet_onnx import InputError; import poet_onnx.cli")["names"]
    assert names == ["click", "poet_onnx"]


@pytest.mark.parametrize("name", ["TrainingSession", "AdamW", "library_path", "session_options", "count_allocations"])
def test_what_runs_on_the_board_imports_no_more_than_it_needs(name: str) -> None:
    assert set(run(sys.executable, f"from poet_onnx import {name}")["names"]) <= {"numpy", "poet_onnx", "safetensors"}


@NEEDS_STOCK
def test_session_options_import_onnxruntime_alone() -> None:
    given = "import poet_onnx; from poet_onnx import TrainingSession; poet_onnx.session_options()"
    found = run(STOCK_PYTHON, given)
    assert found["names"] == ["numpy", "onnxruntime", "poet_onnx", "safetensors"]
    assert found["added_bytes"] <= MOST_BYTES
    assert found["openssl_bytes"] <= MOST_OPENSSL_BYTES


@NEEDS_STOCK
@pytest.mark.parametrize("given", ["checkpoint", "checkpoint.safetensors"])
def test_training_imports_no_parser_of_onnx(model_path: Callable[..., Path], tmp_path: Path, given: str) -> None:
    path, rewritten = model_path("mlp-mse"), tmp_path / "model.onnx"
    poet_onnx.rewrite(path, device="host", target="stock").save(rewritten)
    parameters, beside = path.with_name("checkpoint"), path.with_name("eval_model.onnx")
    if given != "checkpoint":
        parameters = tmp_path / given
        run(STOCK_PYTHON, TRAIN, rewritten, path.with_name("checkpoint"), parameters, beside)
    saved = tmp_path / "saved.safetensors"
    found = run(STOCK_PYTHON, TRAIN, rewritten, parameters, saved, beside)
    assert found["names"] == ["numpy", "onnxruntime", "poet_onnx", "safetensors"]
