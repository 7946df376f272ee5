#!/usr/bin/env python3
"""Train an original and a rewritten graph side by side and compare every loss to the last bit.

python scripts/train_compare.py ARTIFACTS_DIR REWRITTEN.onnx
ARTIFACTS_DIR holds training_model.onnx, optimizer_model.onnx and checkpoint, as scripts/export_models.py writes them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import rich
import rich.box
import rich.table

from poet_onnx.runtime import count_allocations, training_module

LEARNING_RATE = 1e-3
CLASSES_IN_USE = 4
"""Few, so that every class comes round several times in a short run and the loss falls."""


@dataclass(frozen=True)
class Training:
    """What a training run left behind.

    Attributes:
        losses: of every step.
        parameters: all of them, after the last step.
        transient_peak_bytes: the most that a step allocated, in the second and later steps.
    """

    losses: list[np.float32]
    parameters: np.ndarray
    transient_peak_bytes: int


def batches(model: Path, steps: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield generated image batches of the model's shape: one random picture per class, with fresh noise each time."""
    shape = tuple(d.dim_value for d in onnx.load(model).graph.input[0].type.tensor_type.shape.dim)
    random = np.random.default_rng(0)
    pictures = random.standard_normal((CLASSES_IN_USE, *shape[1:]), dtype=np.float32)
    for step in range(steps):
        labels = np.arange(step * shape[0], (step + 1) * shape[0], dtype=np.int64) % CLASSES_IN_USE
        noise = random.standard_normal(shape, dtype=np.float32)
        yield pictures[labels] + np.float32(0.3) * noise, labels


def train(artifacts: Path, model: Path, steps: int) -> Training:
    """Train a graph from the artifacts' checkpoint with AdamW and count what its steps allocate."""
    from onnxruntime.training import api

    state = api.CheckpointState.load_checkpoint(str(artifacts / "checkpoint"))
    module = training_module(model, state)
    optimizer = api.Optimizer(str(artifacts / "optimizer_model.onnx"), module)
    optimizer.set_learning_rate(LEARNING_RATE)
    module.train()
    losses: list[np.float32] = []
    peaks: list[int] = []
    for images, labels in batches(artifacts / "training_model.onnx", steps):
        with count_allocations() as allocations:
            loss = module(images, labels)
        peaks.append(allocations.transient_peak_bytes)
        optimizer.step()
        module.lazy_reset_grad()
        losses.append(np.float32(loss))
    parameters = module.get_contiguous_parameters(trainable_only=False).numpy()
    return Training(losses, parameters, max(peaks[1:]))


def memory_table(original_bytes: int, rewritten_bytes: int) -> rich.table.Table:
    """Return the table of both measured peaks."""
    table = rich.table.Table(title="transient peak of a step, measured in the allocator", box=rich.box.SIMPLE)
    for heading in ("graph", "bytes", "MiB", "of original"):
        table.add_column(heading, justify="right")
    for name, count in (("original", original_bytes), ("rewritten", rewritten_bytes)):
        table.add_row(name, f"{count:,}", f"{count / 2**20:.2f}", f"{count / original_bytes:.1%}")
    return table


def main(arguments: list[str] | None = None) -> int:
    """Compare; return 1 if any bit differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifacts", type=Path, metavar="ARTIFACTS_DIR")
    parser.add_argument("rewritten", type=Path, metavar="REWRITTEN.onnx")
    parser.add_argument("--steps", type=int, default=20, help="AdamW steps, at least 2 (default 20)")
    options = parser.parse_args(arguments)
    if options.steps < 2:
        parser.error(f"--steps must be at least 2, not {options.steps}")
    original = train(options.artifacts, options.artifacts / "training_model.onnx", options.steps)
    rewritten = train(options.artifacts, options.rewritten, options.steps)

    same = [a.tobytes() == b.tobytes() for a, b in zip(original.losses, rewritten.losses, strict=True)]
    table = rich.table.Table(title=f"{options.steps} AdamW steps", box=rich.box.SIMPLE)
    for heading in ("step", "loss, original", "loss, rewritten", "bits"):
        table.add_column(heading, justify="right")
    for step, (a, b, equal) in enumerate(zip(original.losses, rewritten.losses, same, strict=True), start=1):
        table.add_row(str(step), f"{a:.9g}", f"{b:.9g}", "equal" if equal else "DIFFERENT")
    rich.print(table)
    same.append(original.parameters.tobytes() == rewritten.parameters.tobytes())
    print(f"all {original.parameters.size:,} parameters afterwards: {'equal bits' if same[-1] else 'DIFFERENT'}")
    rich.print(memory_table(original.transient_peak_bytes, rewritten.transient_peak_bytes))
    return 0 if all(same) else 1


if __name__ == "__main__":
    sys.exit(main())
