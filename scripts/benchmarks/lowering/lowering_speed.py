#!/usr/bin/env python3
"""Time lowered training steps on the stock ONNX Runtime against the training runtime's and torch's, in one run.

PYTHONPATH=scripts python scripts/benchmarks/lowering/lowering_speed.py [NAME...] --stock PYTHON
runs the steps in turns of a few, one process for each runtime, one thread, and writes medians of the processor's time
and their ratios to scripts/results/lowering_speed.csv. Take the figures on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from lowering_models import Worker, arguments, prepare_model, table

NAMES = ("resnet18", "vgg16", "resnet50", "bert-2", "mobilenet", "unet", "densenet", "gpt")
MODELS = dict.fromkeys(NAMES, (1, 8))
"""Batch sizes of each model."""

TURNS, STEPS = 12, 4
LONG_SECONDS = 0.3
"""A step that takes longer is run once in a turn."""

COLUMNS = (
    *("model", "batch", "training_ms", "stock_ms", "plain_ms", "torch_ms"),
    *("stock_by_training", "plain_by_training", "stock_by_torch"),
)


def measure(name: str, batch: int, options: argparse.Namespace) -> dict[str, object]:
    """Time a model's forms and return a row of the table."""
    python, stock = options.python, options.stock
    with tempfile.TemporaryDirectory() as scratch:
        files = prepare_model(name, batch, Path(scratch))
        feeds = str(files.feeds)
        workers = {
            "training": Worker(python, "onnx", str(files.training), feeds),
            "stock": Worker(stock, "onnx", str(files.stock), feeds),
            "plain": Worker(stock, "onnx", str(files.plain), feeds),
            "torch": Worker(python, "torch", name, str(batch)),
        }
        seconds: dict[str, list[float]] = {form: [] for form in workers}
        steps = {form: 1 if worker.run(2)[-1] > LONG_SECONDS else STEPS for form, worker in workers.items()}
        for _ in range(TURNS):
            for form, worker in workers.items():
                seconds[form] += worker.run(steps[form])
        for worker in workers.values():
            worker.close()
    median = {form: statistics.median(times) for form, times in seconds.items()}
    return {
        "model": name,
        "batch": batch,
        **{f"{form}_ms": f"{1e3 * value:.2f}" for form, value in median.items()},
        "stock_by_training": f"{median['stock'] / median['training']:.3f}",
        "plain_by_training": f"{median['plain'] / median['training']:.3f}",
        "stock_by_torch": f"{median['stock'] / median['torch']:.3f}",
    }


def main() -> int:
    """Time all models."""
    options = arguments(__doc__, MODELS, "lowering_speed.csv")
    table(measure, MODELS, COLUMNS, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
