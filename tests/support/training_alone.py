"""What a process takes that trains, and makes no other call."""

from __future__ import annotations

from dataclasses import replace

from poet_onnx.costing.process import CALLS, ProcessMemory

OTHERS = (*CALLS, "evaluation")


def training_alone(memory: ProcessMemory) -> ProcessMemory:
    """Return a prediction without the lines of other calls."""
    return replace(memory, lines=tuple(line for line in memory.lines if line.name not in OTHERS))
