#!/usr/bin/env python3
"""Time how soon there is a plan: from the call of the scheduler to the first plan that the simulator accepts.

python scripts/first_plan.py -o CSV
Every case runs in a process of its own, as `poet-onnx rewrite` would plan it, and ends with its first plan. The models
are exported first if they are not there; that needs the extra [training].

start_seconds: from the start of the process until poet_onnx is imported.
read_seconds: loading and normalizing the model.
extract_seconds: from there to the first call of `schedule`: sizes, costs, and the order and peak that give budgets.
schedule_seconds: from that call to the first accepted plan, choosing an order and building the model included; where
gradients must be split, so are the proof that nothing fits without that, the splitting, and the calls for the parts.
With --profile, cases that take longer than 2 s run once more, and what took the time is printed.
"""

from __future__ import annotations

import argparse
import cProfile
import csv
import fnmatch
import io
import json
import math
import pstats
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

MODELS = (("resnet18", 1), ("vgg16", 1), ("bert-base", 1), ("resnet50", 1), ("mobilenet", 8), ("transformer-21", 1))
SHARES = (90, 75, 50, 25)
DEVICES = ("a72", "tx2")

SOON_SECONDS = 2.0
"""What a first plan may take."""

TOLD = 12
"""Lines of a profile that are printed."""

COLUMNS = ("case", "nodes", "start_seconds", "read_seconds", "extract_seconds", "schedule_seconds", "outcome")


@dataclass(frozen=True, slots=True)
class Case:
    """A model on a device with a share of its ordered peak as activation budget."""

    model: str
    batch: int
    device: str
    percent: int

    @property
    def name(self) -> str:
        """Return what --cases matches."""
        return f"{self.model}-b{self.batch}/{self.device}/{self.percent}%"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen cases, write the table; the exit code is 1 if a first plan comes late."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="*", metavar="PATTERN", help="shell pattern of case names (default all)")
    parser.add_argument("--profile", action="store_true", help="say what takes the time where it is more than 2 s")
    folder = ROOT / ".cache" / "benchmark"
    parser.add_argument("--models", type=Path, default=folder, metavar="DIR", help="where exported models are kept")
    parser.add_argument("-o", "--output", type=Path, default=Path("first_plan.csv"), metavar="CSV", help="the table")
    parser.add_argument("--worker", nargs=3, metavar=("MODEL", "DEVICE", "PERCENT"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        return _work(Path(options.worker[0]), options.worker[1], int(options.worker[2]), profiled=options.profile)
    cases = [Case(*model, device, percent) for model, device, percent in product(MODELS, DEVICES, SHARES)]
    cases = [case for case in cases if fnmatch.fnmatchcase(case.name, options.cases)]
    given = list(sys.argv[1:] if arguments is None else arguments)
    table = _kept_rows(options.output, cases)
    late = 0
    for case in cases:
        row = _run(case, options.models, profiled=False)
        late += row["schedule_seconds"] > SOON_SECONDS
        table[case.name] = [_cell(row[column]) for column in COLUMNS]
        print(", ".join(table[case.name]), flush=True)
        if options.profile and row["schedule_seconds"] > SOON_SECONDS:
            print(_run(case, options.models, profiled=True)["profile"], flush=True)
        _write(options.output, table, shlex.join(["python", "scripts/first_plan.py", *given]))
    print(f"{late} of {len(cases)} first plans took longer than {SOON_SECONDS:g} s")
    return 1 if late else 0


def _run(case: Case, models: Path, *, profiled: bool) -> dict[str, Any]:
    from benchmark.artifacts import training_model
    from benchmark.running import environment

    path = training_model(case.model, case.batch, models)
    command = [sys.executable, __file__, *(["--profile"] if profiled else [])]
    command += ["--worker", str(path), case.device, str(case.percent)]
    begin = time.time()
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    row = json.loads(done.stdout.splitlines()[-1])
    row["start_seconds"] -= begin
    return {"case": case.name, **row}


def _work(path: Path, device: str, percent: int, *, profiled: bool) -> int:
    """Plan one case up to its first plan, and print what it took as JSON."""
    from poet_onnx.errors import InfeasibleError
    from poet_onnx.graph.extract import load_model
    from poet_onnx.passes.normalize import normalize
    from poet_onnx.rewriting import planning
    from poet_onnx.rewriting.options import RewriteOptions
    from poet_onnx.rewriting.request import Request
    from poet_onnx.scheduling import Progress

    imported, begin = time.time(), time.monotonic()
    model = load_model(path)
    normalize()(model)
    loaded = time.monotonic()
    called: list[float] = []
    accepted: list[float] = []
    schedule = planning.schedule

    def noted(*given: Any, **options: Any) -> Any:
        called.append(time.monotonic())
        return schedule(*given, **options)

    def stop_at_first(progress: Progress) -> None:
        if progress.objective_joules < math.inf:
            accepted.append(time.monotonic())
            raise KeyboardInterrupt  # what it ends with takes time of its own, and does not count

    options = RewriteOptions(device=device, activation_budget=f"{percent}%", progress=stop_at_first)
    request = Request.of(options)
    planning.schedule = noted  # type: ignore[assignment]
    profile = cProfile.Profile()
    if profiled:
        profile.enable()
    try:
        plan = planning.answer_of(model, request).plan
        outcome = "a plan" if accepted else f"a plan, {plan.certificate.status}"
    except KeyboardInterrupt:
        outcome = "a plan"
    except InfeasibleError as error:
        outcome = f"infeasible, {error.smallest_budget_bytes} bytes would do"
    end = accepted[0] if accepted else time.monotonic()
    profile.disable()
    told = io.StringIO()
    if profiled:
        pstats.Stats(profile, stream=told).sort_stats("cumulative").print_stats("poet_onnx|pyscipopt", TOLD)
    calls = "" if len(called) == 1 else f" at call {len(called)}"
    print(
        json.dumps(
            {
                "nodes": len(model.graph),
                "start_seconds": imported,
                "read_seconds": loaded - begin,
                "extract_seconds": called[0] - loaded,
                "schedule_seconds": end - called[0],
                "outcome": outcome + calls,
                "profile": told.getvalue(),
            }
        )
    )
    return 0


def _cell(figure: object) -> str:
    return f"{figure:.3f}" if isinstance(figure, float) else str(figure)


def _kept_rows(table: Path, cases: Sequence[Case]) -> dict[str, list[str]]:
    """Return the rows of an earlier table that are not to be made again."""
    if not table.exists():
        return {}
    with table.open(encoding="utf-8", newline="") as file:
        rows = {row[0]: row for row in list(csv.reader(file))[2:]}
    return {name: row for name, row in rows.items() if name not in {case.name for case in cases}}


def _write(table: Path, rows: dict[str, list[str]], command: str) -> None:
    table.parent.mkdir(parents=True, exist_ok=True)
    with table.open("w", encoding="utf-8", newline="") as file:
        file.write(f"# {command}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(rows.values())


if __name__ == "__main__":
    sys.exit(main())
