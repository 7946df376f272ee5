#!/usr/bin/env python3
"""Measure how far the best plan of the scheduler's class is from the best plan there is, on small random graphs.

PYTHONPATH=tests/support python scripts/class_gap.py -o CSV
The scheduler solves to the end; the oracle is exhaustive search over all plans in the same order. Where that gives up,
the paper's program takes its place if SCIP finishes it; it is a class too, neither wider nor narrower than ours, so
that there the difference may have either sign. All count the same bytes: tokens of transfers, and values so small that
the scheduler would leave them in RAM, are switched off. Backward nodes may be recomputed in half of the graphs. Every
second graph is a chain with few skips, the others have branches, skips across the net, concatenations, wide fan-out
and nodes with several outputs.
With --graphs 800 --nodes 25 --states 250000 --paper-seconds 5, six graphs of the 535 that the search finishes have a
cheaper plan outside the class: by 1.2, 1.3, 1.7, 4.1, 6.3 and 20 % of the energy. Kinds of such plans that were seen:
values are made again before one node in another order than the nodes', to have less in RAM at once; a value is made
again for later nodes from one that is itself made again there.
"""

from __future__ import annotations

import argparse
import csv
import random
import shlex
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields, replace
from itertools import product
from pathlib import Path

from benchmark.exhaustive import least_overhead
from benchmark.judge import judge
from benchmark.paper import solve_paper
from benchmark.prices import Prices
from benchmark.result import Effort
from proofs.finding import exact_bytes
from random_graphs import SHAPES, random_dag, random_graph

from poet_onnx.graph import Phase
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling import memory_aware_order, ordered_steps, schedule, smallest_budget
from poet_onnx.simulate import simulate


@dataclass(frozen=True, slots=True)
class Sample:
    """One graph at one budget.

    Attributes:
        shape: "skips" for the chains, else one of the shapes of random graphs.
        backward: whether backward nodes may be recomputed.
        place: of the budget between the smallest that works in the class and the ordered peak.
        oracle: "search" or "paper".
        difference: (ours - oracle) / oracle, energy of the step.
        overhead_difference: the same over the energy above the computations alone.
        below: whether the search finds a plan in a budget smaller than the smallest of the class; empty if not asked.
    """

    seed: int
    shape: str
    nodes: int
    backward: bool
    place: float
    oracle: str
    base_joules: float
    ours_joules: float
    oracle_joules: float
    difference: float
    overhead_difference: float
    below: bool | None


def main(arguments: Sequence[str] | None = None) -> int:
    """Sample, write the table, print the distribution."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", type=int, default=300, help="how many (default %(default)s)")
    parser.add_argument("--nodes", type=int, default=24, help="most nodes of a graph (default %(default)s)")
    parser.add_argument("--states", type=int, default=400_000, help="at which search gives up (default %(default)s)")
    parser.add_argument("--paper-seconds", type=float, default=10.0, help="time limit of the paper's program")
    parser.add_argument("-o", "--output", type=Path, default=Path("class_gap.csv"), metavar="CSV", help="the table")
    options = parser.parse_args(arguments)
    given = list(sys.argv[1:] if arguments is None else arguments)
    samples: list[Sample] = []
    unsolved = 0
    options.output.parent.mkdir(parents=True, exist_ok=True)
    with options.output.open("w", encoding="utf-8", newline="") as file:
        file.write(f"# PYTHONPATH=tests/support {shlex.join(['python', 'scripts/class_gap.py', *given])}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([field.name for field in fields(Sample)])
        for sample in _samples(options):
            if sample is None:
                unsolved += 1
                continue
            samples.append(sample)
            writer.writerow([f"{cell:.6g}" if isinstance(cell, float) else cell for cell in astuple(sample)])
            file.flush()
    for line in summary(samples, unsolved):
        print(line)
    return 0


def _samples(options: argparse.Namespace) -> Iterator[Sample | None]:
    """Yield samples; None where neither oracle finished."""
    layers = range(2, (options.nodes - 2) // 2 + 1)
    for seed in range(options.graphs):
        number, backward = seed // 2, seed // 2 % 2 == 1
        if seed % 2 == 0:
            shape, problem = "skips", make_problem(number, layers[number % len(layers)], backward=backward)
        else:
            shape = SHAPES[number % len(SHAPES)]
            problem = make_dag_problem(number, 6 + number * 5 % max(1, options.nodes - 5), backward=backward)
        with exact_bytes():
            found = list(_sample(problem, seed, shape, options.states, options.paper_seconds))
        yield from found


def _sample(
    problem: ScheduleProblem, seed: int, shape: str, most_states: int, paper_seconds: float
) -> Iterator[Sample | None]:
    order = memory_aware_order(problem)
    peak = simulate(problem, ordered_steps(order)).transient_peak_bytes
    smallest = smallest_budget(problem, order).budget_bytes
    place = (0.0, 0.25, 0.5)[random.Random(seed).randrange(3)]
    budget = smallest + int(place * (peak - smallest))
    if budget >= peak:
        return
    limits = Limits(budget)
    ours = schedule(problem, limits, gap=0.0, time_limit_seconds=600, order=order).prediction.energy_joules
    base = Prices(problem).base
    overhead = least_overhead(problem, limits, order, most_states=most_states)
    best = _paper_energy(problem, limits, order, Effort(paper_seconds, 0.0)) if overhead is None else base + overhead
    below: bool | None = None
    if place == 0.0:
        least = least_overhead(problem, Limits(smallest - 1), order, most_states=most_states)
        below = None if least is None else least < float("inf")
    if best is None:
        yield None
        return
    yield Sample(
        seed=seed,
        shape=shape,
        nodes=len(order),
        backward=seed // 2 % 2 == 1,
        place=place,
        oracle="paper" if overhead is None else "search",
        base_joules=base,
        ours_joules=ours,
        oracle_joules=best,
        difference=(ours - best) / best,
        overhead_difference=(ours - best) / (best - base) if best - base > 1e-9 * base else 0.0,
        below=below,
    )


def make_problem(seed: int, layers: int, *, backward: bool) -> ScheduleProblem:
    """Return a random graph; `backward` lets every second backward node be recomputed."""
    graph, costs = random_graph(seed, layers)
    random_bits = random.Random(seed + 1)
    nodes = tuple(
        replace(node, recomputable=random_bits.random() < 0.5) if backward and node.phase is Phase.BACKWARD else node
        for node in graph.nodes
    )
    return ScheduleProblem(replace(graph, nodes=nodes), costs)


def make_dag_problem(seed: int, nodes: int, *, backward: bool) -> ScheduleProblem:
    """Return a random graph of many shapes; `backward` lets some backward nodes be recomputed."""
    graph, costs = random_dag(seed, nodes, plain=True)
    kept = tuple(
        replace(node, recomputable=node.recomputable and (backward or node.phase is Phase.FORWARD))
        for node in graph.nodes
    )
    # A step that waits spends idle power, which is neither the class's nor the oracle's to count.
    costs = replace(costs, idle_watts=0.0) if costs.asynchronous else costs
    return ScheduleProblem(replace(graph, nodes=kept), costs)


def _paper_energy(problem: ScheduleProblem, limits: Limits, order: tuple[str, ...], effort: Effort) -> float | None:
    solved = solve_paper(problem, limits, order, effort)
    if solved.status != "optimal" or solved.steps is None:
        return None
    verdict = judge(problem, limits, solved.steps)
    return verdict.prediction.energy_joules if verdict.verdict == "holds" and verdict.prediction is not None else None


def summary(samples: Sequence[Sample], unsolved: int) -> Iterator[str]:
    """Yield the distribution in a few lines."""
    for oracle in ("search", "paper"):
        chosen = [sample for sample in samples if sample.oracle == oracle]
        if not chosen:
            continue
        for shape, backward in product(("skips", *SHAPES), (False, True)):
            part = [sample for sample in chosen if sample.backward is backward and sample.shape == shape]
            where = "forward and backward" if backward else "forward nodes only"
            if part:
                yield f"{oracle}, {shape}, recompute of {where}: {_distribution(part)}"
        below = [sample.below for sample in chosen if sample.below is not None]
        if below:
            yield f"{oracle}: a plan below the class's smallest budget in {sum(below)} of {len(below)} graphs"
    yield f"graphs that neither oracle finished: {unsolved}"


def _distribution(samples: Sequence[Sample]) -> str:
    differences = sorted(sample.difference for sample in samples)
    equal = sum(abs(difference) <= 1e-6 for difference in differences)
    worse = sum(difference > 1e-6 for difference in differences)
    late = differences[min(len(differences) - 1, int(0.95 * len(differences)))]
    overhead = max(sample.overhead_difference for sample in samples)
    return (
        f"{len(samples)} cases, equal {equal}, ours dearer {worse}, ours cheaper {len(samples) - equal - worse}; "
        f"mean {statistics.fmean(differences):+.3%}, 95 % at most {late:+.2%}, worst {differences[-1]:+.2%} "
        f"(of the overhead {overhead:+.1%})"
    )


if __name__ == "__main__":
    sys.exit(main())
