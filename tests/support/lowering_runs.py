"""Runs steps of models in ONNX Runtime, in this process or, all at once, in the stock runtime's environment.

The stock runtime owns the same import package as onnxruntime-training, so its interpreter, which POET_STOCK_PYTHON
names, runs this file as a script: `python lowering_runs.py FOLDER` runs every FOLDER/<name>.onnx on FOLDER/<name>.npz
and writes FOLDER/<name>.out.npz.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from run_in_place import run_in_place

if TYPE_CHECKING:
    from poet_onnx import TrainGraph

Arrays = dict[str, npt.NDArray[Any]]

AFTER = "after:"
"""Before the name of an input: what it holds after the step."""


def run_step(model: bytes | str, feeds: Mapping[str, npt.NDArray[Any]]) -> Arrays:
    """Run a step and return its outputs, and what its inputs hold afterwards."""
    import onnxruntime

    from poet_onnx.runtime import session_options

    options = session_options()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    held = {wanted.name: np.array(feeds[wanted.name]) for wanted in session.get_inputs()}
    outputs = run_in_place(session, held)
    return {name: np.array(value.numpy()) for name, value in outputs.items()} | {
        AFTER + name: np.array(array) for name, array in held.items()
    }


def gradients(made: TrainGraph, batch: Mapping[str, npt.NDArray[Any]]) -> Arrays:
    """Return the gradient of each parameter of a training graph for a batch."""
    import onnx_ir as ir

    feeds = {**batch, **made.values, "lazy_reset_grad": np.ones(1, np.bool_)}
    feeds |= {f"{name}_grad.accumulation.buffer": np.zeros_like(array) for name, array in made.values.items()}
    after = run_step(ir.to_proto(made.training).SerializeToString(), feeds)
    return {name: after[f"{AFTER}{name}_grad.accumulation.buffer"] for name in made.values}


def run_on_stock(folder: Path, steps: Iterable[tuple[str, bytes, Mapping[str, npt.NDArray[Any]]]]) -> dict[str, Arrays]:
    """Run steps, given as (name, model, feeds), in one process of the stock runtime; return the results by name."""
    names = []
    for name, model, feeds in steps:
        names.append(name)
        (folder / f"{name}.onnx").write_bytes(model)
        np.savez(folder / f"{name}.npz", **feeds)
    environment = {key: value for key, value in os.environ.items() if key != "POET_STOCK_PYTHON"}
    command = [os.environ["POET_STOCK_PYTHON"], __file__, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return {name: dict(np.load(folder / f"{name}.out.npz")) for name in names}


def main(folder: Path) -> None:
    """Run everything in a folder."""
    for model in sorted(folder.glob("*.onnx")):
        try:
            results = run_step(str(model), dict(np.load(model.with_suffix(".npz"))))
        except Exception as error:
            raise RuntimeError(f"{model.stem} fails") from error
        np.savez(model.with_suffix(".out.npz"), **results)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
