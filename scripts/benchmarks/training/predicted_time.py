"""Compare predicted with measured step times on this machine: profile, plan on the profile, run both graphs in turns.

    python scripts/benchmarks/training/predicted_time.py resnet18:75% vgg16:32% -o CSV

Times are medians of wall time, original and rewritten steps in turns, in a process of its own for each case; transfers
go through the page cache, as those of the paging operators do.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from poet_onnx import rewrite
from poet_onnx.costing.device import load_device
from poet_onnx.profiler import measure
from poet_onnx.profiler.timing import StepRunner
from poet_onnx.runtime.feeds import random_feeds

DEFAULT_CASES = ["resnet18:75%", "resnet18:30%", "vgg16:92%", "vgg16:32%", "bert-2:20%", "bert-2:10%", "densenet:70%"]
STEPS, WARMUP = 40, 3
FIELDS = ("model", "budget", "graph", "predicted_seconds", "measured_seconds", "predicted_over_measured")


def main(arguments: Sequence[str]) -> int:
    """Run the cases and write their rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=DEFAULT_CASES, metavar="MODEL:BUDGET")
    parser.add_argument("-o", "--output", type=Path, help="CSV file (default: only print)")
    options = parser.parse_args(arguments)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for case in options.cases:
            # A process of its own for each, as a user's would be: what ran before shapes the heap, and so the times.
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                rows += pool.submit(run_case, case, Path(folder)).result()
            for row in rows[-2:]:
                print("  ".join(str(row[field]) for field in FIELDS), flush=True)
    if options.output is not None:
        with options.output.open("w", newline="", encoding="utf-8") as file:
            script = "scripts/benchmarks/training/predicted_time.py"
            file.write(f"# python {script} {' '.join(options.cases)} -o {options.output}\n")
            writer = csv.DictWriter(file, FIELDS)
            writer.writeheader()
            writer.writerows(rows)
    return 0


def run_case(case: str, folder: Path) -> list[dict[str, str]]:
    """Return a row for the original and one for the rewritten graph of a case such as resnet18:75%."""
    name, _, budget = case.partition(":")
    script = Path(__file__).resolve().parents[2] / "export_models.py"
    subprocess.run([sys.executable, str(script), name, "-o", str(folder)], check=True, stdout=subprocess.DEVNULL)
    path = folder / name / "training_model.onnx"
    measured = measure(path, load_device("host"), page_cache=True)
    result = rewrite(path, device="host", costs=measured, activation_budget=budget)
    rewritten = folder / f"{name}.poet.onnx"
    result.save(rewritten)
    feeds = random_feeds(result.graph, 0)
    runners = [StepRunner(path, feeds), StepRunner(rewritten, feeds)]
    seconds: list[list[float]] = [[], []]
    for step in range(WARMUP + STEPS):
        for runner, taken in zip(runners, seconds, strict=True):
            time = runner.run().wall_seconds
            if step >= WARMUP:
                taken.append(time)
    predictions = [result.original.seconds, result.rewritten.seconds]
    return [
        row(name, budget, graph, predicted, statistics.median(taken))
        for graph, predicted, taken in zip(("original", "rewritten"), predictions, seconds, strict=True)
    ]


def row(model: str, budget: str, graph: str, predicted: float, measured: float) -> dict[str, str]:
    """Return one row of the table."""
    values = (model, budget, graph, f"{predicted:.6f}", f"{measured:.6f}", f"{predicted / measured:.3f}")
    return dict(zip(FIELDS, values, strict=True))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
