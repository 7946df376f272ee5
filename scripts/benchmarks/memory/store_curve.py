#!/usr/bin/env python3
"""What does a step take for the RAM that it is given, from the smallest process to all in RAM?

    PYTHONPATH=scripts python scripts/benchmarks/memory/store_curve.py -o OUT.csv --stock-python PYTHON

For each model and device it asks `poet-onnx inspect --curve` for the smallest process and for all in RAM, and
`poet-onnx rewrite --store auto` for plans at so many RAM budgets between, evenly spread by their logarithm. Energy,
time and bytes are what these plans predict; `gap` is the one that was proven for the plan, of the parameters that it
keeps in RAM.

Device `here` is this machine, with what `poet-onnx profile` measures of the model, and is measured as well: a fresh
process trains so many steps with the store past the page cache, or in it with --page-cache, evaluates, writes a
checkpoint, loads it, and writes the trained model, with a step behind each call. All of that is in `predicted_mib`.
`measured_mib` is its VmHWM, `measured_seconds` the median wall time of the steps behind the first two, which fill the
store's file, less what the step waited for a processor, and `processor_seconds` what the processor worked meanwhile.
Times still need a quiet machine: others use the same storage and caches.

It goes on where it was stopped: rows that OUT.csv has are kept, and made again with --again. FOLDER keeps models and
what was measured of them, so that later rows have the budgets of the earlier ones. The exit code is 1 if a step took
10 % more or less time than predicted, or a process more than 2 MiB more or less.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from store_memory import exported, known_rows

MODELS = ("bert-base", "resnet50", "mobilenet-v2")
HERE = "here"
DEVICES = ("tx2", "a72", HERE)
WORKER = Path(__file__).with_name("store_curve_worker.py")

LARGER = 1.02
"""A plan for exactly the least budget may not be found again within the time."""

MOST_SECONDS_OFF, MOST_MIB_OFF = 0.10, 2.0
KEY = ("model", "device", "point")
FIELDS = (
    *KEY,
    *("budget_mib", "ending", "stored_mib", "predicted_mib", "energy_joules", "seconds", "read_mib", "written_mib"),
    *("recomputed_nodes", "paged_mib", "gap", "planning_seconds"),
    *("measured_mib", "measured_seconds", "processor_seconds", "access"),
)
COMMAND = "# PYTHONPATH=scripts python scripts/benchmarks/memory/store_curve.py -o FILE"
MIB = 2**20
Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the rows that are missing, and write each as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", default=MODELS, help=f"default {', '.join(MODELS)}")
    parser.add_argument("--devices", nargs="+", default=DEVICES, help=f"default {', '.join(DEVICES)}")
    parser.add_argument("--points", type=int, default=10, help="budgets for each model and device (default 10)")
    parser.add_argument("--planning-seconds", type=float, default=60, help="for each plan (default 60)")
    parser.add_argument("--steps", type=int, default=10, help="that each process trains (default 10)")
    parser.add_argument("--page-cache", action="store_true", help="keep the store in it, and profile storage so")
    parser.add_argument("--stock-python", default=os.environ.get("POET_STOCK_PYTHON"), metavar="PYTHON")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir(), "poet-store-curve"))
    parser.add_argument("--again", action="store_true", help="make rows again that are there")
    parser.add_argument("-o", "--output", type=Path, required=True, help="CSV file")
    options = parser.parse_args(arguments)
    rows = {key_of(row): row for row in known_rows(options.output)}
    for name in options.models:
        for device in options.devices:
            wanted = [(name, device, str(point)) for point in range(1, options.points + 1)]
            missing = [key for key in wanted if options.again or key not in rows]
            for row in made(name, device, missing, options) if missing else ():
                rows[key_of(row)] = row
                write(options.output, rows.values())
                print(*(f"{field}={value}" for field, value in row.items() if value != ""), flush=True)
    return 0 if all(map(is_near, rows.values())) else 1


def key_of(row: Row) -> tuple[str, ...]:
    """Return what tells a row from others."""
    return tuple(str(row[field]) for field in KEY)


def write(path: Path, rows: Any) -> None:
    """Write all rows, those of a curve from the smallest budget on."""
    part = path.with_name(f"{path.name}.part")
    with part.open("w", newline="", encoding="utf-8") as file:
        file.write(f"{COMMAND}\n")
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda row: (row["model"], row["device"], int(row["point"]))))
    part.replace(path)


def is_near(row: Row) -> bool:
    """Return whether what was measured is near what was predicted; True where nothing was measured."""
    if row["measured_mib"] == "":
        return True
    off = abs(float(row["measured_seconds"]) / float(row["seconds"]) - 1)
    return off <= MOST_SECONDS_OFF and abs(float(row["measured_mib"]) - float(row["predicted_mib"])) <= MOST_MIB_OFF


def made(name: str, device: str, keys: Sequence[tuple[str, str, str]], options: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows of a model on a device."""
    folder = options.folder / name
    folder.mkdir(parents=True, exist_ok=True)
    forward = folder / "forward.onnx"
    if not forward.exists():
        exported(name, folder)
    costs: Path | None = None
    profile = ["--device", "host" if device == HERE else device]
    if device == HERE:
        costs = folder / f"costs-{access(options)}.json"
        if not costs.exists():
            poet(options, "profile", forward, *profile, *(["--page-cache"] * options.page_cache), "-o", costs)
    ends = folder / f"curve-{device}.json"
    if not ends.exists():
        ends.write_text(poet(options, "inspect", forward, *profile, "--curve", "--json").stdout, encoding="utf-8")
    profile += ["--costs", os.fspath(costs)] if costs is not None else []
    curve = [point["process_bytes"] for point in json.loads(ends.read_text(encoding="utf-8"))["curve"]]
    least, most = LARGER * curve[0], LARGER * curve[-1]
    for key in keys:
        share = (int(key[2]) - 1) / max(1, options.points - 1)
        budget = round(math.exp((1 - share) * math.log(least) + share * math.log(most)))
        row = dict.fromkeys(FIELDS, "") | dict(zip(KEY, key, strict=True))
        row |= {"budget_mib": round(budget / MIB, 1), "planning_seconds": options.planning_seconds}
        yield row | planned(forward, folder / "net.onnx", budget, profile, options, measures=device == HERE)


def access(options: argparse.Namespace) -> str:
    """Return how a store is read and written."""
    return "cached" if options.page_cache else "direct"


def poet(options: argparse.Namespace, command: str, model: Path, *more: object, check: bool = True) -> Any:
    """Run a command of poet-onnx for the stock runtime."""
    line = [options.stock_python, "-m", "poet_onnx", command, model, *more, "--loss", "cross-entropy"]
    line += ["--target", "stock", "--optimizer", "adamw"]
    return subprocess.run([*map(str, line)], check=check, stdout=subprocess.PIPE, text=True)


def planned(
    forward: Path, net: Path, budget: int, profile: Sequence[str], options: argparse.Namespace, *, measures: bool
) -> Row:
    """Return what a plan for a budget predicts, and what was measured of it."""
    asked = ["--ram-budget", budget, "--store", "auto", "--time-limit", options.planning_seconds, "--gap", 0.01]
    done = poet(options, "rewrite", forward, net, *profile, *asked, "--force", "--json", check=False)
    if done.returncode:
        return {"ending": f"exit code {done.returncode}"}
    told = json.loads(done.stdout)
    store = told["store"] or {"read_bytes": 0, "written_bytes": 0}
    row = {
        "ending": told["status"],
        "predicted_mib": round(told["process_peak_bytes"] / MIB, 1),
        "energy_joules": f"{told['energy_joules']:.5g}",
        "seconds": f"{told['seconds']:.4g}",
        "read_mib": round((store["read_bytes"] + told["page_in_bytes"]) / MIB, 1),
        "written_mib": round((store["written_bytes"] + told["page_out_bytes"]) / MIB, 1),
        "recomputed_nodes": told["recomputed_nodes"],
        "paged_mib": round(told["page_out_bytes"] / MIB, 1),
        "gap": f"{told['gap']:.4f}",
    }
    if not measures:
        return row
    with tempfile.TemporaryDirectory(dir=net.parent) as folder:
        at = Path(folder, "store") if told["store"] else ""
        command = [options.stock_python, WORKER, net, at, access(options), folder, options.steps]
        done = subprocess.run([*map(str, command)], check=True, stdout=subprocess.PIPE, text=True)
    return row | json.loads(done.stdout) | {"access": access(options)}


if __name__ == "__main__":
    sys.exit(main())
