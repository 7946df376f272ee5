#!/usr/bin/env python3
"""In which memory does training from a store past the page cache run, and how near is it to what the storage gives?

    PYTHONPATH=scripts python scripts/benchmarks/memory/store_cgroup.py --stock-python PYTHON -o OUT.csv

Each model is rewritten for `--store always` and 1.02 times the least RAM budget that is found, and trains so many steps
with direct I/O. `peak_mib` is VmHWM of a fresh process. `cgroup_mib` is the smallest memory cgroup, in steps of 1 MiB,
in which such a process comes to its end: a group counts what the process alone maps, and no code that others use too.
`step_seconds` is the median wall time of the steps behind the first two, less what they waited for a processor,
`storage_seconds` what the bytes of a step take at the rates that a store on this storage was measured to have, and
`ratio` the one over the other. A quiet machine is needed for times, and for groups the right to make them.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from store_memory import BUDGETS, LARGER, exported, known_rows, settings_of

WORKER = Path(__file__).with_name("store_curve_worker.py")
FIELDS = ("model", "budget_mib", "predicted_mib", "peak_mib", "cgroup_mib", "steps", "step_seconds")
FIELDS += ("read_mib", "written_mib", "storage_seconds", "ratio")
MIB = 2**20
JOINS = 'echo $$ > "$0/cgroup.procs" && exec "$@"'
Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the models and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", default=list(BUDGETS), help=f"default {', '.join(BUDGETS)}"
    )
    parser.add_argument("--stock-python", default=os.environ.get("POET_STOCK_PYTHON"), metavar="PYTHON")
    parser.add_argument("--steps", type=int, default=6, help="that each process trains (default 6)")
    parser.add_argument("-o", "--output", type=Path, required=True, help="CSV file, whose other rows stay")
    options = parser.parse_args(arguments)
    for name in options.models:
        with tempfile.TemporaryDirectory() as folder:
            row = measured(name, Path(folder), options)
        rows = [*(each for each in known_rows(options.output) if each["model"] != name), row]
        with options.output.open("w", newline="", encoding="utf-8") as file:
            file.write("# PYTHONPATH=scripts python scripts/benchmarks/memory/store_cgroup.py -o FILE\n")
            writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(sorted(rows, key=lambda each: each["model"]))
        print(*(f"{field}={value}" for field, value in row.items()), flush=True)
    return 0


def measured(name: str, folder: Path, options: argparse.Namespace) -> Row:
    """Return the row of a model."""
    from poet_onnx import rewrite
    from poet_onnx.costing.costs import Channel
    from poet_onnx.costing.device import load_device
    from poet_onnx.costing.flops import storage_work
    from poet_onnx.costing.store_traffic import store_written_bytes
    from poet_onnx.errors import InfeasibleError
    from poet_onnx.plan import Action
    from poet_onnx.profiler import measure_storage

    forward, settings = exported(name, folder), settings_of(name)
    try:
        rewrite(forward, store="always", ram_budget="20MiB", **settings)
        raise AssertionError("a process of 20 MiB")
    except InfeasibleError as error:
        budget = round(LARGER * (error.smallest_budget_bytes or 0))
    result = rewrite(forward, store="always", ram_budget=budget, **settings)
    net = folder / "net.onnx"
    result.save(net)
    nodes = {node.name: node for node in result.graph.nodes}
    runs = [nodes[step.subject] for step in result.plan.steps if step.action is Action.COMPUTE]
    read_bytes = sum(work.read_bytes for node in runs if (work := storage_work(result.graph, node)) is not None)
    written_bytes, storage = store_written_bytes(result.graph), load_device("host").storage
    assert storage is not None
    channel = Channel.of(measure_storage(folder), storage)
    seconds = read_bytes / channel.store_read_bytes_per_second + written_bytes / channel.store_write_bytes_per_second
    free = trained(net, None, options)
    assert free is not None, f"{name} does not train"
    return {
        "model": name,
        "budget_mib": round(budget / MIB, 1),
        "predicted_mib": round(result.process.peak_bytes / MIB, 1),
        "peak_mib": free["measured_mib"],
        "cgroup_mib": smallest(net, int(free["measured_mib"]) + 1, options),
        "steps": options.steps,
        "step_seconds": free["measured_seconds"],
        "read_mib": round(read_bytes / MIB),
        "written_mib": round(written_bytes / MIB),
        "storage_seconds": f"{seconds:.4g}",
        "ratio": f"{float(free['measured_seconds']) / seconds:.2f}",
    }


def smallest(net: Path, works_mib: int, options: argparse.Namespace) -> int:
    """Return the smallest cgroup in which a process trains, by bisection from one in which it likely does."""
    while trained(net, works_mib, options) is None:
        works_mib += 4
    fails_mib = works_mib // 2
    while works_mib - fails_mib > 1:
        middle = (works_mib + fails_mib) // 2
        works_mib, fails_mib = (works_mib, middle) if trained(net, middle, options) is None else (middle, fails_mib)
    return works_mib


def trained(net: Path, limit_mib: int | None, options: argparse.Namespace) -> Row | None:
    """Return what a process measured that trained, in a cgroup if there is a limit; None where it was killed."""
    from poet_onnx.verification.limits import memory_cgroup

    with tempfile.TemporaryDirectory(dir=net.parent) as folder:
        command = [options.stock_python, WORKER, net, Path(folder, "store"), "direct", folder, options.steps]
        line = [str(part) for part in command]
        if limit_mib is None:
            return dict(json.loads(subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True).stdout))
        with memory_cgroup(limit_mib * MIB) as group:
            done = subprocess.run(
                ["sh", "-c", JOINS, str(group), *line], check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        return dict(json.loads(done.stdout)) if done.returncode == 0 else None


if __name__ == "__main__":
    sys.exit(main())
