"""What a process takes that trains, and makes no other call."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from poet_onnx import RewriteResult
from poet_onnx.costing.process import CALLS, ProcessMemory
from poet_onnx.passes.metadata import read_settings
from poet_onnx.verification.process import train, training_job, write_random_parameters

OTHERS = (*CALLS, "evaluation")


def training_alone(memory: ProcessMemory) -> ProcessMemory:
    """Return a prediction without the lines of other calls."""
    return replace(memory, lines=tuple(line for line in memory.lines if line.name not in OTHERS))


def trained_alone_bytes(result: RewriteResult, folder: Path, python: str, *, threads: int = 1) -> int:
    """Return the peak of a process that trains and does nothing else, with random parameters unless it has some."""
    model, parameters = folder / "model.onnx", folder / "model.safetensors"
    result.save(model)
    if result.train_graph is None:
        write_random_parameters(result.graph, parameters)
    settings = read_settings(result.model)
    job = training_job(result.model, settings, model, parameters, steps=5, threads=threads, page_dir=None)
    for _ in range(2):  # the first one writes bytecode
        trial = train(job | {"eval_model": None}, None, python)
    assert trial.figures is not None, trial.ending
    return int(trial.figures["peak_bytes"])
