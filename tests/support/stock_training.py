"""What tests/training/test_stock.py runs in the stock runtime's interpreter: train, and say what was seen.

python tests/support/stock_training.py JOBS.json
JOBS.json is a list of {"model", "checkpoint", "evaluation", "folder"}; a list of what each gave is printed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from training_batches import batch, digest, train

from poet_onnx import TrainingSession, count_allocations
from poet_onnx.runtime import installed_runtime

STEPS = 4


def run(job: dict[str, str]) -> dict[str, object]:
    """Train, resume in another session, evaluate and export."""
    import onnxruntime

    session = TrainingSession(job["model"], job["checkpoint"], eval_model=job["evaluation"])
    losses = train(session, 1)
    with count_allocations() as memory:
        losses += train(session, 1, first=1)
        peak_bytes = memory.transient_peak_bytes
    saved = Path(job["folder"], "saved.safetensors")
    session.save_checkpoint(saved)
    losses += train(session, STEPS - 2, first=2)
    resumed = TrainingSession(job["model"], saved)
    resumed.load_checkpoint(saved)
    session.eval()
    feeds = batch(session, 1, 0)
    exported = Path(job["folder"], "inference.onnx")
    session.export_inference_model(exported)
    other = onnxruntime.InferenceSession(exported)
    (output,) = other.run(None, {value.name: feeds[value.name] for value in other.get_inputs()})
    return {
        "runtime": installed_runtime().distribution,
        "losses": losses,
        "digest": digest(session),
        "peak_bytes": peak_bytes,
        "resumed_losses": train(resumed, STEPS - 2, first=2),
        "resumed_digest": digest(resumed),
        "evaluated": session.step(feeds),
        "output": output.ravel().tolist(),
        "label": int(feeds["labels"].ravel()[0]),
    }


if __name__ == "__main__":
    json.dump([run(job) for job in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))], sys.stdout)
