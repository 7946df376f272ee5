#!/usr/bin/env python3
"""Trains a rewritten model for scripts/torch_architectures.py, in the interpreter of the runtime that is to do it.

python scripts/architecture_worker.py FOLDER LEARNING_RATE
FOLDER holds stock.onnx, checkpoint and batches.npz, with arrays named <step>:<input>. Writes gradients.npz, the
gradients of the first step by parameter, and prints the losses of all steps of SGD as a JSON list.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from poet_onnx import SGD, TrainingSession


def train(folder: Path, learning_rate: float) -> list[float]:
    """Write the gradients of the first step and return the losses of all."""
    batches: dict[str, dict[str, np.ndarray]] = {}
    with np.load(folder / "batches.npz") as arrays:
        for key in arrays.files:
            step, _, name = key.partition(":")
            batches.setdefault(step, {})[name] = arrays[key]

    def session(*, keep_gradients: bool) -> TrainingSession:
        return TrainingSession(
            folder / "stock.onnx",
            folder / "checkpoint",
            optimizer=SGD(learning_rate),
            keep_gradients=keep_gradients,
            page_dir=folder,
        )

    first = session(keep_gradients=True)
    first.step(next(iter(batches.values())))
    np.savez(folder / "gradients.npz", **first.gradients)
    training = session(keep_gradients=False)
    return [training.step(batch) for batch in batches.values()]


if __name__ == "__main__":
    print(json.dumps(train(Path(sys.argv[1]), float(sys.argv[2]))))
