#!/usr/bin/env python3
"""Compare lowered training steps on the stock ONNX Runtime with the training runtime's own.

PYTHONPATH=scripts python scripts/benchmarks/lowering/lowering_accuracy.py [NAME...] --stock PYTHON
runs a step of each model on both and writes the differences of loss, gradients and running statistics to
scripts/results/lowering_accuracy.csv.

Of millions of rectifiers and pooling windows a few decide at rounding distance: there the gradient jumps, and two
correct runtimes may take different sides. Decisions that differ are counted. Where there are any, the bound is put to
the gradients of a lowered step that is told the training runtime's decisions, and computes everything else itself.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Container
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from lowering_models import Worker, arguments, prepare_model, table

MODELS = {
    "resnet18": (1,),
    "vgg16": (1,),
    "resnet50": (1,),
    "mobilenet": (4,),  # pooled right behind a normalization: all gradients of a single image are zero
    "unet": (1,),
    "densenet": (1,),
    "bert-2": (1,),
    "bert-base": (1,),
    "transformer": (1,),
    "gpt": (1,),
    "vit": (1,),
}
"""Batch sizes of each model."""

ZERO = 1e-5
"""A gradient of less than this part of the largest one's norm is zero but for rounding, and must be so in both."""

LOSS_BOUND, GRADIENT_BOUND = 1e-6, 2e-5

COLUMNS = (
    *("model", "batch", "decisions", "differing_decisions", "loss_error", "untold_gradient_error"),
    *("worst_gradient_error", "gradient", "gradients", "zero_gradients"),
)

Array = npt.NDArray[Any]
Arrays = dict[str, Array]


def compare(name: str, batch: int, options: argparse.Namespace) -> dict[str, object]:
    """Run a model on both runtimes and return a row of the table."""
    with tempfile.TemporaryDirectory() as scratch:
        files = prepare_model(name, batch, Path(scratch), show_decisions=True)
        right, lowered = run(options.python, files.training, files.feeds), run(options.stock, files.stock, files.feeds)
        differing = sum(differing_decisions(right[key], lowered[key]) for key in files.decisions)
        untold = errors(right, lowered, files.decisions)
        if differing:
            assert files.told is not None
            feeds = files.feeds.with_name("told.npz")
            told = {f"told:{key}": right[key] for key in files.decisions}
            np.savez(feeds, **np.load(files.feeds), **told)
            lowered = run(options.stock, files.told, feeds)
        found = errors(right, lowered, files.decisions)
    loss, worst = next(iter(right)), max(found, key=lambda key: found[key])
    gradients = [key for key in right if is_gradient(key, right[key])]
    return {
        "model": name,
        "batch": batch,
        "decisions": sum(right[key].size for key in files.decisions),
        "differing_decisions": differing,
        "loss_error": f"{abs(float(right[loss] - lowered[loss])) / abs(float(right[loss])):.1e}",
        "untold_gradient_error": f"{max(untold.values()):.1e}",
        "worst_gradient_error": f"{found[worst]:.1e}",
        "gradient": worst.removeprefix("after:"),
        "gradients": len(gradients),
        "zero_gradients": sum(key not in found for key in gradients),
    }


def run(interpreter: str, model: Path, feeds: Path) -> Arrays:
    """Return what a step gives on an interpreter's runtime."""
    results = model.with_suffix(".results.npz")
    Worker(interpreter, "onnx", str(model), str(feeds), str(results)).close()
    with np.load(results) as found:
        return dict(found)


def differing_decisions(right: Array, lowered: Array) -> int:
    """Return how many rectifiers have outputs on different sides, or how many other choices differ."""
    if right.dtype == np.float32:
        right, lowered = np.sign(right), np.sign(lowered)
    return int(np.count_nonzero(right != lowered))


def is_gradient(key: str, array: Array) -> bool:
    """Return whether a result is the buffer of a gradient."""
    return key.startswith("after:") and "_grad" in key and array.size > 1


def errors(right: Arrays, lowered: Arrays, decisions: Container[str]) -> dict[str, float]:
    """Return the relative L2 error of every gradient and every running statistic; zero gradients are left out."""
    norms = {key: norm(array) for key, array in right.items() if is_gradient(key, array)}
    least = ZERO * max(norms.values())
    found = {}
    for key, array in right.items():
        if key in decisions or array.dtype != np.float32 or array.size <= 1:
            continue
        if norms.get(key, least + 1) <= least and norm(lowered[key]) <= least:
            continue
        found[key] = norm(array.astype(np.float64) - lowered[key]) / max(norm(array), 1e-30)
    return found


def norm(array: Array) -> float:
    """Return the Euclidean norm, summed in double precision."""
    return float(np.linalg.norm(array.astype(np.float64)))


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
