"""Runs of the fuzz targets beside this file; POET_FUZZ_SECONDS makes each of them longer."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from folders import SUPPORT
from ops_builds import sanitized, tool
from stock_environment import stock_python

pytestmark = pytest.mark.deep

SECONDS = int(os.environ.get("POET_FUZZ_SECONDS", "15"))
READERS = ["adapter", "checkpoint", "costs", "device", "evaluation", "metadata", "model", "parameters", "plan"]
LEAST_INPUTS = {"checkpoint": 40, "costs": 100, "plan": 100}
"""What must have been tried; these readers replay or plan a step each time, on a busy machine slowly. A session that
reads a checkpoint collects garbage behind it, which takes .15 s where torch is loaded, as it is here."""


@pytest.mark.parametrize("reader", READERS)
def test_readers_withstand_any_file(tmp_path: Path, reader: str) -> None:
    command = [sys.executable, str(SUPPORT / "fuzz_readers.py"), reader, str(tmp_path), f"-max_total_time={SECONDS}"]
    command += ["-seed=1", "-timeout=60", "-rss_limit_mb=4096", "-print_final_stats=1"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=SECONDS + 240, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    executed = re.search(r"number_of_executed_units: (\d+)", done.stderr)
    assert executed is not None
    assert int(executed[1]) > LEAST_INPUTS.get(reader, 1000)
    assert "no interesting inputs" not in done.stderr  # the readers' code was not watched


def runtime_library(name: str) -> str:
    """Return the path of one of the compiler's own libraries."""
    done = subprocess.run([tool("g++"), f"-print-file-name={name}"], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.mark.parametrize("python", ["training", "stock"])
def test_kernels_withstand_any_model(tmp_path: Path, python: str) -> None:
    interpreter = sys.executable if python == "training" else stock_python()
    # The stock onnxruntime now and then frees with another alignment than it has allocated with.
    checks = "detect_leaks=0:allocator_may_return_null=1:new_delete_type_mismatch=0"
    environment = {**os.environ, "ASAN_OPTIONS": checks}
    # Libraries that throw come before the interpreter, which does not: the sanitizer looks for them when it starts.
    environment["LD_PRELOAD"] = f"{runtime_library('libasan.so')} {runtime_library('libstdc++.so')}"
    command = [
        interpreter,
        "-W",
        "ignore",
        str(SUPPORT / "fuzz_kernels.py"),
        str(sanitized("poet_ops") / "libpoet_ops.so"),
        str(tmp_path),
    ]
    done = subprocess.run(
        [*command, str(SECONDS)], env=environment, capture_output=True, text=True, timeout=SECONDS + 240, check=False
    )
    seed = Path(tmp_path, "seed").read_text(encoding="utf-8").strip()
    assert done.returncode == 0, f"seed {seed}: {done.stderr[:4000]}"
    counts = re.search(r"models: (\d+), ran: (\d+)", done.stdout)
    assert counts is not None
    models, ran = int(counts[1]), int(counts[2])
    assert models > 50
    assert models / 10 < ran < models
