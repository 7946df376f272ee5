#!/usr/bin/env python3
"""Measure what the order for a budget saves over the memory-aware order, on every model, device and budget.

python scripts/order_gain.py -o CSV
All orders are solved alike, for --seconds each and to a tenth of a percent; "quick" columns are the plans that the
choice of the order looked at. The rival is an order with a cheaper quick plan that is not proven to be better than the
memory-aware one, so that only solving both can tell. Needs the extra [training] (to export the models).
"""

from __future__ import annotations

import argparse
import csv
import math
import shlex
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from benchmark.cases import Budget, Case
from benchmark.prices import Prices
from benchmark.problems import Prepared, Workshop

from poet_onnx.errors import InfeasibleError, LimitReachedError
from poet_onnx.plan import Step
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling import ordered_steps, schedule, smallest_budget
from poet_onnx.scheduling.liveness import Liveness
from poet_onnx.scheduling.order import Dependencies, peak_bound
from poet_onnx.scheduling.order_search import order_for
from poet_onnx.scheduling.steps import SimulatedPlan
from poet_onnx.simulate import simulate

ROOT = Path(__file__).resolve().parent.parent
MODELS = ("vgg16", "resnet18", "unet", "densenet", "mobilenet", "transformer", "bert-2", "resnet50", "bert-base")
DEVICES = ("tx2", "a72")
SHARES = (0.8, 0.6, 0.4, 0.25)
PLACES = (0.5, 0.0)
"""Budgets between the smallest that works with whole gradients and nearly the peak, after the shares of the peak."""

GAP = 0.001

NOTHING_JOULES = 1e-12
"""An overhead that is rounding."""


@dataclass(frozen=True, slots=True)
class Row:
    """One model on one device within one budget; overheads are joules above those of the computations.

    Attributes:
        split_bytes: parts of weight gradients, empty if they are whole.
        peak_bound_bytes: no order has a lower peak.
        rule_peak_bytes, chosen_peak_bytes: with nothing recomputed or paged.
        rule_smallest_bytes, chosen_smallest_bytes: smallest budgets in both orders; only where the budget is that.
        chosen: which order that is.
        relaxed_joules: no plan in the rule's order has less overhead; 0 where it was not needed.
        rival_joules: overhead of the best plan in the rival order, empty where there is no rival.
        gain: share of the rule's overhead that the chosen order saves.
        best_gain: the same for the best of all three.
    """

    model: str
    device: str
    budget: str
    split_bytes: int | None
    budget_bytes: int
    peak_bound_bytes: int
    rule_peak_bytes: int
    chosen_peak_bytes: int
    rule_smallest_bytes: int | None
    chosen_smallest_bytes: int | None
    chosen: str
    base_joules: float
    rule_quick_joules: float
    chosen_quick_joules: float
    relaxed_joules: float
    rule_joules: float | None
    rule_bound_joules: float | None
    chosen_joules: float | None
    chosen_bound_joules: float | None
    rival_joules: float | None
    gain: float | None
    best_gain: float | None
    order_seconds: float
    rule_seconds: float
    chosen_seconds: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all cases and write a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(MODELS), metavar="MODEL", help=f"default {' '.join(MODELS)}")
    parser.add_argument("--devices", default=",".join(DEVICES), metavar="LIST", help=f"default {','.join(DEVICES)}")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each solve (default 20)")
    models = ROOT / ".cache" / "benchmark"
    parser.add_argument("--models", type=Path, default=models, metavar="DIR", help="where exported models are kept")
    parser.add_argument("-o", "--output", type=Path, default=Path("order_gain.csv"), metavar="CSV", help="the table")
    options = parser.parse_args(arguments)
    workshop = Workshop(options.models, lambda text: print(f"  {text}", flush=True))
    rows: list[Row] = []
    with options.output.open("w", newline="", encoding="utf-8") as file:
        given = list(sys.argv[1:] if arguments is None else arguments)
        file.write(f"# {shlex.join(['python', 'scripts/order_gain.py', *given])}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([field.name for field in fields(Row)])
        for device in options.devices.split(","):
            for name in options.names:
                for row in _rows(workshop, name, device, options.seconds):
                    rows.append(row)
                    writer.writerow([f"{cell:.6g}" if isinstance(cell, float) else cell for cell in astuple(row)])
                    file.flush()
                    print(_line(row), flush=True)
    for line in _summary(rows):
        print(line)
    return 0


def _rows(workshop: Workshop, name: str, device: str, seconds: float) -> Iterator[Row]:
    cases = [Case(name, device, Budget("share", share)) for share in SHARES]
    cases += [Case(name, device, Budget("ladder", place), split=None) for place in PLACES]
    for case in cases:
        yield _row(case, workshop.prepare(case), seconds)


def _row(case: Case, prepared: Prepared, seconds: float) -> Row:
    problem, rule = prepared.problem, prepared.variant.order
    budget = prepared.limits.transient_bytes
    limits = Limits(budget)
    begin = time.monotonic()
    choice = order_for(problem, limits)
    order_seconds = time.monotonic() - begin
    base = Prices(problem).base
    smallest = case.budget == Budget("ladder", 0.0)
    rule_steps = _steps(choice.plan) if choice.order == rule else ()
    rule_joules, rule_bound, rule_seconds = _solve(problem, limits, rule, seconds=seconds, base=base, steps=rule_steps)
    chosen_joules, chosen_bound, chosen_seconds = rule_joules, rule_bound, rule_seconds
    if choice.order != rule:
        chosen_joules, chosen_bound, chosen_seconds = _solve(
            problem, limits, choice.order, seconds=seconds, base=base, steps=_steps(choice.plan)
        )
    rival_joules = _solve(problem, limits, choice.rival, seconds=seconds, base=base)[0] if choice.rival else None
    solved = [joules for joules in (rule_joules, chosen_joules, rival_joules) if joules is not None]
    return Row(
        model=case.model,
        device=case.device,
        budget="between" if str(case.budget).startswith("step") else str(case.budget),
        split_bytes=prepared.variant.part_bytes,
        budget_bytes=budget,
        peak_bound_bytes=peak_bound(Dependencies(Liveness(problem))),
        rule_peak_bytes=prepared.variant.peak_bytes,
        chosen_peak_bytes=simulate(problem, ordered_steps(choice.order)).transient_peak_bytes,
        rule_smallest_bytes=budget if smallest else None,
        chosen_smallest_bytes=smallest_budget(problem, choice.order).budget_bytes if smallest else None,
        chosen="memory-aware" if choice.order == rule else "another",
        base_joules=base,
        rule_quick_joules=_joules(choice.baseline_plan) - base,
        chosen_quick_joules=_joules(choice.plan) - base,
        relaxed_joules=max(0.0, choice.baseline_bound_joules - base),
        rule_joules=rule_joules,
        rule_bound_joules=rule_bound,
        chosen_joules=chosen_joules,
        chosen_bound_joules=chosen_bound,
        rival_joules=rival_joules,
        gain=_gain(rule_joules, chosen_joules),
        best_gain=_gain(rule_joules, min(solved, default=None)),
        order_seconds=order_seconds,
        rule_seconds=rule_seconds,
        chosen_seconds=chosen_seconds,
    )


def _steps(plan: SimulatedPlan | None) -> tuple[Step, ...]:
    return () if plan is None else plan.steps


def _joules(plan: SimulatedPlan | None) -> float:
    return math.inf if plan is None else plan.prediction.energy_joules


def _gain(rule_joules: float | None, joules: float | None) -> float | None:
    if rule_joules is None or joules is None:
        return None
    return 1 - joules / rule_joules if rule_joules > NOTHING_JOULES else 0.0


def _solve(
    problem: ScheduleProblem,
    limits: Limits,
    order: tuple[str, ...],
    *,
    seconds: float,
    base: float,
    steps: tuple[Step, ...] = (),
) -> tuple[float | None, float | None, float]:
    """Return the overhead of the best plan in an order, its bound, and how long that took; None where there is none."""
    begin = time.monotonic()
    known = (steps,) if steps else ()
    try:
        plan = schedule(problem, limits, gap=GAP, time_limit_seconds=seconds, order=order, known=known)
    except (InfeasibleError, LimitReachedError):
        return None, None, time.monotonic() - begin
    certificate = plan.certificate
    return certificate.objective_joules - base, certificate.bound_joules - base, time.monotonic() - begin


def _line(row: Row) -> str:
    if row.rule_joules is None or row.chosen_joules is None or row.gain is None:
        solved = "no plan"
    else:
        solved = f"overhead {row.rule_joules:.4g} -> {row.chosen_joules:.4g} J ({row.gain:+.1%})"
    if row.rival_joules is not None:
        solved += f", rival {row.rival_joules:.4g} J"
    quick = f"quick {row.rule_quick_joules:.4g} -> {row.chosen_quick_joules:.4g}"
    times = f"{row.order_seconds:.1f} + {row.rule_seconds:.1f} / {row.chosen_seconds:.1f} s"
    return f"{row.model} {row.device} {row.budget} parts {row.split_bytes}: {solved}, {quick}, {row.chosen}, {times}"


def _summary(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the gain of each model, and how often an order was worse by more than the gap."""
    for model in dict.fromkeys(row.model for row in rows):
        gains = [row.gain for row in rows if row.model == model and row.gain is not None]
        bests = [row.best_gain for row in rows if row.model == model and row.best_gain is not None]
        if gains:
            mean = f"{statistics.fmean(gains):+.1%} of the overhead on average, {min(gains):+.1%} to {max(gains):+.1%}"
            yield f"{model}: saves {mean}; with the rival {statistics.fmean(bests):+.1%}, at most {max(bests):+.1%}"
    worse = [row for row in rows if row.gain is not None and row.gain < -10 * GAP]
    yield f"dearer by more than the gap in {len(worse)} of {len(rows)} cases"


if __name__ == "__main__":
    sys.exit(main())
