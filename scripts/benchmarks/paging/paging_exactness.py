#!/usr/bin/env python3
"""Predicted against measured peak and time of a step: models x budgets x storages x threads x both runtimes.

    python scripts/benchmarks/paging/paging_exactness.py --stock-python PYTHON -o CSV

Each model is profiled with each number of threads, planned for each budget and each throttled storage, and run. What
the runtime's allocator holds at most is compared with the simulator's prediction to the byte; the exit code is 1 if one
differs by more than 0.2 %, or is above the prediction or the budget. Times are medians of wall time and depend on what
else the machine does; --peaks-only leaves them out. Every model and number of threads has a process of its own, on the
runtime of this interpreter and, where --stock-python names one, on the stock onnxruntime of that one, for which the
graphs are lowered.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from paging_cases import (
    Stepper,
    exported,
    interleaved_medians,
    show,
    throttled_costs,
    throttled_device,
    write_table,
)

from poet_onnx.costing.device import DeviceProfile
from poet_onnx.costing.measured import MeasuredCosts
from poet_onnx.errors import InfeasibleError, PoetError
from poet_onnx.profiler import measure
from poet_onnx.rewriting.rewrite import RewriteResult, rewrite
from poet_onnx.runtime import PagingOptions, Throttle, count_allocations, count_paging, installed_runtime
from poet_onnx.runtime.feeds import random_feeds

MODELS = ["resnet18", "vgg16", "bert-2", "unet", "mobilenet", "bert-base"]
BUDGETS = [1.02, 1.3, 2.0]
"""Activation budgets, in parts of the smallest that works."""
RATES = {"none": 0.0, "fast": 400e6, "slow": 40e6}
"""Bytes per second of the storages, as throttled; 0 for no throttle."""

LATENCY_SECONDS = 0.0002
GAP, SOLVER_SECONDS = 0.05, 20.0
TOLERANCE = 0.002
NOT_RUN = "no plan"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all cases and write their rows."""
    options = _parser().parse_args(arguments)
    if options.worker is not None:
        for row in _rows(json.loads(options.worker)):
            print(json.dumps(row), flush=True)
        return 0
    rows: list[Mapping[str, object]] = []
    interpreters = [(sys.executable, "training"), *([(options.stock_python, "stock")] if options.stock_python else [])]
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models:
            path = exported(name, Path(folder))
            for python, target in interpreters:
                for threads in options.threads:
                    case = {"path": str(path), "model": name, "target": target, "threads": threads}
                    case |= {"budgets": options.budgets, "storages": options.storages, "steps": options.steps}
                    case["peaks_only"] = options.peaks_only
                    rows += _run_worker(python, case)
                    write_table(options.output, rows)  # as far as it has come: all of it may take hours
    run = [row for row in rows if row["exact"] != NOT_RUN]
    wrong = [row for row in run if row["exact"] != "yes"]
    print(f"{len(run) - len(wrong)} of {len(run)} cases are exact; {len(rows) - len(run)} more have no plan")
    return 1 if wrong or not run else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL")
    parser.add_argument("-o", "--output", type=Path, help="CSV file (default: only print)")
    parser.add_argument("--stock-python", help="interpreter of an environment with poet-onnx[stock]")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--budgets", type=float, nargs="+", default=BUDGETS, help="in parts of the smallest that works")
    parser.add_argument("--storages", nargs="+", choices=RATES, default=list(RATES))
    parser.add_argument("--steps", type=int, default=5, help="measured steps of each case")
    parser.add_argument("--peaks-only", action="store_true", help="no times: the machine may do other work meanwhile")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser


def _run_worker(python: str, case: Mapping[str, object]) -> list[Mapping[str, object]]:
    command = [python, __file__, "--worker", json.dumps(case)]
    rows = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            rows.append(json.loads(line))
            show(rows[-1])
    if process.returncode:
        raise SystemExit(f"{case['model']} on {case['target']} with {case['threads']} threads failed")
    return rows


def _rows(case: Mapping[str, object]) -> Iterator[dict[str, object]]:
    """Yield the rows of one model and number of threads on this interpreter's runtime."""
    path, target, threads = Path(str(case["path"])), str(case["target"]), int(str(case["threads"]))
    device = throttled_device(Throttle())
    measured = measure(path, device, threads=threads, repetitions=10, page_cache=True, target=target)
    smallest = _smallest_budget(path, target, device, measured)
    runtime = installed_runtime()
    for budget in case["budgets"]:  # type: ignore[attr-defined]
        for storage in case["storages"]:  # type: ignore[attr-defined]
            throttle = _throttle(RATES[storage])
            row: dict[str, object] = {"runtime": f"{runtime.distribution} {runtime.version}", "model": case["model"]}
            row |= {"threads": threads, "budget": budget, "storage": storage}
            costs = throttled_costs(measured, throttle) if RATES[storage] else measured
            try:
                result = rewrite(
                    path,
                    device=throttled_device(throttle) if RATES[storage] else device,
                    costs=costs,
                    activation_budget=int(budget * smallest),
                    gap=GAP,
                    time_limit_seconds=SOLVER_SECONDS,
                    target=target,
                    threads=threads,
                )
            except PoetError as error:
                yield row | {"exact": NOT_RUN, "note": str(error).partition(":")[0]}
                continue
            steps = 0 if case["peaks_only"] else int(str(case["steps"]))
            yield row | _measured(path, result, threads, PagingOptions(throttle=throttle), steps)


def _smallest_budget(path: Path, target: str, device: DeviceProfile, measured: MeasuredCosts) -> int:
    try:
        rewrite(path, device=device, costs=measured, activation_budget=1024, target=target, threads=measured.threads)
    except InfeasibleError as error:
        return error.smallest_budget_bytes or 1024
    return 1024


def _throttle(bytes_per_second: float) -> Throttle:
    if not bytes_per_second:
        return Throttle()
    return Throttle(
        page_out_bytes_per_second=bytes_per_second,
        page_in_bytes_per_second=bytes_per_second,
        page_out_latency_seconds=LATENCY_SECONDS,
        page_in_latency_seconds=LATENCY_SECONDS,
    )


def _measured(path: Path, result: RewriteResult, threads: int, paging: PagingOptions, steps: int) -> dict[str, object]:
    """Run a rewritten graph and return what was predicted beside what was measured."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        rewritten = Path(folder, "rewritten.onnx")
        result.save(rewritten)
        stepper = Stepper(rewritten, random_feeds(result.graph, 0), threads=threads, paging=paging)
    for _ in range(2):
        stepper.run()
    with count_allocations() as counter, count_paging() as moved:
        binding = stepper.bind()
        counter.reset_peak()
        stepper.session.run_with_iobinding(binding)
        peak = counter.transient_peak_bytes
        del binding
        moved.reset()
        times = interleaved_medians([stepper], steps=steps) if steps else []
        waited, hidden = moved.statistics.waited_seconds, moved.statistics.hidden_share
    predicted, budget = result.plan.prediction, result.plan.limits.budget_bytes or 0
    exact = abs(peak - predicted.transient_peak_bytes) <= TOLERANCE * predicted.transient_peak_bytes
    row: dict[str, object] = {
        "exact": "yes" if exact and peak <= min(budget, predicted.transient_peak_bytes) else "NO",
        "budget_bytes": budget,
        "predicted_peak_bytes": predicted.transient_peak_bytes,
        "measured_peak_bytes": peak,
        "peak_difference_bytes": peak - predicted.transient_peak_bytes,
        "recomputed_nodes": predicted.recomputed_nodes,
        "paged_bytes": predicted.page_out_bytes + predicted.page_in_bytes,
    }
    for time in times:
        row |= {
            "predicted_seconds": f"{predicted.seconds:.6f}",
            "measured_seconds": f"{time.wall_seconds:.6f}",
            "predicted_over_measured": f"{predicted.seconds / time.wall_seconds:.3f}",
            "processor_and_waiting_seconds": f"{time.cpu_seconds + waited / steps:.6f}",
            "predicted_stall_seconds": f"{predicted.stall_seconds:.6f}",
            "waited_seconds": f"{waited / steps:.6f}",
            "hidden": f"{hidden:.4f}",
        }
    return row


if __name__ == "__main__":
    sys.exit(main())
