"""Runs a method in its own process and stops it when it does not stop itself."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmark.result import Effort, Size, Solved
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem

SCRIPTS = Path(__file__).resolve().parent.parent

GRACE_SECONDS = 180.0
"""How long a method may overrun its limit, building its model included, before it is stopped."""


def environment() -> dict[str, str]:
    """Return the environment in which a child process finds this package."""
    paths = [str(SCRIPTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def run(method: str, problem: ScheduleProblem, limits: Limits, order: tuple[str, ...], effort: Effort) -> Solved:
    """Return what a method finds; one that fails or has to be stopped gets a result that says so."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "problem"), Path(folder, "solved")
        source.write_bytes(pickle.dumps((problem, limits, order, effort)))
        command = [sys.executable, "-m", "benchmark.worker", method, str(source), str(target)]
        seconds = effort.time_limit_seconds + GRACE_SECONDS
        try:
            done = subprocess.run(
                command,
                env=environment(),
                timeout=seconds,
                capture_output=True,
                text=True,
                check=False,
                start_new_session=True,  # Ctrl-C is for the parent; it kills the child on its way out
            )
        except subprocess.TimeoutExpired:
            return Solved("stopped", None, 0.0, Size(0, 0), 0.0, seconds, (), f"did not stop after {seconds:.0f} s")
        if not target.exists():
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            return Solved("failed", None, 0.0, Size(0, 0), 0.0, 0.0, (), last)
        solved: Solved = pickle.loads(target.read_bytes())
        return solved
