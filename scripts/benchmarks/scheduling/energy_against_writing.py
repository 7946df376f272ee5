#!/usr/bin/env python3
"""Plan a step with less and less that it may write to storage, and draw the energy that the best plans take.

PYTHONPATH=scripts python scripts/benchmarks/scheduling/energy_against_writing.py -o CSV
writes CSV, and an SVG file beside it. Needs the extras [training] and [plots].
"""

from __future__ import annotations

import argparse
import csv
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from benchmark.cases import Budget, Case
from benchmark.problems import Workshop

from poet_onnx.errors import InfeasibleError, LimitReachedError
from poet_onnx.plan import Action
from poet_onnx.scheduling import schedule

ROOT = Path(__file__).resolve().parents[3]

CASES = (
    Case("resnet50", "tx2", Budget("share", 0.3), batch=8),
    Case("mobilenet", "tx2", Budget("share", 0.4), batch=8),
)

SHARES = (0.0, 0.25, 0.5, 0.75)
"""The limits, as shares of what a plan writes that has no such limit."""


@dataclass(frozen=True)
class Point:
    """The best plan for one limit.

    Attributes:
        case: model, device and budget.
        allowed_bytes: that a step may write; empty for no limit.
        written_bytes: that it writes.
        energy_joules: of the step; empty where no plan was found.
        bound_joules: no plan in this order takes less.
        base_joules: of computing once.
        status: of the plan's certificate.
        solve_seconds: of the scheduler.
    """

    case: str
    allowed_bytes: int | None
    written_bytes: int | None
    energy_joules: float | None
    bound_joules: float | None
    base_joules: float
    status: str
    solve_seconds: float | None


def main(arguments: Sequence[str] | None = None) -> int:
    """Plan, write and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time-limit", type=float, default=60.0, metavar="SECONDS", help="for each plan (default 60)")
    parser.add_argument("--models", type=Path, default=ROOT / ".cache" / "benchmark", metavar="DIR")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="CSV")
    options = parser.parse_args(arguments)
    given = list(sys.argv[1:] if arguments is None else arguments)
    command = shlex.join(
        ["PYTHONPATH=scripts", "python", "scripts/benchmarks/scheduling/energy_against_writing.py", *given]
    )
    workshop = Workshop(options.models, lambda text: print(f"  {text}", flush=True))
    points: list[Point] = []
    with options.output.open("w", encoding="utf-8", newline="") as file:
        file.write(f"# {command}\n")
        writer = csv.DictWriter(file, [field.name for field in fields(Point)], lineterminator="\n")
        writer.writeheader()
        for case in CASES:
            for point in curve(workshop, case, options.time_limit):
                print(point, flush=True)
                writer.writerow(asdict(point))
                file.flush()
                points.append(point)
    draw(options.output.with_suffix(".svg"), points)
    return 0


def curve(workshop: Workshop, case: Case, seconds: float) -> Iterator[Point]:
    """Yield the best plan without a limit, then those that may write nothing, a little, and more."""
    prepared = workshop.prepare(case)
    problem, limits, base = prepared.problem, prepared.limits, prepared.problem.base_joules
    free = schedule(problem, limits, time_limit_seconds=seconds)
    order = [step.subject for step in free.steps if step.action is Action.COMPUTE and not step.copy]
    written = free.prediction.page_out_bytes
    known = [free.steps]
    for allowed in (None, *(int(share * written) for share in SHARES)):
        limited = replace(limits, max_written_bytes=allowed)
        try:
            plan = (
                free
                if allowed is None
                else schedule(problem, limited, time_limit_seconds=seconds, order=order, known=known, explains=False)
            )
        except (InfeasibleError, LimitReachedError) as error:
            yield Point(case.name, allowed, None, None, None, base, type(error).__name__, None)
            continue
        if allowed is not None:
            known.append(plan.steps)
        certificate = plan.certificate
        yield Point(
            case.name,
            allowed,
            plan.prediction.page_out_bytes,
            plan.prediction.energy_joules,
            certificate.bound_joules,
            base,
            certificate.status,
            certificate.solve_seconds,
        )


def draw(path: Path, points: Sequence[Point]) -> None:
    """Draw the energy above that of computing once over what is written."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "writing"  # the same curve gives the same file
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.0, 4.0), layout="constrained")
    for name in dict.fromkeys(point.case for point in points):
        found = [(p.written_bytes, p.energy_joules, p.base_joules) for p in points if p.case == name]
        solved = sorted((w / 2**20, 100 * (e / b - 1)) for w, e, b in found if w is not None and e is not None)
        axes.plot(*zip(*solved, strict=True), marker="o", label=name)
    axes.set_xlabel("written a step, MiB")
    axes.set_ylabel("energy above computing once, %")
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


if __name__ == "__main__":
    sys.exit(main())
