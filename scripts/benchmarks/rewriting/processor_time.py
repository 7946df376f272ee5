#!/usr/bin/env python3
"""Compare the processor time that two installed versions of poet-onnx take for the same rewrites and inspections.

PYTHONPATH=scripts python scripts/benchmarks/rewriting/processor_time.py --before PYTHON --after PYTHON -o CSV
runs each command with both interpreters in turn, and writes the median of each. Plans are compared step by step.
Needs the extra [training], to export the models.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import resource
import shlex
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from fnmatch import fnmatchcase
from pathlib import Path

import onnx
import torch
from export_models import export_forward, quiet
from models import RECIPES

ROOT = Path(__file__).resolve().parents[3]
STOCK = ("--target", "stock", "--device", "a72")
LOSS = ("--loss", "cross-entropy")

CASES = (
    *((name, "rewrite", ("--ram-budget", "3GiB")) for name in ("resnet18", "mobilenet", "resnet50", "bert-base")),
    *((name, "rewrite", ("--activation-budget", "75%")) for name in ("resnet18", "mobilenet", "resnet50")),
    ("bert-base", "rewrite", ("--activation-budget", "25%")),
    *((name, "inspect", ()) for name in ("resnet18", "bert-base")),
)
"""Models, commands and budgets: the order fits, or a plan is solved for."""


@dataclass(frozen=True)
class Row:
    """What one command takes.

    Attributes:
        model, command: name of the recipe, and what is done with it.
        before_seconds, after_seconds: of the processor; medians.
        ratio: the second by the first.
        before_mebibytes, after_mebibytes: the most RAM that a run had.
        same_steps: whether both versions made the plan of the same steps; empty for an inspection.
    """

    model: str
    command: str
    before_seconds: float
    after_seconds: float
    ratio: float
    before_mebibytes: int
    after_mebibytes: int
    same_steps: bool | None


@dataclass(frozen=True)
class Run:
    """One run: seconds of the processor, KiB of RAM, and the steps of the plan, if any."""

    seconds: float
    kibibytes: int
    steps: object


def main(arguments: Sequence[str] | None = None) -> int:
    """Export the models, run all commands, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", required=True, metavar="PYTHON", help="interpreter of the older version")
    parser.add_argument("--after", required=True, metavar="PYTHON", help="interpreter of the newer one")
    parser.add_argument("--runs", type=int, default=5, help="of each command (default 5)")
    parser.add_argument(
        "--only", default="*", metavar="GLOB", help="of a model and a command, such as 'bert* inspect*'"
    )
    parser.add_argument("--models", type=Path, default=ROOT / ".cache" / "forward", metavar="DIR")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="CSV")
    options = parser.parse_args(arguments)
    options.models.mkdir(parents=True, exist_ok=True)
    with options.output.open("w", encoding="utf-8", newline="") as file:
        file.write("# PYTHONPATH=scripts python scripts/benchmarks/rewriting/processor_time.py ")
        file.write(f"--before PYTHON --after PYTHON --runs {options.runs} -o CSV\n")
        writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        for name, command, budget in CASES:
            if not fnmatchcase(f"{name} {shlex.join((command, *budget))}", options.only):
                continue
            path = forward(options.models, name)
            sides: list[list[Run]] = [[], []]
            for _ in range(options.runs):
                for runs, python in zip(sides, (options.before, options.after), strict=True):
                    runs.append(run(python, path, command, budget))
            row = compared(name, shlex.join((command, *budget)), *sides)
            print(row, flush=True)
            writer.writerow(asdict(row))
            file.flush()
    return 0


def forward(folder: Path, name: str) -> Path:
    """Return the forward model of a recipe, which is exported if it is not there."""
    path = folder / f"{name}.onnx"
    if not path.exists():
        torch.manual_seed(0)
        recipe = RECIPES[name]
        with quiet():
            onnx.save(export_forward(recipe.build(), recipe.inputs(1), ("output",)), path)
    return path


def run(python: str, path: Path, command: str, budget: Sequence[str]) -> Run:
    """Run the program beside an interpreter, and return what it took."""
    plan = path.with_suffix(".plan.json")
    files = (path.with_suffix(".out.onnx"), "--force", "--plan-out", plan) if command == "rewrite" else ("--json",)
    words = [Path(python).with_name("poet-onnx"), command, path, *files, *LOSS, *STOCK, *budget]
    measured = [sys.executable, __file__, "--measure", *map(str, words)]
    # Installed packages are compiled once, not with every command.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    found = subprocess.run(measured, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    seconds, kibibytes = found.stdout.split()
    steps = json.loads(plan.read_text(encoding="utf-8"))["steps"] if command == "rewrite" else None
    return Run(float(seconds), int(kibibytes), steps)


def measure(words: Sequence[str]) -> int:
    """Run a command and print seconds of the processor and KiB of RAM: alone in a process, for both are sums of it."""
    code = subprocess.run(words, stdout=subprocess.DEVNULL, check=False).returncode
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(used.ru_utime + used.ru_stime, used.ru_maxrss)
    return code


def compared(name: str, command: str, before: Sequence[Run], after: Sequence[Run]) -> Row:
    """Return the medians of both versions."""
    old, new = (statistics.median(run.seconds for run in runs) for runs in (before, after))
    ram = (max(run.kibibytes for run in runs) >> 10 for runs in (before, after))
    plans = [run.steps for run in (*before, *after)]
    same = None if plans[0] is None else all(steps == plans[0] for steps in plans)
    return Row(name, command, round(old, 2), round(new, 2), round(new / old, 3), *ram, same)


if __name__ == "__main__":
    sys.exit(measure(sys.argv[2:]) if sys.argv[1:2] == ["--measure"] else main())
