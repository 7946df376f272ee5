"""Training sessions and batches for the tests of training."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from poet_onnx import TrainingSession

Array = np.ndarray
CLASSES = 2


def batches(session: TrainingSession, *, seed: int = 0) -> Iterator[dict[str, Array]]:
    """Yield random batches without end, always the same for a seed."""
    for number in range(1 << 30):
        yield batch(session, seed, number)


def batch(session: TrainingSession, seed: int, number: int) -> dict[str, Array]:
    """Return one of the batches, by its number."""
    random = np.random.default_rng((seed, number))
    filled: dict[str, Array] = {}
    for name, dtype, shape in session.data_inputs:
        if dtype == np.float32:
            filled[name] = random.standard_normal(shape, dtype=np.float32)
        elif "mask" in name:
            filled[name] = np.ones(shape, dtype)
        else:
            filled[name] = random.integers(0, CLASSES if name == "labels" else 1000, shape).astype(dtype)
    return filled


def train(session: TrainingSession, steps: int, *, first: int = 0) -> list[float]:
    """Train on some of the batches and return their losses."""
    return [session.step(batch(session, 0, number)) for number in range(first, first + steps)]


def digest(session: TrainingSession) -> str:
    """Return a hash of all parameters and running statistics."""
    found = hashlib.sha256()
    for name, array in sorted(session.parameters.items()):
        found.update(name.encode())
        found.update(array.tobytes())
    return found.hexdigest()


def session_of(training_model: Path, **options: object) -> TrainingSession:
    """Return a session of a model made by scripts/export_models.py."""
    return TrainingSession(training_model, training_model.with_name("checkpoint"), **options)
