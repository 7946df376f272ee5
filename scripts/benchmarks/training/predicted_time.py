#!/usr/bin/env python3
"""Compare predicted with measured step times on this machine: profile, plan with the profile, train with the plan.

    PYTHONPATH=scripts python scripts/benchmarks/training/predicted_time.py [MODEL[:BATCH[:PIXELS]]...] \
        --stock-python PYTHON -o CSV

Each model is profiled on the stock runtime with 1 and with 2 threads, and planned with what was measured in three
forms: `ordered` keeps all tensors, `rewritten` keeps to 75 % of the activations, or to the least that is found, and
`stored` has all parameters and moments in a store, in the page cache. Each plan trains in a fresh process, and the
medians of its steps are measured. The exit code is 1 if a step took 10 % more or less time than predicted. Take the
figures on a machine that does nothing else: the profile and the training run minutes apart.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import onnx
import torch
from export_models import export_forward, quiet
from threads_models import read_case, recipe

CASES = ("resnet18:8", "mobilenet:8:64", "vgg16:8", "densenet:8", "unet:8", "bert-2:8")
THREADS = (1, 2)
FORMS = {
    "ordered": ("--activation-budget", "100%", "--store", "never"),
    "rewritten": ("--activation-budget", "75%", "--store", "never"),
    "stored": ("--store", "always"),
}
STEPS, MOST_OFF = 30, 0.10
WORKER = Path(__file__).resolve().parents[1] / "memory" / "store_curve_worker.py"
RESULTS = Path(__file__).resolve().parents[2] / "results" / "predicted_time.csv"
FIELDS = ("model", "threads", "form", "predicted_ms", "measured_ms", "predicted_by_measured")
Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write a row for each case, as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=CASES, metavar="MODEL[:BATCH[:PIXELS]]", help=" ".join(CASES))
    parser.add_argument("--stock-python", default=os.environ.get("POET_STOCK_PYTHON"), help="with poet-onnx[stock]")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS, help=f"default {RESULTS.name}")
    options = parser.parse_args(arguments)
    if options.stock_python is None:
        parser.error("name the stock runtime's interpreter with --stock-python or POET_STOCK_PYTHON")
    rows = []
    with options.output.open("w", newline="", encoding="utf-8") as file:
        command = " ".join(("scripts/benchmarks/training/predicted_time.py", *options.cases))
        file.write(f"# PYTHONPATH=scripts python {command} --stock-python PYTHON\n")
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        for case in options.cases:
            for row in rows_of(case, options.stock_python):
                rows.append(row)
                writer.writerow(row)
                file.flush()
                print(*(f"{field}={value}" for field, value in row.items()), flush=True)
    return 0 if all(abs(float(row["predicted_by_measured"]) - 1) <= MOST_OFF for row in rows) else 1


def rows_of(case: str, python: str) -> Iterator[Row]:
    """Yield the rows of a model."""
    name, batch, pixels = read_case(case)
    with tempfile.TemporaryDirectory() as at:
        folder, made = Path(at), recipe(name, pixels)
        torch.manual_seed(0)
        with quiet():
            onnx.save(export_forward(made.build(), made.inputs(batch)), folder / "forward.onnx")
        for threads in THREADS:
            common = ("--device", "host", "--threads", threads)
            measured_in = ("--page-cache", "--force", "-o", folder / "costs.json")
            poet(python, "profile", folder / "forward.onnx", *common, *measured_in)
            for form, asked in FORMS.items():
                net = folder / f"{form}.onnx"
                told = planned(python, folder, net, (*common, "--costs", folder / "costs.json"), asked)
                if "Parameters cannot live in a store where all are small" in told.get("error", {}).get("message", ""):
                    continue
                store = folder / f"{form}.store" if told["store"] else ""
                command = [python, WORKER, net, store, "cached", folder, STEPS]
                done = subprocess.run([*map(str, command)], check=True, stdout=subprocess.PIPE, text=True)
                predicted, measured = told["seconds"], float(json.loads(done.stdout)["measured_seconds"])
                figures = (f"{1e3 * predicted:.4g}", f"{1e3 * measured:.4g}", f"{predicted / measured:.3f}")
                yield dict(zip(FIELDS, (case, threads, form, *figures), strict=True))


def planned(python: str, folder: Path, net: Path, common: Sequence[object], asked: Sequence[str]) -> dict[str, Any]:
    """Return what a plan predicts; that of the smallest budget where the asked one is too small."""
    plan = (folder / "forward.onnx", net, *common, "--gap", 0.05, "--time-limit", 20, "--force", "--json")
    done = poet(python, "rewrite", *plan, *asked, check=False)
    if done.returncode and "smallest_budget_bytes" in done.stdout:
        smallest = json.loads(done.stdout)["smallest_budget_bytes"]
        done = poet(python, "rewrite", *plan, "--activation-budget", smallest, "--store", "never")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def poet(python: str, command: str, *more: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command of poet-onnx for the stock runtime."""
    line = [python, "-m", "poet_onnx", command, *more, "--loss", "cross-entropy", "--target", "stock"]
    return subprocess.run([*map(str, line)], check=check, stdout=subprocess.PIPE, text=True)


if __name__ == "__main__":
    sys.exit(main())
