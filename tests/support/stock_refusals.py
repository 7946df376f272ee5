"""What tests/training/test_indices.py checks in either runtime: batches that are refused change nothing.

python tests/support/stock_refusals.py MODEL.onnx FOLDER
The folder holds the checkpoint and the evaluation graph; the losses of the steps around the refusals are printed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from poet_onnx import SGD, TrainingSession
from poet_onnx.errors import InputError

IDS, CLASSES, IGNORED = 7, 3, -100


def check_refusals(model: str, folder: str) -> list[float]:
    """Check what is refused and that nothing came of it and return the losses of two steps around them."""
    evaluation, checkpoint = Path(folder, "eval_model.onnx"), Path(folder, "checkpoint")
    session = TrainingSession(model, checkpoint, optimizer=SGD(0.1), eval_model=evaluation)
    ids, labels = np.arange(8).reshape(2, 4) % IDS, np.arange(8) % CLASSES
    labels[0] = IGNORED
    losses = [session.step(ids, labels)]
    before = {name: array.copy() for name, array in session.parameters.items()}
    for training in (True, False):
        session.train() if training else session.eval()
        for place, wrong in ((3, -1), (5, CLASSES), (7, 2**40), (1, -101)):
            bad = labels.copy()
            bad[place] = wrong
            expect(session, ids, bad, f"'labels' holds {wrong} at [{place}], but the graph takes 0 to 2, or -100")
        for place, wrong in ((0, -1), (3, IDS), (1, -(2**40))):
            bad = ids.copy()
            bad[1, place] = wrong
            expect(session, bad, labels, f"'ids' holds {wrong} at [1, {place}], but the graph takes 0 to 6:")
    assert all(np.array_equal(array, before[name]) for name, array in session.parameters.items())
    session.train()
    losses.append(session.step(ids, labels))
    return losses


def expect(session: TrainingSession, ids: np.ndarray, labels: np.ndarray, message: str) -> None:
    """Check that a batch is refused."""
    try:
        loss = session.step(ids, labels)
    except InputError as refusal:
        assert message in str(refusal), refusal
    else:
        raise AssertionError(f"{message}: the loss was {loss}")


if __name__ == "__main__":
    json.dump(check_refusals(*sys.argv[1:]), sys.stdout)
