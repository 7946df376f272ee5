#!/usr/bin/env python3
"""Compare schedulers on the same problems: ours, its quick plan, and the paper's program.

python scripts/benchmark_scheduling.py --quick -o quick.csv
Every method runs in a process of its own and gets the same graph, order, costs and budget; every plan is judged by the
same simulator. `poet-onnx compare` has the other published methods. Needs the extras [training] (to export the models)
and [plots].
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import platform
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmark.cases import CASES, QUICK, Case
from benchmark.problems import Workshop
from benchmark.result import Effort
from benchmark.rows import Row, Table, make_row
from benchmark.running import run
from benchmark.worker import METHODS

ROOT = Path(__file__).resolve().parent.parent
OUR_SECONDS, OTHERS_SECONDS = 60.0, 600.0
"""Time limits of the solvers: what we allow ourselves, and what the paper allowed."""

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen cases with the chosen methods."""
    options = _parser().parse_args(arguments)
    cases = _chosen(options.cases, options.quick)
    if options.list:
        print("\n".join(case.name for case in cases))
        return 0
    methods = [name.strip() for name in options.methods.split(",")]
    unknown = [name for name in methods if name not in METHODS]
    if unknown or not cases:
        what = f"method {unknown[0]!r}; there are {', '.join(METHODS)}" if unknown else f"case like {options.cases!r}"
        print(f"error: there is no {what}.", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that no solver is left behind
    workshop = Workshop(options.models, lambda text: print(f"  {text}", flush=True))
    try:
        with Table(options.output, _comments(arguments)) as table:
            for number, case in enumerate(cases, start=1):
                print(f"[{number}/{len(cases)}] {case.name}", flush=True)
                prepared = workshop.prepare(case)
                for method in methods:
                    solved = run(
                        method, prepared.problem, prepared.limits, prepared.variant.order, _effort(options, method)
                    )
                    row = make_row(case, method, prepared, solved)
                    table.add(row)
                    print(f"  {_summary(row)}", flush=True)
    except KeyboardInterrupt:
        print(f"interrupted; the finished rows are in {options.output}", file=sys.stderr)
        return INTERRUPTED
    print(f"{options.output}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="*", metavar="PATTERN", help="shell pattern of case names (default all)")
    parser.add_argument("--quick", action="store_true", help="four small cases, 20 s for each method")
    parser.add_argument("--list", action="store_true", help="print the names of the chosen cases and stop")
    parser.add_argument("--methods", default=",".join(METHODS), metavar="LIST", help=f"default {','.join(METHODS)}")
    parser.add_argument(
        "--time-limit",
        type=float,
        metavar="SECONDS",
        help=f"for every solver (default {OUR_SECONDS:.0f} for ours, {OTHERS_SECONDS:.0f} for others, 20 with --quick)",
    )
    parser.add_argument("--gap", type=float, default=0.01, help="relative gap of the energy asked for (default 0.01)")
    parser.add_argument("--seed", type=int, default=0, help="of the solvers' random numbers (default 0)")
    models = ROOT / ".cache" / "benchmark"
    parser.add_argument("--models", type=Path, default=models, metavar="DIR", help="where exported models are kept")
    parser.add_argument("-o", "--output", type=Path, default=Path("benchmark.csv"), metavar="CSV", help="the table")
    return parser


def _chosen(pattern: str, quick: bool) -> list[Case]:
    """Return the cases that match, each once."""
    matching = [case for case in CASES if fnmatch.fnmatchcase(case.name, pattern)]
    return [case for case in matching if case.name in QUICK] if quick else matching


def _effort(options: argparse.Namespace, method: str) -> Effort:
    seconds = options.time_limit
    if seconds is None:
        own = OUR_SECONDS if method in ("ours", "quick") else OTHERS_SECONDS
        seconds = 20.0 if options.quick else own
    return Effort(seconds, options.gap, options.seed)


def _comments(arguments: Sequence[str] | None) -> list[str]:
    """Return what a reader needs to make the table again; the command comes first."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    packages = []
    for package in ("poet-onnx", "pyscipopt"):
        try:
            packages.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            packages.append(f"{package} absent")
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    command = shlex.join(["python", "scripts/benchmark_scheduling.py", *given])
    return [command, f"{machine}; {', '.join(packages)}; {time.strftime('%Y-%m-%d')}"]


def _summary(row: Row) -> str:
    energy = f"overhead {row.overhead_joules:.5g} J" if row.overhead_joules is not None else "no plan"
    gap = f"gap {row.gap:.2%}" if row.gap is not None else "no bound"
    overhead_gap = f"ovgap {row.overhead_gap:.1%}" if row.overhead_gap is not None else ""
    took = f"{row.build_seconds + row.solve_seconds:.1f} s"
    return f"{row.method:16s} {row.status:11s} {row.verdict:8s} {energy} {gap} {overhead_gap} {took} {row.note}"


if __name__ == "__main__":
    sys.exit(main())
