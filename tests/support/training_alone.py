"""What a process takes that trains, and makes no other call."""

from __future__ import annotations

from dataclasses import replace

from poet_onnx.costing.process import ProcessMemory

CALLS = ("save_checkpoint", "load_checkpoint", "export_inference_model", "evaluation")


def training_alone(memory: ProcessMemory) -> ProcessMemory:
    """Return a prediction without the lines of other calls."""
    return replace(memory, lines=tuple(line for line in memory.lines if line.name not in CALLS))
