#!/usr/bin/env python3
"""How much of the transfers' time a step hides, and how well its time is predicted, on a storage that can hide all.

    python scripts/benchmarks/paging/paging_overlap.py resnet18:8:75% -o CSV

For each case (model:batch:activation budget): this machine is profiled, the slowest storage is found at which the plan
hides every transfer, or as much of them as it does at any speed where memory lets one wait, the graph is planned for
it, and runs with a page store that is throttled to the same figures. Original and rewritten steps run in turns, each
case in a process of its own. Times are medians of wall time: run it on a machine that does nothing else. What the
steps' thread computed and waited for transfers, without what other work on the machine took from it, stands in the last
columns.

A machine that others share has no one speed. So right before its steps the original graph is profiled once more, and
the plan's time predicted from that; where the original itself, which pages nothing, then takes another time than it was
predicted to, the machine has changed in between, and both are done again. Nothing about the rewritten graph decides.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

from paging_cases import (
    Stepper,
    exported,
    interleaved_medians,
    show,
    throttled_costs,
    throttled_device,
    write_table,
)

from poet_onnx.costing.costs import cost_table
from poet_onnx.costing.measured import MeasuredCosts
from poet_onnx.plan import Action, Prediction, Step
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.profiler import measure
from poet_onnx.profiler.timing import StepTime
from poet_onnx.rewriting.rewrite import RewriteResult, rewrite
from poet_onnx.runtime import PagingOptions, PagingStatistics, Throttle, count_paging
from poet_onnx.runtime.feeds import random_feeds
from poet_onnx.simulate import simulate
from poet_onnx.transfers import overlap

DEFAULT_CASES = ["resnet18:8:75%", "bert-base:1:92%"]
LATENCY_SECONDS = 0.0002
SLOWEST_BYTES_PER_SECOND, FASTEST_BYTES_PER_SECOND = 5e6, 5e9
CONTROL = 0.02
"""By which the original's step may miss its prediction in a run that counts."""
HIDDEN = 0.999
"""Share of what a plan can hide of the transfers' time, that it must hide to count as hiding all of it."""
FASTER = 1.4
"""By which each storage that is planned for is faster than the one before, until one hides what the first plan did."""


@dataclass(frozen=True)
class Settings:
    """How a case is run; see the command line."""

    page_dir: Path | None
    steps: int
    warmup: int
    repetitions: int
    attempts: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases and write their rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=DEFAULT_CASES, metavar="MODEL:BATCH:BUDGET")
    parser.add_argument("-o", "--output", type=Path, help="CSV file (default: only print)")
    parser.add_argument("--page-dir", type=Path, help="directory of the page file")
    parser.add_argument("--steps", type=int, default=20, help="timed steps of each graph")
    parser.add_argument("--warmup", type=int, default=3, help="steps before them")
    parser.add_argument("--repetitions", type=int, default=20, help="steps that the profiler times")
    parser.add_argument("--attempts", type=int, default=6, help="to profile and run while the machine keeps its speed")
    options = parser.parse_args(arguments)
    settings = Settings(options.page_dir, options.steps, options.warmup, options.repetitions, options.attempts)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for case in options.cases:
            # A process of its own for each, as a user's would be: what ran before shapes the heap, and so the times.
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                rows.append(pool.submit(run_case, case, Path(folder), settings).result())
            show(rows[-1])
    write_table(options.output, rows)
    return 0


def run_case(case: str, folder: Path, settings: Settings) -> Mapping[str, object]:
    """Return the row of a case such as resnet18:8:75%."""
    name, batch, budget = case.split(":")
    path = exported(name, folder, batch=int(batch))
    throttle = _throttle(FASTEST_BYTES_PER_SECOND)
    measured = measure(path, throttled_device(throttle), page_cache=True, repetitions=settings.repetitions)
    throttle, result = _planned(path, measured, budget)
    rewritten = folder / f"{name}.poet.onnx"
    result.save(rewritten)
    feeds = random_feeds(result.graph, 0)
    steppers = [
        Stepper(path, feeds, page_dir=settings.page_dir),
        Stepper(rewritten, feeds, page_dir=settings.page_dir, paging=PagingOptions(throttle=throttle)),
    ]
    runs: list[Run] = []
    while not runs or (runs[-1].control > CONTROL and len(runs) < settings.attempts):
        measured = measure(path, throttled_device(throttle), page_cache=True, repetitions=settings.repetitions)
        runs.append(_run(steppers, result, measured, throttle, settings))
    run = min(runs, key=lambda run: run.control)
    transfers = transfer_seconds(result)
    return {
        "model": name,
        "batch": batch,
        "budget": budget,
        "storage_bytes_per_second": f"{throttle.page_in_bytes_per_second:.0f}",
        "transfers": sum(1 for step in result.plan.steps if step.action in _STARTS),
        "moved_bytes": run.predicted.page_out_bytes + run.predicted.page_in_bytes,
        "predicted_transfer_seconds": f"{transfers:.6f}",
        "measured_transfer_seconds": f"{run.moved.transfer_seconds / settings.steps:.6f}",
        "planned_hidden": f"{hidden(result.rewritten, transfers):.4f}",
        "predicted_hidden": f"{hidden(run.predicted, transfers):.4f}",
        "measured_hidden": f"{run.moved.hidden_share:.4f}",
        "runs": len(runs),
        "predicted_original_seconds": f"{run.predicted_original.seconds:.6f}",
        "measured_original_seconds": f"{run.original.wall_seconds:.6f}",
        "original_over_predicted": f"{run.original.wall_seconds / run.predicted_original.seconds:.4f}",
        "predicted_seconds": f"{run.predicted.seconds:.6f}",
        "measured_seconds": f"{run.rewritten.wall_seconds:.6f}",
        "predicted_over_measured": f"{run.predicted.seconds / run.rewritten.wall_seconds:.4f}",
        "original_processor_seconds": f"{run.original.cpu_seconds:.6f}",
        "processor_and_waiting_seconds": f"{run.busy_seconds(settings.steps):.6f}",
        "predicted_over_processor_and_waiting": f"{run.predicted.seconds / run.busy_seconds(settings.steps):.4f}",
    }


@dataclass(frozen=True)
class Run:
    """A profile's predictions, and what the steps right behind it took."""

    predicted_original: Prediction
    predicted: Prediction
    original: StepTime
    rewritten: StepTime
    moved: PagingStatistics

    @property
    def control(self) -> float:
        """By which part of it the original's step missed its prediction."""
        return abs(self.original.wall_seconds / self.predicted_original.seconds - 1.0)

    def busy_seconds(self, steps: int) -> float:
        """Return what a rewritten step's thread computed and waited for transfers."""
        return self.rewritten.cpu_seconds + self.moved.waited_seconds / steps


def _planned(path: Path, measured: MeasuredCosts, budget: str) -> tuple[Throttle, RewriteResult]:
    """Return the slowest storage of which a plan hides all transfers, as far as that is found, and the plan for it."""
    first = _plan(path, measured, budget, _throttle(FASTEST_BYTES_PER_SECOND))
    wanted = HIDDEN * hidden(first.rewritten, transfer_seconds(first))
    throttle = slowest_that_hides(first, measured, wanted)
    rate = throttle.page_in_bytes_per_second or FASTEST_BYTES_PER_SECOND
    while True:
        throttle = _throttle(rate)
        result = _plan(path, measured, budget, throttle)
        if rate == FASTEST_BYTES_PER_SECOND or hidden(result.rewritten, transfer_seconds(result)) >= wanted:
            return throttle, result
        # Planned for this storage, other tensors are paged, and these take longer than the steps beside them.
        rate = min(FASTER * rate, FASTEST_BYTES_PER_SECOND)


def _run(
    steppers: Sequence[Stepper], result: RewriteResult, measured: MeasuredCosts, throttle: Throttle, settings: Settings
) -> Run:
    """Predict both graphs' steps from a profile and run them."""
    costs = cost_table(result.graph, throttled_device(throttle), throttled_costs(measured, throttle))
    problem = ScheduleProblem(result.graph, costs)
    plain = [step for step in result.plan.steps if step.action is Action.COMPUTE]
    for _ in range(settings.warmup):
        for stepper in steppers:
            stepper.run()
    with count_paging() as paging:
        original, rewritten = interleaved_medians(steppers, steps=settings.steps)
        moved = paging.statistics
    predicted = simulate(problem, result.plan.steps, result.plan.limits)
    return Run(simulate(problem, plain), predicted, original, rewritten, moved)


_STARTS = (Action.PAGE_OUT_START, Action.PAGE_IN_START)


def _throttle(bytes_per_second: float) -> Throttle:
    return Throttle(
        page_out_bytes_per_second=bytes_per_second,
        page_in_bytes_per_second=bytes_per_second,
        page_out_latency_seconds=LATENCY_SECONDS,
        page_in_latency_seconds=LATENCY_SECONDS,
    )


def _plan(path: Path, measured: MeasuredCosts, budget: str, throttle: Throttle) -> RewriteResult:
    device = throttled_device(throttle)
    costs = throttled_costs(measured, throttle)
    return rewrite(path, device=device, costs=costs, activation_budget=budget, recompute=False, gap=0.05)


def transfer_seconds(result: RewriteResult) -> float:
    """Return what all transfers of a plan take, as predicted."""
    costs = result.costs
    tables = {Action.PAGE_OUT_START: costs.page_out, Action.PAGE_IN_START: costs.page_in}
    return sum(tables[step.action][step.subject].seconds for step in result.plan.steps if step.action in tables)


def hidden(prediction: Prediction, transfers: float) -> float:
    """Return the share of the transfers' time that does not stop the step."""
    return 1.0 - prediction.stall_seconds / transfers


def slowest_that_hides(result: RewriteResult, measured: MeasuredCosts, wanted: float) -> Throttle:
    """Return the slowest storage, within 2 %, at which a share of the time of a plan's transfers can hide."""
    whole = tuple(_side_by_side(result.plan.steps))

    def hides(bytes_per_second: float) -> bool:
        throttle = _throttle(bytes_per_second)
        costs = cost_table(result.graph, throttled_device(throttle), throttled_costs(measured, throttle))
        problem, limits = ScheduleProblem(result.graph, costs), result.plan.limits
        steps = overlap(problem, limits, whole)
        found = replace(result, plan=replace(result.plan, steps=steps), costs=costs)
        return hidden(simulate(problem, steps, limits), transfer_seconds(found)) >= wanted

    low, high = SLOWEST_BYTES_PER_SECOND, FASTEST_BYTES_PER_SECOND
    while high > 1.02 * low:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if hides(middle) else (middle, high)
    return _throttle(high)


def _side_by_side(steps: Sequence[Step]) -> list[Step]:
    """Return the steps with a page-out's end right behind its start, and a page-in's start right before its end."""
    ends = {Action.PAGE_OUT_START: Action.PAGE_OUT_END, Action.PAGE_IN_END: Action.PAGE_IN_START}
    found: list[Step] = []
    for step in steps:
        if step.action is Action.PAGE_OUT_START:
            found += [step, Step(ends[step.action], step.subject)]
        elif step.action is Action.PAGE_IN_END:
            found += [Step(ends[step.action], step.subject), step]
        elif step.action is Action.COMPUTE:
            found.append(step)
    return found


if __name__ == "__main__":
    sys.exit(main())
