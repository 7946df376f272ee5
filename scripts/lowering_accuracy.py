#!/usr/bin/env python3
"""Compare lowered training steps on the stock ONNX Runtime with the training runtime's own.

python scripts/lowering_accuracy.py [NAME...] --stock PYTHON
runs a step of each model on both and writes the differences of loss, gradients and running statistics to
scripts/results/lowering_accuracy.csv.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
from lowering_models import Worker, arguments, prepare_model, table

MODELS = {
    "resnet18": 1,
    "vgg16": 1,
    "resnet50": 1,
    "mobilenet": 4,  # pooled right behind a normalization: all gradients of a single image are zero
    "unet": 1,
    "densenet": 1,
    "bert-2": 1,
    "bert-base": 1,
    "transformer": 1,
    "gpt": 1,
    "vit": 1,
}
"""Batch size of each model."""

ZERO = 1e-5
"""A gradient of less than this part of the largest one's norm is zero but for rounding, and must be so in both."""

LOSS_BOUND, GRADIENT_BOUND = 1e-6, 2e-5
SEEDS = 25
"""Feeds to draw at most."""

COLUMNS = ("model", "batch", "seed", "loss_error", "worst_gradient_error", "gradient", "gradients", "zero_gradients")


def compare(name: str, batch: int, options: argparse.Namespace) -> dict[str, object]:
    """Run a model on both runtimes and return a row of the table.

    Of millions of rectifiers some have inputs within rounding of zero, where the gradient jumps: two correct runtimes
    may then take different sides. Feeds are drawn until both took the same.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for seed in range(SEEDS):
            right, lowered = run_both(name, batch, seed, folder, options)
            if all(equal_decisions(right[key], lowered[key]) for key in right if is_decision(key)):
                break
    found = errors({key: array for key, array in right.items() if not is_decision(key)}, lowered)
    loss, worst = next(iter(right)), max(found, key=lambda key: found[key])
    gradients = [key for key in right if is_gradient(key, right[key])]
    return {
        "model": name,
        "batch": batch,
        "seed": seed,
        "loss_error": f"{abs(float(right[loss] - lowered[loss])) / abs(float(right[loss])):.1e}",
        "worst_gradient_error": f"{found[worst]:.1e}",
        "gradient": worst.removeprefix("after:"),
        "gradients": len(gradients),
        "zero_gradients": sum(key not in found for key in gradients),
    }


Arrays = dict[str, "np.ndarray[tuple[int, ...], np.dtype[np.float64]]"]


def run_both(name: str, batch: int, seed: int, folder: Path, options: argparse.Namespace) -> tuple[Arrays, Arrays]:
    """Return what a step gives on the training runtime and, lowered, on the stock one."""
    files = prepare_model(name, batch, folder, seed=seed, show_decisions=True)
    found = []
    for interpreter, model in ((options.python, files.training), (options.stock, files.stock)):
        results = folder / f"{model.stem}.results.npz"
        Worker(interpreter, "onnx", str(model), str(files.feeds), str(results)).close()
        found.append({key: array.astype(np.float64) for key, array in np.load(results).items()})
    return found[0], found[1]


def is_gradient(key: str, array: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> bool:
    """Return whether a result is the buffer of a gradient."""
    return key.startswith("after:") and "_grad" in key and array.size > 1


def is_decision(key: str) -> bool:
    """Return whether a result is an output of the forward pass: neither the loss nor an accumulator's flag."""
    return not key.startswith("after:") and "loss" not in key and "accumulation" not in key


def equal_decisions(
    right: np.ndarray[tuple[int, ...], np.dtype[np.float64]], lowered: np.ndarray[tuple[int, ...], np.dtype[np.float64]]
) -> bool:
    """Return whether activations have the same sides: zero or not, positive or not, at their upper end or not."""
    return bool(np.array_equal(np.sign(right), np.sign(lowered)) and np.abs(right - lowered).max() < 0.5)


def errors(right: Arrays, lowered: Arrays) -> dict[str, float]:
    """Return the relative L2 error of every gradient and every running statistic; zero gradients are left out."""
    norms = {key: float(np.linalg.norm(array)) for key, array in right.items() if is_gradient(key, array)}
    least = ZERO * max(norms.values())
    found = {}
    for key, array in right.items():
        if array.size <= 1 or (norms.get(key, least + 1) <= least and np.linalg.norm(lowered[key]) <= least):
            continue
        found[key] = float(np.linalg.norm(array - lowered[key])) / max(float(np.linalg.norm(array)), 1e-30)
    return found


def main() -> int:
    """Compare all models; 1 if a bound is broken."""
    options = arguments(__doc__, MODELS, "lowering_accuracy.csv")
    rows = table(compare, MODELS, COLUMNS, options)
    broken = [
        row["model"]
        for row in rows
        if float(str(row["loss_error"])) > LOSS_BOUND or float(str(row["worst_gradient_error"])) > GRADIENT_BOUND
    ]
    if broken:
        print(f"error: out of bounds: {broken}", file=sys.stderr)
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
