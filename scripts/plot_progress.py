#!/usr/bin/env python3
"""Draw incumbent and bound of the scheduler over time for the plotted cases of the benchmark.

python scripts/plot_progress.py -o scripts/results
writes one SVG file and one CSV file for each case. Needs the extras [training] and [plots].
"""

from __future__ import annotations

import argparse
import csv
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmark.cases import PLOTTED, Case
from benchmark.prices import Prices
from benchmark.problems import Prepared, Workshop
from benchmark.result import INFINITY, Effort, Point
from benchmark.running import run

ROOT = Path(__file__).resolve().parent.parent


def main(arguments: Sequence[str] | None = None) -> int:
    """Solve and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time-limit", type=float, default=120.0, metavar="SECONDS", help="default 120")
    parser.add_argument("--gap", type=float, default=0.001, help="relative gap at which to stop (default 0.001)")
    parser.add_argument("--models", type=Path, default=ROOT / ".cache" / "benchmark", metavar="DIR")
    parser.add_argument("-o", "--output", type=Path, default=Path(), metavar="DIR", help="where the files go")
    options = parser.parse_args(arguments)
    given = list(sys.argv[1:] if arguments is None else arguments)
    command = shlex.join(["python", "scripts/plot_progress.py", *given])
    workshop = Workshop(options.models, lambda text: print(f"  {text}", flush=True))
    options.output.mkdir(parents=True, exist_ok=True)
    for case in PLOTTED:
        print(case.name, flush=True)
        prepared = workshop.prepare(case)
        effort = Effort(options.time_limit, options.gap)
        solved = run("ours", prepared.problem, prepared.limits, prepared.variant.order, effort)
        if not solved.trace:
            print(f"error: {case.name}: {solved.note}", file=sys.stderr)
            return 1
        stem = f"progress-{case.model}-{case.device}-{round(100 * case.budget.value)}"
        write_trace(options.output / f"{stem}.csv", command, solved.trace)
        draw(options.output / f"{stem}.svg", case, prepared, solved.trace)
        print(f"  {options.output / stem}.svg ({solved.status}, {solved.trace[-1].seconds:.0f} s)")
    return 0


def write_trace(path: Path, command: str, trace: Sequence[Point]) -> None:
    """Write the points of a curve."""
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(f"# {command}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["seconds", "objective_joules", "bound_joules"])
        for point in trace:
            objective = f"{point.objective_joules:.8g}" if point.objective_joules < INFINITY else ""
            writer.writerow([f"{point.seconds:.3f}", objective, f"{point.bound_joules:.8g}"])


def draw(path: Path, case: Case, prepared: Prepared, trace: Sequence[Point]) -> None:
    """Draw both curves as overhead over the energy of the computations alone."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = case.name  # the same curve gives the same file
    from matplotlib import pyplot

    base = Prices(prepared.problem).base
    found = [point for point in trace if point.objective_joules < INFINITY]
    figure, axes = pyplot.subplots(figsize=(7.0, 4.0), layout="constrained")
    for label, points, joules in (
        ("incumbent", found, [point.objective_joules for point in found]),
        ("bound", trace, [point.bound_joules for point in trace]),
    ):
        seconds = [point.seconds for point in points]
        axes.step(seconds, [100.0 * (level - base) / base for level in joules], where="post", label=label)
    axes.set_xlabel("seconds, model building included")
    axes.set_ylabel("energy above the computations alone, %")
    axes.set_title(f"{case.model} on {case.device}, {case.budget} of the ordered peak")
    axes.margins(y=0.1)
    axes.set_xlim(left=0.0)
    axes.set_ylim(bottom=0.0)
    axes.legend()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(main())
