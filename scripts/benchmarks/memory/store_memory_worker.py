"""Train from a store or without one, and print what it took: `store_memory_worker.py MODEL FOLDER STEPS COMMIT WORDS`.

For store_memory.py and quantized_memory.py. The store is in the folder, with a commit every so many updates; 0: there
is none. Before VmHWM is read it imports nothing that a user's training need not.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any

import numpy as np

from poet_onnx import TrainingSession
from poet_onnx.training.trial import status_bytes

WORDS = 30_000
"""That all models know which read words, unless it is said."""

FIRST_STEPS = 2
"""Which bring pages into the page cache that were never written: both copies of each are there after them."""


def trained(model: str, folder: str, steps: str, commit_every: str, words: str = str(WORDS)) -> dict[str, Any]:
    """Train in this process, and return what it took and what came out."""
    values = model.replace(".onnx", ".safetensors")
    options: dict[str, Any] = {"store": folder, "commit_every": int(commit_every)} if int(commit_every) else {}
    session = TrainingSession(model, values, **options)
    generator, losses, seconds, wall_seconds = np.random.default_rng(0), [], list[float](), list[float]()
    for _ in range(int(steps)):
        batch = random_batch(session, generator, int(words))
        begun, used = time.perf_counter(), used_seconds()
        losses.append(session.step(batch))
        seconds.append(used_seconds() - used)
        wall_seconds.append(time.perf_counter() - begun)
    peak_bytes, moved = status_bytes("VmHWM"), session.store_statistics
    import hashlib

    digest, tensors = hashlib.sha256(repr(losses).encode()), 0
    for arrays in (session.parameters, session.moments):
        for name in sorted(arrays):
            digest.update(name.encode() + arrays[name].tobytes())
            tensors += 1
    return {
        "peak_mib": round(peak_bytes / 2**20, 1),
        "step_seconds": round(float(np.median(seconds[FIRST_STEPS:])), 3),
        "wall_seconds": round(float(np.median(wall_seconds[FIRST_STEPS:])), 3),
        "read_mib": 0 if moved is None else round(moved.read_bytes / int(steps) / 2**20),
        "written_mib": 0 if moved is None else round(moved.written_bytes / int(steps) / 2**20),
        "tensors": tensors,
        "digest": digest.hexdigest(),
    }


def random_batch(session: TrainingSession, generator: np.random.Generator, words: int = WORDS) -> dict[str, np.ndarray]:
    """Return random numbers for all that a batch fills; integers are 0 or 1, but for words."""
    batch = {}
    for name, dtype, shape in session.data_inputs:
        if dtype == np.float32:
            batch[name] = generator.standard_normal(shape, np.float32)
        else:
            batch[name] = generator.integers(0, words if name == "input_ids" else 2, shape).astype(dtype)
    return batch


def used_seconds() -> float:
    """Return the processor time of this process, its threads and the kernel's work for it included."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    print(json.dumps(trained(*sys.argv[1:])))
