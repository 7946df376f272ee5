#!/usr/bin/env python3
"""How well do the rates that fit the step of one model predict the steps of others on the same machine?

    python scripts/benchmarks/boards/rates_of_models.py -o CSV

As `poet-onnx profile --write-device` does, each model's step is timed with its nodes, and rates are fitted to it. With
them the steps of all models are predicted. Times are of the processor with one thread, so that other work on the
machine changes little.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from poet_onnx.costing.board import Rates
from poet_onnx.costing.costs import cost_table
from poet_onnx.costing.device import load_device
from poet_onnx.graph import TrainingGraph
from poet_onnx.graph.extract import load_model
from poet_onnx.passes.lowering import normalize_for
from poet_onnx.profiler.rates import TimedNodes, fit_rates
from poet_onnx.profiler.steps import Runs, time_step
from poet_onnx.rewriting.variants import variants
from poet_onnx.runtime import installed_runtime

EXPORT = Path(__file__).resolve().parents[2] / "export_models.py"
MODELS = ("resnet18", "mobilenet", "densenet", "vgg16", "unet", "bert-2", "gpt", "vit")
HOST = load_device("host")
FIELDS = ("rates_of", "model", "predicted_seconds", "measured_seconds", "predicted_over_measured")


def main(arguments: Sequence[str] | None = None) -> int:
    """Time all models, predict each by the rates of each, and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL", help=f"default: {', '.join(MODELS)}")
    parser.add_argument("-o", "--output", type=Path, help="CSV file (default: only print)")
    options = parser.parse_args(arguments)
    steps = {name: timed(name) for name in options.models}
    rows = []
    for rates_of, (graph, step) in steps.items():
        rates = fit_rates(graph, step, HOST.compute)
        for name, (other, taken) in steps.items():
            predicted = predicted_seconds(other, rates)
            figures = (f"{predicted:.6f}", f"{taken.seconds:.6f}", f"{predicted / taken.seconds:.3f}")
            rows.append(dict(zip(FIELDS, (rates_of, name, *figures), strict=True)))
            print("  ".join(rows[-1].values()), flush=True)
    if options.output is not None:
        with options.output.open("w", newline="", encoding="utf-8") as file:
            file.write("# python scripts/benchmarks/boards/rates_of_models.py " + " ".join(options.models) + "\n")
            writer = csv.DictWriter(file, FIELDS)
            writer.writeheader()
            writer.writerows(rows)
    return 0


def timed(name: str) -> tuple[TrainingGraph, TimedNodes]:
    """Return the graph of a model's step, and what it took with one thread."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, EXPORT, name, "-o", folder], check=True, stdout=subprocess.DEVNULL)
        model = load_model(Path(folder, name, "training_model.onnx"))
        target = "training" if installed_runtime().has_training else "stock"
        normalize_for(target)(model)
        first = next(iter(variants(model, HOST, target)))
        return first.graph, time_step(first, Runs(0, 20, 3, 1, lambda: None))


def predicted_seconds(graph: TrainingGraph, rates: Rates) -> float:
    """Return what a step takes on a device with some rates."""
    names = set(type(rates).model_fields) & set(type(HOST.compute).model_fields) - {"active_watts"}
    device = HOST.model_copy(update={"compute": HOST.compute.model_copy(update=rates.model_dump(include=names))})
    return sum(cost.seconds for cost in cost_table(graph, device).nodes.values())


if __name__ == "__main__":
    sys.exit(main())
