"""Train, evaluate, save, load, export and fit, with a step behind each, and print what it took.

    python store_curve_worker.py MODEL STORE ACCESS FOLDER STEPS

For store_curve.py. ACCESS to the store is `cached` or `direct`. Before VmHWM is read it imports nothing that a user's
training need not.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from store_memory_worker import FIRST_STEPS, random_batch, used_seconds

from poet_onnx import TrainingSession
from poet_onnx.training import stored
from poet_onnx.training.trial import status_bytes


def trained(model: str, store: str, access: str, folder: str, steps: str) -> dict[str, Any]:
    """Train in this process, and return what it took."""
    stored.make_store = functools.partial(stored.make_store, access=access)  # a session chooses by the free memory
    values, evaluation = model.replace(".onnx", ".safetensors"), model.replace(".onnx", ".eval.onnx")
    session = TrainingSession(model, values, eval_model=evaluation, store=store or None)
    generator, seconds, worked = np.random.default_rng(0), list[float](), list[float]()
    batch: dict[str, Any] = {}
    for _ in range(int(steps)):
        batch = random_batch(session, generator)
        begun, used, queued = time.perf_counter(), used_seconds(), queued_seconds()
        session.step(batch)
        seconds.append(time.perf_counter() - begun - (queued_seconds() - queued))
        worked.append(used_seconds() - used)
    checkpoint = Path(folder, "checkpoint.safetensors")
    for call in (
        functools.partial(session.evaluate, [batch]),
        functools.partial(session.save_checkpoint, checkpoint),
        functools.partial(session.load_checkpoint, checkpoint),
        functools.partial(session.export_inference_model, Path(folder, "trained.onnx")),
        functools.partial(session.fit, [batch], epochs=1),
    ):
        call()
        session.step(batch)  # what a call leaves in memory comes on top of a step
    moved = session.store_statistics
    return {
        "measured_mib": round(status_bytes("VmHWM") / 2**20, 1),
        "measured_seconds": f"{np.median(seconds[FIRST_STEPS:]):.4g}",
        "processor_seconds": f"{np.median(worked[FIRST_STEPS:]):.4g}",
        "stored_mib": 0 if moved is None else round(moved.file_bytes / 2**20, 1),
    }


def queued_seconds() -> float:
    """Return how long this thread could have run while others did (schedstats of the kernel); 0 where nobody says."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text(encoding="ascii").split()[1]) * 1e-9
    except OSError:
        return 0.0


if __name__ == "__main__":
    print(json.dumps(trained(*sys.argv[1:])))
