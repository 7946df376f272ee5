"""Train while the budget changes at random; JSON for `budget_changes.py`. It imports hardly more than a user's loop.

Between its steps it evaluates, saves, resumes and exports, as a user does. Arguments: the model, steps, changes.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from poet_onnx import TrainingSession

CALLS_EVERY = 10  # steps


def peak_bytes() -> int:
    """Return the most that this process had in memory since it was asked last."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    most = next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM:"))
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return most


def batch(session: TrainingSession, numbers: np.random.Generator) -> dict[str, Any]:
    """Return random numbers for a step; integers are 0 or 1, which every label and index can be."""
    found = {}
    for put in session.data_inputs:
        is_whole = put.dtype.kind in "iub"
        drawn = numbers.integers(0, 2, put.shape) if is_whole else numbers.standard_normal(put.shape, np.float32)
        found[put.name] = drawn.astype(put.dtype, copy=False)  # a batch takes no more than is counted for one
    return found


def call_all(session: TrainingSession, given: dict[str, Any], folder: Path) -> None:
    """Make every call beside the step; the state stays as it was."""
    session.evaluate([given])
    session.save_checkpoint(folder / "checkpoint.safetensors")
    session.load_checkpoint(folder / "checkpoint.safetensors")
    session.export_inference_model(folder / "trained.onnx")


def trained(model: Path, steps: int, changes: int, folder: Path) -> list[dict[str, Any]]:
    """Train, and return what each step took."""
    beside = (model.with_suffix(".safetensors"), model.with_name(f"{model.stem}.eval.onnx"))
    session = TrainingSession(model, beside[0], eval_model=beside[1], budget=2**50)
    numbers, chooser, found = np.random.default_rng(0), np.random.default_rng(1), []
    before = set(chooser.permutation(steps)[:changes].tolist())
    for step in range(steps):
        row: dict[str, Any] = {"change_seconds": None}
        if step in before:
            old = session.budget or 0
            others = [each for each in session.budgets if each != old]
            begin = time.perf_counter()
            wanted = session.use_budget(others[int(chooser.integers(len(others)))])
            row["change_seconds"] = time.perf_counter() - begin
            row["excess_bytes"] = peak_bytes() - max(old, wanted)
        given = batch(session, numbers)
        begin = time.perf_counter()
        loss = session.step(given)
        row |= {"loss": loss.hex(), "seconds": time.perf_counter() - begin}
        if step % CALLS_EVERY == 0:
            call_all(session, given, folder)
        found.append(row | {"budget": session.budget, "peak_bytes": peak_bytes()})
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(trained(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(folder))))
