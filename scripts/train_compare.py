#!/usr/bin/env python3
"""Train an original and a rewritten graph side by side on the stock onnxruntime, and compare them to the last bit.

python scripts/train_compare.py TRAINING_DIR REWRITTEN.onnx -o trained.onnx
TRAINING_DIR is what `poet-onnx train-graph` wrote. The batches are generated. The trained model is exported for
inference, and onnxruntime classifies pictures with it that the training has not seen.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import rich
import rich.box
import rich.table

import poet_onnx
from poet_onnx.passes.lowering import prepare

LEARNING_RATE = 1e-4
CLASSES_IN_USE = 4
"""Few, so that every class comes round several times in a short run and the loss falls."""
UNSEEN_BATCHES = 25


@dataclass(frozen=True)
class Training:
    """What a training run left behind.

    Attributes:
        session: after the last step.
        losses: of every step.
        transient_peak_bytes: the most that a step allocated, in the second and later steps.
    """

    session: poet_onnx.TrainingSession
    losses: list[float]
    transient_peak_bytes: int


def batches(shape: tuple[int, ...], first: int, count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield generated batches from number `first` on: one random picture per class, with fresh noise each time."""
    pictures = np.random.default_rng(0).standard_normal((CLASSES_IN_USE, *shape[1:]), dtype=np.float32)
    for number in range(first, first + count):
        random = np.random.default_rng(1 + number)
        labels = random.integers(0, CLASSES_IN_USE, shape[0])
        yield pictures[labels] + random.standard_normal(shape, dtype=np.float32), labels


def image_shape(session: poet_onnx.TrainingSession) -> tuple[int, ...]:
    """Return the shape of a batch of images: the first input that the session reads."""
    return tuple(int(size) for size in session.data_inputs[0].shape)


def train(directory: Path, model: Path | ir.Model, steps: int) -> Training:
    """Train a graph from the directory's parameters with AdamW and count what its steps allocate."""
    session = poet_onnx.TrainingSession(
        model,
        directory / "parameters.safetensors",
        optimizer=poet_onnx.AdamW(LEARNING_RATE),
        eval_model=directory / "eval_model.onnx",
    )
    losses: list[float] = []
    peaks: list[int] = []
    for images, labels in batches(image_shape(session), 0, steps):
        with poet_onnx.count_allocations() as allocations:
            losses.append(session.step(images, labels))
        peaks.append(allocations.transient_peak_bytes)
    return Training(session, losses, max(peaks[1:]))


def lowered(directory: Path) -> ir.Model:
    """Return the original as the stock runtime runs it: its nodes in their order, those for training alone lowered."""
    model = ir.load(directory / "training_model.onnx")
    prepare(target="stock")(model)
    return model


def same_parameters(original: Training, rewritten: Training) -> list[bool]:
    """Return of each parameter and running statistic whether it has the same bits in both."""
    values = rewritten.session.parameters
    return [array.tobytes() == values[name].tobytes() for name, array in original.session.parameters.items()]


def classify(trained: Path, shape: tuple[int, ...], first: int) -> tuple[int, int]:
    """Return how many unseen pictures the exported model classifies rightly, and of how many."""
    session = onnxruntime.InferenceSession(str(trained))
    name = session.get_inputs()[0].name
    right = sum(
        int((session.run(None, {name: images})[0].argmax(axis=1) == labels).sum())
        for images, labels in batches(shape, first, UNSEEN_BATCHES)
    )
    return right, UNSEEN_BATCHES * shape[0]


def loss_table(original: Training, rewritten: Training) -> rich.table.Table:
    """Return the table of both losses of every step."""
    table = rich.table.Table(title=f"{len(original.losses)} AdamW steps", box=rich.box.SIMPLE)
    for heading in ("step", "loss, original", "loss, rewritten", "bits"):
        table.add_column(heading, justify="right")
    for step, (a, b) in enumerate(zip(original.losses, rewritten.losses, strict=True), start=1):
        table.add_row(str(step), f"{a:.9g}", f"{b:.9g}", "equal" if a == b else "DIFFERENT")
    return table


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
    parser.add_argument("directory", type=Path, metavar="TRAINING_DIR")
    parser.add_argument("rewritten", type=Path, metavar="REWRITTEN.onnx")
    parser.add_argument("--steps", type=int, default=30, help="AdamW steps, at least 2 (default 30)")
    parser.add_argument("-o", "--output", type=Path, help="where the trained model goes; default: it is not exported")
    options = parser.parse_args(arguments)
    if options.steps < 2:
        parser.error(f"--steps must be at least 2, not {options.steps}")
    original = train(options.directory, lowered(options.directory), options.steps)
    rewritten = train(options.directory, options.rewritten, options.steps)

    rich.print(loss_table(original, rewritten))
    same = same_parameters(original, rewritten)
    numbers = sum(array.size for array in original.session.parameters.values())
    print(f"all {numbers:,} parameters and statistics afterwards: {'equal bits' if all(same) else 'DIFFERENT'}")
    rich.print(memory_table(original.transient_peak_bytes, rewritten.transient_peak_bytes))
    if options.output is not None:
        rewritten.session.export_inference_model(options.output)
        right, count = classify(options.output, image_shape(rewritten.session), options.steps)
        print(f"{options.output}, exported for inference, classifies {right} of {count} unseen pictures rightly")
    return 0 if original.losses == rewritten.losses and all(same) else 1


if __name__ == "__main__":
    sys.exit(main())
