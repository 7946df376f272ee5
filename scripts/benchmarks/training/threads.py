#!/usr/bin/env python3
"""Time training steps with 1 and 2 threads, original and rewritten, on both runtimes, beside torch at the same threads.

PYTHONPATH=scripts python scripts/benchmarks/training/threads.py [MODEL[:BATCH[:PIXELS]]...] --stock-python PYTHON
Each form of a model trains in a process of its own, all in turns of a few steps with AdamW, and medians of wall time go
to scripts/results/threads.csv. `original` is the step of onnxruntime's artifacts as it is; for the stock runtime, which
cannot run that, it is lowered and ordered alone. `rewritten` keeps to 75 % of the activations, or to the least that is
found. Take the figures on a machine that does nothing else: a thread that waits for another one waits for its core.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from export_models import export, quiet
from threads_models import MODELS, OTHERS, read_case, recipe

import poet_onnx
from poet_onnx.errors import InfeasibleError

WORKER = Path(__file__).resolve().with_name("threads_worker.py")
RESULTS = Path(__file__).resolve().parents[2] / "results" / "threads.csv"
RUNTIMES, FORMS, THREADS = ("training", "stock"), ("original", "rewritten"), (1, 2)
BUDGET, GAP, TIME_LIMIT_SECONDS = "75%", 0.5, 20.0
TURNS, STEPS = 4, 12
LONG_SECONDS = 0.3
"""A step that takes longer is run once in a turn."""

COLUMNS = (
    *("model", "runtime", "form", "one_ms", "two_ms", "two_by_one", "torch_one_ms", "torch_two_ms"),
    *("torch_two_by_one", "one_by_torch", "two_by_torch"),
)


class Worker:
    """A process that trains one form of a model."""

    def __init__(self, python: str, *arguments: object) -> None:
        scripts = os.pathsep.join(map(str, (WORKER.parents[2], WORKER.parent)))
        self._process = subprocess.Popen(
            [python, str(WORKER), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": scripts},
        )
        if self._line() != "ready":
            raise SystemExit(f"error: {WORKER.name} {' '.join(map(str, arguments))} did not start")
        self.seconds: list[float] = []
        self._steps = 1 if self._run(2)[-1] > LONG_SECONDS else STEPS

    def turn(self) -> None:
        """Train a few steps."""
        self.seconds += self._run(self._steps)

    @property
    def milliseconds(self) -> float:
        """Return the median of a step."""
        return 1e3 * statistics.median(self.seconds)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def _run(self, steps: int) -> list[float]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        found: list[float] = json.loads(self._line())
        return found

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def measure(case: str, runtimes: Sequence[str], pythons: dict[str, str]) -> Iterator[dict[str, object]]:
    """Time a model's forms on each runtime, and yield rows of the table."""
    name, batch, pixels = read_case(case)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder)
        with quiet():
            export(recipe(name, pixels), source, batch=batch)
        for runtime in runtimes:
            workers = {
                (form, threads): Worker(
                    pythons[runtime],
                    "poet",
                    prepared(source, runtime, form, threads),
                    source / "checkpoint",
                    threads,
                )
                for form in FORMS
                for threads in THREADS
            }
            for threads in THREADS:
                workers["torch", threads] = Worker(sys.executable, "torch", name, batch, pixels, threads)
            for _ in range(TURNS):
                for worker in workers.values():
                    worker.turn()
            for worker in workers.values():
                worker.close()
            for form in FORMS:
                yield row(case, runtime, form, {key: worker.milliseconds for key, worker in workers.items()})


def prepared(folder: Path, runtime: str, form: str, threads: int) -> Path:
    """Return the model's file of a form, which is written first."""
    source = folder / "training_model.onnx"
    if (runtime, form) == ("training", "original"):
        return source
    options = {"device": "a72", "target": runtime, "optimizer": "adamw", "threads": threads}
    options |= {"gap": GAP, "time_limit_seconds": TIME_LIMIT_SECONDS}
    budget: str | int = BUDGET if form == "rewritten" else "100%"
    try:
        result = poet_onnx.rewrite(source, activation_budget=budget, **options)
    except InfeasibleError as error:
        if error.smallest_budget_bytes is None:
            raise
        result = poet_onnx.rewrite(source, activation_budget=error.smallest_budget_bytes, **options)
    path = folder / f"{runtime}-{form}-{threads}.onnx"
    result.save(path)
    return path


def row(case: str, runtime: str, form: str, took: dict[tuple[str, int], float]) -> dict[str, object]:
    """Return a row of the table, of the milliseconds that steps took."""
    one, two = (took[form, threads] for threads in THREADS)
    torch_one, torch_two = (took["torch", threads] for threads in THREADS)
    return {
        "model": case,
        "runtime": runtime,
        "form": form,
        **dict(
            zip(
                COLUMNS[3:],
                (
                    *(f"{one:.2f}", f"{two:.2f}", f"{two / one:.3f}", f"{torch_one:.2f}", f"{torch_two:.2f}"),
                    *(f"{torch_two / torch_one:.3f}", f"{one / torch_one:.3f}", f"{two / torch_two:.3f}"),
                ),
                strict=True,
            )
        ),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Time all models, and write a row for each form at once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cases = (*MODELS, *OTHERS)
    parser.add_argument("cases", nargs="*", default=cases, metavar="MODEL[:BATCH[:PIXELS]]", help=" ".join(cases))
    parser.add_argument("--stock-python", default=os.environ.get("POET_STOCK_PYTHON"), help="with poet-onnx[stock]")
    parser.add_argument("--runtimes", nargs="+", default=RUNTIMES, choices=RUNTIMES)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS, help=f"default {RESULTS.name}")
    options = parser.parse_args(arguments)
    if "stock" in options.runtimes and options.stock_python is None:
        parser.error("name the stock runtime's interpreter with --stock-python or POET_STOCK_PYTHON")
    pythons = {"training": sys.executable, "stock": options.stock_python}
    with options.output.open("w", newline="", encoding="utf-8") as file:
        command = " ".join(options.cases) if options.cases != cases else ""
        file.write(f"# python scripts/benchmarks/training/threads.py {command}".rstrip() + "\n")
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for case in options.cases:
            for found in measure(case, options.runtimes, pythons):
                writer.writerow(found)
                file.flush()
                print(", ".join(f"{key} {value}" for key, value in found.items()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
