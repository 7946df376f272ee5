"""Exhaustive search over plans with the places of their transfers, against the scheduler with a deadline."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from random_graphs import random_dag

from poet_onnx.errors import InfeasibleError, LimitReachedError
from poet_onnx.plan import Action, Step
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling import memory_aware_order, ordered_steps, schedule, smallest_budget
from poet_onnx.scheduling.baselines.horizon import find_horizon
from poet_onnx.scheduling.limit_rows import relaxed_timing
from poet_onnx.scheduling.liveness import build_instance
from poet_onnx.scheduling.model import formulate
from poet_onnx.simulate import simulate
from proofs.assignments import restores_of
from proofs.finding import FAILED, Finding, exact_bytes
from proofs.slow_storage import slow_problem
from proofs.validity import METHODS

SLACKS = (1.0, 1.02, 1.1, 1.25, 1.6)
"""Deadlines, as multiples of the computations' time."""


def check_search(seed: int, *, most_nodes: int = 9, most_labels: int = 60_000) -> list[Finding]:
    """Compare the scheduler with exhaustive search on one small graph with a budget and a deadline."""
    rng = random.Random(seed)
    with exact_bytes():
        problem, limits, order = _problem(seed, rng, most_nodes)
        kind = "asynchronous" if problem.costs.asynchronous else "synchronous"
        case = f"seed {seed}, {len(order)} nodes, {limits.budget_bytes} bytes, {limits.deadline_seconds} s"
        try:
            plan = schedule(problem, limits, gap=0.0, order=order, time_limit_seconds=10)
        except InfeasibleError:
            best, all_seen = least_timed(problem, limits, order, float("inf"), most_labels, first=True)
            return [Finding("search", kind, *_about_proof(problem, limits, order, best, all_seen), case)]
        except LimitReachedError:
            best, all_seen = least_timed(problem, limits, order, float("inf"), most_labels, first=True)
            outcome = "no plan found, " + ("and there is none" if all_seen else "nor by the search, which gave up")
            return [Finding("search", kind, "no plan found, there is one" if best else outcome, 0.0, case)]
        energy, bound = plan.prediction.energy_joules, plan.certificate.bound_joules
        best, all_seen = least_timed(problem, limits, order, energy, most_labels)
        return [
            Finding(
                "search",
                kind,
                *_about_plan(problem, limits, order, (energy, bound), best=best, all_seen=all_seen),
                case,
            )
        ]


def _problem(seed: int, rng: random.Random, most_nodes: int) -> tuple[ScheduleProblem, Limits, tuple[str, ...]]:
    """Return a random problem of any shape, or, for odd seeds, one with slow transfers; limits and its order."""
    recompute, paging = rng.choice([METHODS["both"], METHODS["both"], METHODS["paging"]])
    if seed % 2:
        problem, order = slow_problem(seed)
        problem = replace(problem, recompute=recompute, paging=paging)
    else:
        graph, costs = random_dag(seed, 4 + seed * 3 % (most_nodes - 3), plain=True)
        costs = replace(costs, asynchronous=rng.random() < 0.8)
        problem = ScheduleProblem(graph, costs, recompute=recompute, paging=paging)
        order = memory_aware_order(problem)
    peak = simulate(problem, ordered_steps(order)).transient_peak_bytes
    smallest = smallest_budget(problem, order).budget_bytes
    seconds = sum(cost.seconds for cost in problem.costs.nodes.values()) * rng.choice(SLACKS)
    budget = smallest + int((peak - smallest) * rng.choice([0.0, 0.3, 0.6]))
    return problem, Limits(budget, seconds), order


def _about_proof(
    problem: ScheduleProblem, limits: Limits, order: tuple[str, ...], best: tuple[Step, ...] | None, all_seen: bool
) -> tuple[str, float]:
    if best is None:
        return ("infeasible, as proven" if all_seen else "infeasible, the search gave up"), 0.0
    if _in_class(problem, limits, order, best):
        return f"{FAILED}: proven infeasible, but there is a plan", 0.0
    return "infeasible in the class, a plan outside it is in time", 0.0


def _about_plan(
    problem: ScheduleProblem,
    limits: Limits,
    order: tuple[str, ...],
    figures: tuple[float, float],
    *,
    best: tuple[Step, ...] | None,
    all_seen: bool,
) -> tuple[str, float]:
    energy, bound = figures
    if best is None:
        return ("optimal over all plans" if all_seen else "nothing cheaper, the search gave up"), 0.0
    found = simulate(problem, best).energy_joules
    if found >= bound * (1 - 1e-6):
        return "a cheaper plan, dearer than the bound", (energy - found) / energy
    if _in_class(problem, limits, order, best):
        return f"{FAILED}: a plan of the class is cheaper than the bound", (bound - found) / bound
    return "a plan outside the class is cheaper than the bound", (energy - found) / energy


def _in_class(problem: ScheduleProblem, limits: Limits, order: tuple[str, ...], steps: tuple[Step, ...]) -> bool:
    """Return whether a plan is of the class, its time and memory keeping the limits."""
    simulate(problem, steps, limits)
    instance = build_instance(problem, order)
    return restores_of(formulate(instance, limits, relaxed_timing(instance, limits)), steps) is not None


@dataclass(frozen=True, slots=True, eq=False)
class _Label:
    """A partial plan.

    Attributes:
        joules, clock: so far.
        done: how many nodes of the order have run.
        ram: values that can be read.
        stored: values in storage.
        moving: transfers under way, first to last: (value, whether it leaves, when it ends).
        before, steps: the partial plan that it extends, and by what.
    """

    joules: float
    clock: float
    done: int = 0
    ram: frozenset[int] = frozenset()
    stored: frozenset[int] = frozenset()
    moving: tuple[tuple[int, bool, float], ...] = ()
    before: _Label | None = None
    steps: tuple[Step, ...] = ()

    @property
    def state(self) -> tuple[object, ...]:
        return self.done, self.ram, self.stored, tuple(move[:2] for move in self.moving)

    @property
    def figures(self) -> tuple[float, ...]:
        return self.joules, self.clock, *(move[2] for move in self.moving)

    def plan(self) -> tuple[Step, ...]:
        label: _Label | None = self
        found: list[tuple[Step, ...]] = []
        while label is not None:
            found.append(label.steps)
            label = label.before
        return tuple(step for steps in reversed(found) for step in steps)


def least_timed(
    problem: ScheduleProblem,
    limits: Limits,
    order: tuple[str, ...],
    below_joules: float,
    most_labels: int,
    *,
    first: bool = False,
) -> tuple[tuple[Step, ...] | None, bool]:
    """Search for the cheapest plan within budget and deadline, all places of all transfers being tried.

    Args:
        problem: its buffers must not be shared.
        limits: budget and deadline.
        order: of the nodes.
        below_joules: only cheaper plans are looked for.
        most_labels: partial plans at which the search gives up.
        first: any plan will do, the furthest partial plan is looked at first.

    Returns:
        The plan or None, and whether all were looked at.
    """
    search = _TimedSearch(problem, limits, order, below_joules * (1 - 1e-6))
    queue: list[tuple[tuple[float, ...], int, _Label]] = [((0.0,), 0, _Label(search.base, 0.0))]
    known: dict[tuple[object, ...], list[tuple[float, ...]]] = {}
    count = 0
    while queue:
        _, _, label = heapq.heappop(queue)
        if label.done == len(order) and not label.moving:
            return label.plan(), True
        for following in search.moves(label):
            figures, seen = following.figures, known.setdefault(following.state, [])
            if any(all(a <= b + 1e-9 for a, b in zip(other, figures, strict=True)) for other in seen):
                continue
            seen[:] = [o for o in seen if not all(b <= a for a, b in zip(o, figures, strict=True))]
            seen.append(figures)
            count += 1
            rank = (-following.done, following.clock) if first else (following.joules,)
            heapq.heappush(queue, (rank, count, following))
        if count > most_labels:
            return None, False
    return None, True


class _TimedSearch:
    def __init__(self, problem: ScheduleProblem, limits: Limits, order: tuple[str, ...], below_joules: float) -> None:
        self.problem, self.below = problem, below_joules
        self.instance = instance = build_instance(problem, order)
        self.costs = problem.costs
        self.budget, deadline = limits.transient_bytes, limits.deadline_seconds or 0.0
        rest = [sum(instance.seconds[done:]) for done in range(len(order) + 1)]
        self.latest = [deadline * (1 + 1e-9) - seconds for seconds in rest]
        # The nodes' own energy is paid at the start: what is still to be added is overhead, never less than nothing.
        self.base = sum(instance.joules) + problem.costs.idle_watts * rest[0]
        horizon = find_horizon(instance)
        self.last_need, self.last_run = horizon.last_need, horizon.last_run

    def moves(self, label: _Label) -> Iterator[_Label]:
        """Yield every partial plan that extends one by one decision and can still be in time."""
        for found in self._moves(label):
            if found.clock <= self.latest[found.done] and found.joules < self.below:
                yield found

    def _moves(self, label: _Label) -> Iterator[_Label]:
        if label.done < len(self.instance.nodes):
            yield from self._run(label, label.done)
        for position in range(label.done):
            if self.last_run[position] >= label.done and not label.ram.issuperset(self.instance.writes[position]):
                yield from self._run(label, position)
        if label.moving:
            idle = max(0.0, label.moving[0][2] - label.clock)
            yield self._at(label, label.clock + idle, self.costs.idle_watts * idle)
        if self.problem.paging:
            yield from self._transfers(label)

    def _run(self, label: _Label, position: int) -> Iterator[_Label]:
        instance, first = self.instance, position == label.done
        reads, writes = set(instance.reads[position]), set(instance.writes[position])
        if not reads <= label.ram or writes & {value for value, _, _ in label.moving}:
            return
        node = instance.nodes[position].name
        copy = 0 if first else 1 + self._runs(label, node)
        joules = 0.0 if first else instance.joules[position] + self.costs.idle_watts * instance.seconds[position]
        for rest in self._kept(label, reads | writes, instance.workspace[position]):
            alive = frozenset(value for value in rest | reads | writes if self._needed(value, label.done + first))
            changed = replace(label, ram=alive, done=label.done + first)
            step = Step(Action.COMPUTE, node, copy)
            yield self._at(changed, label.clock + instance.seconds[position], joules, label, step)

    def _transfers(self, label: _Label) -> Iterator[_Label]:
        names, busy = self.instance.values, {value for value, _, _ in label.moving}
        for value in label.ram - label.stored - busy - self.instance.kept:
            if names[value] in self.costs.page_out and self._needed(value, label.done):
                yield self._start(label, label.ram, value, leaves=True)
        for value in label.stored - label.ram - busy:
            if self._needed(value, label.done):
                for rest in self._kept(label, {value}, 0):
                    yield self._start(label, frozenset(rest - {value}), value, leaves=False)

    def _start(self, label: _Label, ram: frozenset[int], value: int, *, leaves: bool) -> _Label:
        name = self.instance.values[value]
        cost = (self.costs.page_out if leaves else self.costs.page_in)[name]
        begin = max([label.clock, *(end for _, _, end in label.moving)])
        move = (value, leaves, begin + cost.seconds)
        step = Step(Action.PAGE_OUT_START if leaves else Action.PAGE_IN_START, name)
        changed = replace(label, ram=ram, moving=(*label.moving, move))
        if self.costs.asynchronous:
            return self._at(changed, label.clock, cost.joules, label, step)
        return self._at(changed, move[2], cost.joules + self.costs.idle_watts * cost.seconds, label, step)

    def _at(self, label: _Label, clock: float, joules: float, before: _Label | None = None, *steps: Step) -> _Label:
        """Return a label at a later time, the transfers that have ended by then being ended."""
        ended = [move for move in label.moving if move[2] <= clock]
        ends = tuple(
            Step(Action.PAGE_OUT_END if leaves else Action.PAGE_IN_END, self.instance.values[value])
            for value, leaves, _ in ended
        )
        return replace(
            label,
            clock=clock,
            joules=label.joules + joules,
            ram=label.ram | {value for value, leaves, _ in ended if not leaves},
            stored=label.stored | {value for value, leaves, _ in ended if leaves},
            moving=label.moving[len(ended) :],
            before=before or label,
            steps=(*steps, *ends),
        )

    def _needed(self, value: int, done: int) -> bool:
        return value in self.instance.kept or self.last_need[value] >= done

    def _runs(self, label: _Label, node: str) -> int:
        return sum(step.subject == node and step.copy > 0 for step in label.plan())

    def _kept(self, label: _Label, needed: set[int], workspace: int) -> Iterator[frozenset[int]]:
        """Yield what may stay in RAM beside what is needed or moving: the largest sets that fit."""
        sizes = self.instance.sizes
        fixed = needed | {value for value, _, _ in label.moving} | (self.instance.kept & label.ram)
        room = self.budget - workspace - sum(sizes[value] for value in fixed)
        found: list[frozenset[int]] = []
        waiting = [label.ram - fixed] if room >= 0 else []
        while waiting:
            some = waiting.pop(0)
            if any(some <= other for other in found):
                continue
            if sum(sizes[value] for value in some) <= room:
                found.append(some)
                yield some | (fixed & label.ram)
            else:
                waiting += [smaller for value in sorted(some) if (smaller := some - {value}) not in waiting]
