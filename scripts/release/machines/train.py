"""Train for a few steps with the onnxruntime of this environment; print losses and the memory's peak as JSON.

Written for an environment that holds poet-onnx[stock] and nothing else.
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path

import numpy as np
import onnxruntime

import poet_onnx


def batch(session: poet_onnx.TrainingSession, number: int) -> dict[str, np.ndarray]:
    """Return a random batch, the same for a number on every machine; whole numbers are 0 or 1, of any vocabulary."""
    random = np.random.default_rng(number)
    filled: dict[str, np.ndarray] = {}
    for name, dtype, shape in session.data_inputs:
        if np.issubdtype(dtype, np.integer):
            filled[name] = random.integers(0, 2, shape).astype(dtype)
        else:
            filled[name] = random.standard_normal(shape, dtype=np.float32).astype(dtype)
    return filled


def infer(model: Path, filled: dict[str, np.ndarray]) -> list[float]:
    """Return what a model for inference computes of a batch, in one row; labels are not among its inputs."""
    session = onnxruntime.InferenceSession(str(model))
    names = [value.name for value in session.get_inputs()]
    return [
        float(number) for array in session.run(None, {name: filled[name] for name in names}) for number in array.flat
    ]


def main() -> None:
    """Parse the arguments, train, save and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="training graph")
    parser.add_argument("parameters", type=Path, help="the first ones: a checkpoint of the artifacts, or safetensors")
    parser.add_argument("--first", type=int, default=0, help="number of the first batch")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--resume", type=Path, help="go on from this file")
    parser.add_argument("--save", type=Path, help="save here after the first step")
    parser.add_argument("--page-dir", type=Path)
    parser.add_argument("--evaluation", type=Path, help="evaluation graph, for the model for inference")
    parser.add_argument("--export", type=Path, help="write the model for inference here, and run it on the first batch")
    arguments = parser.parse_args()
    session = poet_onnx.TrainingSession(
        arguments.model,
        arguments.parameters,
        optimizer=poet_onnx.AdamW(1e-3),
        eval_model=arguments.evaluation,
        page_dir=arguments.page_dir,
    )
    if arguments.resume is not None:
        session.load_checkpoint(arguments.resume)
    losses, peaks_bytes = [], []
    for number in range(arguments.first, arguments.first + arguments.steps):
        filled = batch(session, number)
        with poet_onnx.count_allocations() as memory:
            losses.append(session.step(filled))
            peaks_bytes.append(memory.transient_peak_bytes)
        if arguments.save is not None and number == arguments.first:
            session.save_checkpoint(arguments.save)
    sums = {name: float(np.abs(array).sum(dtype=np.float64)) for name, array in session.parameters.items()}
    machine = {"machine": platform.machine(), "onnxruntime": onnxruntime.__version__}
    found: dict[str, object] = {
        "updates": session.updates,
        "losses": losses,
        "parameters": sums,
        "peaks_bytes": peaks_bytes,
    }
    if arguments.export is not None:
        session.export_inference_model(arguments.export)
        found["outputs"] = infer(arguments.export, batch(session, arguments.first))
    print(json.dumps(machine | found))


if __name__ == "__main__":
    main()
