#!/usr/bin/env python3
"""What does a change of the budget take while a model trains, and does the process keep to each budget?

    PYTHON scripts/benchmarks/memory/budget_changes.py MODEL.onnx --steps 300 --changes 100 -o CSV

MODEL was written by `poet-onnx rewrite --ram-budgets`, with its other files beside it. A process trains it while its
budget changes at random, another one without changes; both evaluate, save, resume and export, too. A row for each
budget: the median seconds of a step and of a change to it, the most that the kernel counted (VmHWM) in steps with it
and while it came, and the budget that held then. The exit code is 1 where losses differ or the kernel counted more than
a budget.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

COLUMNS = ("budget_bytes", "steps", "step_seconds", "peak_bytes", "changes", "change_seconds", "change_excess_bytes")
WORKER = Path(__file__).with_name("budget_changes_worker.py")


def rows_of(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each budget."""
    rows = []
    for budget in sorted({step["budget"] for step in steps}):
        own = [step for step in steps if step["budget"] == budget]
        changed = [step for step in own if step["change_seconds"] is not None]
        seconds = [step["change_seconds"] for step in changed]
        values = (
            budget,
            len(own),
            f"{statistics.median(step['seconds'] for step in own):.4f}",
            max(step["peak_bytes"] for step in own),
            len(changed),
            f"{statistics.median(seconds):.4f}" if seconds else "",
            max((step["excess_bytes"] for step in changed), default=""),
        )
        rows.append(dict(zip(COLUMNS, values, strict=True)))
    return rows


def main() -> int:
    """Run the benchmark; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--changes", type=int, default=100)
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    command = [sys.executable, str(WORKER), str(given.model), str(given.steps)]
    runs = []
    for changes in (given.changes, 0):
        done = subprocess.run([*command, str(changes)], check=True, stdout=subprocess.PIPE, text=True)
        runs.append(json.loads(done.stdout))
    changing, steady = runs
    rows = rows_of(changing)
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(given.output.open("w", encoding="utf-8", newline="")) if given.output else sys.stdout
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    same = [step["loss"] for step in changing] == [step["loss"] for step in steady]
    kept = all(step["peak_bytes"] <= step["budget"] and step.get("excess_bytes", 0) <= 0 for step in changing)
    said = ("losses are equal" if same else "losses differ", "budgets are kept" if kept else "a budget is exceeded")
    print("; ".join(said))
    return 0 if same and kept else 1


if __name__ == "__main__":
    sys.exit(main())
