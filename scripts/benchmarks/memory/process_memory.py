#!/usr/bin/env python3
"""Is RAM what a plan says? Growth over steps, whole processes, long runs under a limit, and others beside them.

    PYTHONPATH=scripts:scripts/benchmarks/paging python scripts/benchmarks/memory/process_memory.py -o OUT.csv

--stock-python names the interpreter with the stock onnxruntime. Every case runs in a fresh process whose environment
sets nothing of malloc. Kinds of rows:
growth   a plain InferenceSession, five steps, everything bound: VmHWM after them less VmRSS before them, and the region
         on top where it was touched when the session was made; step times with and without the region. `code_bytes` of
         the growth are pages of libraries whose code ran for the first time: no allocation of a step, and counted in a
         process's `session` line. A row passes by the rest of the growth. `growth_of_peak_bytes` is what `top` would
         show: VmHWM after the steps less VmHWM before them, which loading has raised, and the region.
process  a TrainingSession on the stock runtime with AdamW, five steps, under a limit equal to the RAM budget: predicted
         and measured VmHWM.
long     the same for 200 steps: VmHWM at the end, and by how much it is above that after five steps.
beside   ResNet-18 for CIFAR: five AdamW steps by torch, by onnxruntime-training, and by TrainingSession.
`passed` says whether a row keeps what is promised. Rows of other models or kinds in the file stay; the file is written
after each row. The exit code is 1 if a row is not as promised. Run it with the training environment.
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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]

MODELS = {"resnet18": 1, "unet": 8, "bert-2": 1, "mobilenet": 8, "vgg16": 1, "resnet50": 1, "bert-base": 1}
"""Batch sizes by name of scripts/models.py; those that take longest come last."""

KINDS = ("growth", "process", "long", "beside")
TARGETS = ("training", "stock")
SHARES = (0.75, 0.5)
"""The two budgets leave these shares of the ordered step's transient bytes."""

ATTEMPTS, LARGER = 4, 1.03
"""At a budget, and what it grows by where no plan is found in time."""

STEPS, LONG_STEPS, TIMED_STEPS = 5, 200, 15
MIB = 1 << 20
MOST_GROWTH, MOST_GROWTH_BYTES = 1.02, MIB
"""The process may take this multiple of the plan's peak and these bytes on top; pages of code come besides."""

MOST_SLOWDOWN = 1.02
MOST_ERROR, MOST_ERROR_BYTES = 0.03, 2 * MIB

KEYS = ("what", "model", "runtime", "graph")
FIELDS = (
    *KEYS,
    *("passed", "budget_bytes", "plan_peak_bytes", "region_bytes", "growth_bytes", "growth_over_peak", "code_bytes"),
    "growth_of_peak_bytes",
    *("step_seconds", "step_seconds_without_region", "original_step_seconds", "cpu_seconds"),
    *("cpu_seconds_without_region", "predicted_bytes", "measured_bytes", "error", "load_peak_bytes", "limit", "note"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases and write their rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"default all: {', '.join(MODELS)}")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS), help="of growth")
    parser.add_argument("--device", default="host", help="whose constants and costs (default host)")
    parser.add_argument("--costs", type=Path, help="costs.json of a profile, whose constants of the process count")
    parser.add_argument("--time-limit", type=float, default=30.0, help="for each plan, in seconds (default 30)")
    parser.add_argument("--stock-python", default=os.environ.get("POET_STOCK_PYTHON"), metavar="PYTHON")
    parser.add_argument("-o", "--output", type=Path, help="CSV file (default: only print)")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker is not None:
        from process_workers import work

        print(json.dumps(work(json.loads(options.worker))), flush=True)
        return 0
    if options.stock_python is None:
        parser.error("--stock-python is needed: the interpreter of an environment with the stock onnxruntime")
    if unknown := set(options.models) - set(MODELS):
        parser.error(f"no model {sorted(unknown)[0]!r}: use {', '.join(MODELS)}")
    table = Table(options.output)
    with tempfile.TemporaryDirectory() as folder:
        for name in options.models or MODELS:
            for row in Cases(name, Path(folder), options).rows():
                table.add(row)
    return 0 if table.passed else 1


class Table:
    """Rows in a CSV file, written after each of them; what was there of other cases stays."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._rows: dict[tuple[str, ...], Row] = {}
        self.passed = True
        if path is not None and path.exists():
            lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
            for row in csv.DictReader(lines):
                self._rows[tuple(row[key] for key in KEYS)] = dict(row)

    def add(self, row: Row) -> None:
        """Print a row and write the file."""
        print("  ".join(f"{name}={value}" for name, value in row.items()), flush=True)
        self.passed = self.passed and row["passed"] != "NO"
        key = tuple(str(row[key]) for key in KEYS)
        self._rows.pop(key, None)
        self._rows[key] = row
        if self._path is None:
            return
        order = {name: place for place, name in enumerate(MODELS)}
        rows = sorted(self._rows.values(), key=lambda row: (KINDS.index(row["what"]), order[row["model"]]))
        with self._path.open("w", newline="", encoding="utf-8") as file:
            file.write("# python scripts/benchmarks/memory/process_memory.py -o scripts/results/process_memory.csv\n")
            writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


class Cases:
    """All cases of a model."""

    def __init__(self, name: str, folder: Path, options: argparse.Namespace) -> None:
        from paging_cases import exported

        self._name, self._options = name, options
        self._path = exported(name, folder, batch=MODELS[name])
        self._folder = self._path.parent

    def rows(self) -> Iterator[Row]:
        """Yield the rows of the kinds that were asked for."""
        kinds = self._options.kinds
        if "growth" in kinds:
            for target in self._options.targets:
                yield from self._growth(target)
        if "process" in kinds or "long" in kinds:
            yield from self._processes()
        if "beside" in kinds and self._name == "resnet18":
            yield from self._beside()

    def _rewrite(self, **limits: Any) -> Any:
        from poet_onnx import rewrite

        plain = {"device": self._options.device, "time_limit_seconds": self._options.time_limit, "gap": 0.05}
        if self._options.costs is not None and limits["target"] == "stock":
            plain["costs"] = self._options.costs
        return rewrite(self._path, **plain, **limits)

    def _growth(self, target: str) -> Iterator[Row]:
        """Yield how a process grows over steps: as given, in order, and with two budgets."""
        from poet_onnx.runtime.feeds import random_feeds

        ordered = self._rewrite(target=target, optimizer="none")
        feeds = self._folder / "feeds.npz"
        save_arrays(feeds, random_feeds(ordered.graph, 0))
        original = self._folder / f"original-{target}.onnx"
        save_original(self._path, ordered, original, target)
        as_given = self._run(target, {"mode": "steps", "model": str(original), "feeds": str(feeds)})
        plan = {"plan_peak_bytes": ordered.original.transient_peak_bytes, "region_bytes": 0}
        runs = {"found": as_given, "without": as_given, "original": as_given}
        yield self._growth_row(target, "original", runs, plan)
        results = {"ordered": ordered}
        for share in SHARES:
            results[f"{share:.0%}"] = self._planned(
                target=target, optimizer="none", activation_budget=int(share * ordered.rewritten.transient_peak_bytes)
            )
        for graph, result in results.items():
            yield self._rewritten_growth(target, graph, result, feeds, as_given)

    def _planned(self, **limits: Any) -> Any:
        """Rewrite for a budget; where no plan keeps to it, for the smallest one that works, or for a larger one."""
        from poet_onnx.errors import InfeasibleError, LimitReachedError

        kind = "ram_budget" if "ram_budget" in limits else "activation_budget"
        for _ in range(ATTEMPTS):
            try:
                return self._rewrite(**limits)
            except InfeasibleError as error:
                limits[kind] = error.smallest_budget_bytes
            except LimitReachedError:
                limits[kind] = int(LARGER * limits[kind])
        raise RuntimeError(f"{self._name}: no plan for {limits[kind]:,} bytes")

    def _rewritten_growth(self, target: str, graph: str, result: Any, feeds: Path, as_given: Row) -> Row:
        rewritten, bare = self._folder / "rewritten.onnx", self._folder / "bare.onnx"
        result.save(rewritten)
        result.save(bare)
        region_bytes = remove_region(bare)
        job = {"mode": "steps", "feeds": str(feeds)}
        found = self._run(target, {**job, "model": str(rewritten)})
        without = self._run(target, {**job, "model": str(bare)})
        found["growth_bytes"] += region_bytes
        found["growth_of_peak_bytes"] += region_bytes
        plan = {"plan_peak_bytes": result.rewritten.transient_peak_bytes, "region_bytes": region_bytes}
        runs = {"found": found, "without": without, "original": as_given}
        row = self._growth_row(target, graph, runs, plan)
        spends = result.rewritten.page_out_bytes or result.rewritten.recomputed_nodes
        slow = found["cpu_seconds"] > MOST_SLOWDOWN * without["cpu_seconds"]
        slower = not spends and found["cpu_seconds"] > as_given["cpu_seconds"]
        most = MOST_GROWTH * result.rewritten.transient_peak_bytes + MOST_GROWTH_BYTES + found["code_bytes"]
        reasons = [
            *(["grows"] if found["growth_bytes"] > most else []),
            *(["slower than without the region"] if slow and region_bytes else []),
            *(["slower than the original"] if slower else []),
        ]
        budget = result.budget_bytes if result.budget_kind == "activation" else ""
        return {**row, "passed": "NO" if reasons else "yes", "note": ", ".join(reasons), "budget_bytes": budget}

    def _growth_row(self, target: str, graph: str, runs: Mapping[str, Row], plan: Mapping[str, int]) -> Row:
        """Return a row.

        Args:
            target: runtime.
            graph: what ran, in words.
            runs: what it took as it is, "without" its region, and what the "original" took.
            plan: the plan's transient peak and region.
        """
        found, without = runs["found"], runs["without"]
        return {
            "what": "growth",
            "model": self._name,
            "runtime": target,
            "graph": graph,
            "passed": "",
            **plan,
            "growth_bytes": found["growth_bytes"],
            "growth_over_peak": f"{found['growth_bytes'] / plan['plan_peak_bytes']:.4f}",
            "code_bytes": found["code_bytes"],
            "growth_of_peak_bytes": found["growth_of_peak_bytes"],
            "step_seconds": f"{found['seconds']:.5f}",
            "step_seconds_without_region": f"{without['seconds']:.5f}",
            "original_step_seconds": f"{runs['original']['seconds']:.5f}",
            "cpu_seconds": f"{found['cpu_seconds']:.5f}",
            "cpu_seconds_without_region": f"{without['cpu_seconds']:.5f}",
        }

    def _processes(self) -> Iterator[Row]:
        """Yield what whole processes take, under limits equal to two budgets."""
        from poet_onnx.verification.process import write_random_parameters

        ordered = self._rewrite(target="stock", optimizer="adamw")
        parameters = self._folder / "parameters.safetensors"
        write_random_parameters(ordered.graph, parameters)
        transient = ordered.rewritten.transient_peak_bytes
        for share in SHARES:
            budget = round(ordered.process.peak_bytes - (1 - share) * transient)
            result = self._planned(target="stock", optimizer="adamw", ram_budget=budget)
            if "process" in self._options.kinds:
                yield self._process_row(result, f"{share:.0%}", parameters)
            if "long" in self._options.kinds and share == SHARES[0]:
                yield self._long_row(result, f"{share:.0%}", parameters)

    def _train(self, result: Any, parameters: Path, steps: int) -> Any:
        from poet_onnx.passes.metadata import read_settings
        from poet_onnx.verification.process import train, training_job

        path = self._folder / "process.onnx"
        result.save(path)
        settings = read_settings(result.model)
        job = training_job(result.model, settings, path, parameters, steps=steps, threads=None, page_dir=None)
        return train(job, result.budget_bytes, self._options.stock_python)

    def _process_row(self, result: Any, graph: str, parameters: Path) -> Row:
        trial, predicted = self._train(result, parameters, STEPS), result.process.peak_bytes
        row = self._base_row("process", graph, result, trial)
        if trial.figures is None:
            return row
        measured = trial.figures["peak_bytes"]
        error = measured - predicted
        keeps = measured <= result.budget_bytes
        near = abs(error) <= MOST_ERROR * predicted + MOST_ERROR_BYTES
        return row | {
            "passed": "yes" if keeps and near else "NO",
            "predicted_bytes": predicted,
            "measured_bytes": measured,
            "error": f"{error / predicted:+.4f}",
            "load_peak_bytes": trial.figures["load_peak_bytes"],
            "step_seconds": f"{statistics.median(trial.figures['step_seconds']):.5f}",
            "note": "" if keeps else "above the budget",
        }

    def _long_row(self, result: Any, graph: str, parameters: Path) -> Row:
        trial = self._train(result, parameters, LONG_STEPS)
        row = self._base_row("long", graph, result, trial)
        if trial.figures is None:
            return row
        peaks = trial.figures["step_peaks_bytes"]
        growth = peaks[-1] - peaks[STEPS - 1]
        return row | {
            "passed": "yes" if growth <= MOST_GROWTH_BYTES and peaks[-1] <= result.budget_bytes else "NO",
            "growth_bytes": growth,
            "measured_bytes": peaks[-1],
            "step_seconds": f"{statistics.median(trial.figures['step_seconds']):.5f}",
        }

    def _base_row(self, what: str, graph: str, result: Any, trial: Any) -> Row:
        return {
            "what": what,
            "model": self._name,
            "runtime": "stock",
            "graph": graph,
            "passed": "NO",
            "budget_bytes": result.budget_bytes,
            "plan_peak_bytes": result.rewritten.transient_peak_bytes,
            "region_bytes": result.region_bytes,
            "limit": trial.limit,
            "note": trial.ending,
        }

    def _beside(self) -> Iterator[Row]:
        """Yield what torch, onnxruntime-training and a TrainingSession take for the same five steps."""
        for mode in ("torch", "onnxruntime-training"):
            found = self._run("training", {"mode": mode, "folder": str(self._folder), "steps": STEPS})
            yield self._beside_row(mode, found["peak_bytes"], found["seconds"])
        result = self._rewrite(target="stock", optimizer="adamw")
        trial = self._train(result, self._folder / "checkpoint", STEPS)
        if trial.figures is None:
            raise RuntimeError(f"TrainingSession: {trial.ending}")
        seconds = statistics.median(trial.figures["step_seconds"])
        yield self._beside_row("TrainingSession", trial.figures["peak_bytes"], seconds)

    def _beside_row(self, graph: str, peak_bytes: int, seconds: float) -> Row:
        return {
            "what": "beside",
            "model": self._name,
            "runtime": "stock" if graph == "TrainingSession" else "training",
            "graph": graph,
            "passed": "",
            "measured_bytes": peak_bytes,
            "step_seconds": f"{seconds:.5f}",
        }

    def _run(self, target: str, job: Mapping[str, Any]) -> Row:
        """Run a worker of this script in a fresh process that has no setting of malloc."""
        python = self._options.stock_python if target == "stock" else sys.executable
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC", "GLIBC_"))}
        command = [python, __file__, "--worker", json.dumps({**job, "timed_steps": TIMED_STEPS, "steps": STEPS})]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{self._name}, {job}: {done.stderr[-2000:]}")
        return dict(json.loads(done.stdout.splitlines()[-1]))


def save_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Save arrays whose names a file of numpy could not have."""
    import numpy as np

    named = {f"feed_{index}": array for index, array in enumerate(arrays.values())}
    np.savez(path, names=np.array(list(arrays)), **named)


def save_original(path: Path, ordered: Any, target_path: Path, target: str) -> None:
    """Save a training graph as it was given, lowered for the stock runtime where that is to run it."""
    from poet_onnx.files.saving import save_model
    from poet_onnx.graph.extract import load_model
    from poet_onnx.passes.lowering import prepare

    model = load_model(path)
    prepare(target=target)(model)
    save_model(model, target_path)


def remove_region(path: Path) -> int:
    """Let a rewritten model run without its region, and return how many bytes that had."""
    import onnx

    model = onnx.load(path)
    nodes = [node for node in model.graph.node if (node.domain, node.op_type) == ("poet", "Arena")]
    sizes = [attribute.i for node in nodes for attribute in node.attribute if attribute.name == "region_bytes"]
    for node in nodes:
        model.graph.node.remove(node)
    onnx.save(model, path)
    return sum(sizes)


if __name__ == "__main__":
    sys.exit(main())
