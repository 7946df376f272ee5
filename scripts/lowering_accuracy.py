#!/usr/bin/env python3
"""Compare lowered training steps on the stock ONNX Runtime with the training runtime's own.

python scripts/lowering_accuracy.py [NAME...] --stock PYTHON
runs a step of each model on both and writes the differences of loss, gradients and running statistics to
scripts/results/lowering_accuracy.csv.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
from pathlib import Path

import numpy as np
from lowering_models import Worker, arguments, prepare_model

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
COLUMNS = ("model", "batch", "loss_error", "worst_gradient_error", "gradient", "gradients", "zero_gradients")


def compare(name: str, batch: int, options: argparse.Namespace) -> dict[str, object]:
    """Run a model on both runtimes and return a row of the table."""
    python, stock = options.python, options.stock
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        files = prepare_model(name, batch, folder)
        found = []
        for interpreter, model in ((python, files.training), (stock, files.stock)):
            results = folder / f"{model.stem}.results.npz"
            Worker(interpreter, "onnx", str(model), str(files.feeds), str(results)).close()
            found.append({key: array.astype(np.float64) for key, array in np.load(results).items()})
    right, lowered = found
    loss = next(iter(right))
    norms = {key: float(np.linalg.norm(array)) for key, array in right.items() if "_grad" in key and array.size > 1}
    zero = [key for key, norm in norms.items() if norm <= ZERO * max(norms.values())]
    errors = {
        key: float(np.linalg.norm(array - lowered[key])) / max(float(np.linalg.norm(array)), 1e-30)
        for key, array in right.items()
        if key not in zero and array.size > 1
    }
    for key in zero:
        if np.linalg.norm(lowered[key]) > ZERO * max(norms.values()):
            errors[key] = float("inf")
    worst = max(errors, key=lambda key: errors[key])
    return {
        "model": name,
        "batch": batch,
        "loss_error": f"{abs(float(right[loss] - lowered[loss])) / abs(float(right[loss])):.1e}",
        "worst_gradient_error": f"{errors[worst]:.1e}",
        "gradient": worst.removeprefix("after:"),
        "gradients": len(norms),
        "zero_gradients": len(zero),
    }


def main() -> int:
    """Compare all models; 1 if a bound is broken."""
    options = arguments(__doc__, MODELS, "lowering_accuracy.csv")
    rows = []
    for name in options.names:
        rows.append(compare(name, MODELS[name], options))
        print(", ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    with options.output.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
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
