#!/usr/bin/env python3
"""Trains a rewritten model for torch_architectures.py, in the interpreter of the runtime that is to do it.

PYTHONPATH=scripts python scripts/benchmarks/lowering/architecture_worker.py FOLDER LEARNING_RATE
FOLDER holds stock.onnx, checkpoint and batches.npz, with arrays named <step>:<input>. Writes gradients-<step>.npz,
the gradients of each batch by parameter from the first weights, and prints the losses of SGD's steps as a JSON list.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from poet_onnx import SGD, TrainingSession


def train(folder: Path, learning_rate: float) -> list[float]:
    """Write the gradients of all batches from the first weights, and return the losses of training on them."""
    batches: dict[str, dict[str, np.ndarray]] = {}
    with np.load(folder / "batches.npz") as arrays:
        for key in arrays.files:
            step, _, name = key.partition(":")
            batches.setdefault(step, {})[name] = arrays[key]
    files = folder / "stock.onnx", folder / "checkpoint"
    standing = TrainingSession(*files, optimizer=SGD(0.0), keep_gradients=True, page_dir=folder)
    for step, batch in batches.items():
        standing.step(batch)
        np.savez(folder / f"gradients-{step}.npz", **standing.gradients)
    del standing
    session = TrainingSession(*files, optimizer=SGD(learning_rate), page_dir=folder)
    return [session.step(batch) for batch in batches.values()]


if __name__ == "__main__":
    print(json.dumps(train(Path(sys.argv[1]), float(sys.argv[2]))))
