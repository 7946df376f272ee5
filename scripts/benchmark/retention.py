"""Retention intervals for CP-SAT, in the style of Moccasin (Bartan et al., ICML 2023).

Time has one slot for each node in each stage. A value has several copies, each an interval from the slot where it
appears to the last slot that reads it; intervals share RAM in one cumulative constraint. Moccasin's copies are
recomputes; here some copies are page-ins, which may appear at any slot, at the price of one page-out right after the
value was made. As in Moccasin, a first phase looks for a plan of least excess over the budget, the second starts there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ortools.sat.python import cp_model

from benchmark.horizon import Horizon, find_horizon
from benchmark.prices import can_page
from poet_onnx.plan import Action, Step
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling.liveness import Instance, build_instance
from poet_onnx.simulate import versions

RECOMPUTES, PAGE_INS = 2, 2
"""Most copies of a node and of a value beside the original; Moccasin found one to be enough nearly always."""

TIME_UNITS = 10_000_000
"""The deadline in integers."""


@dataclass(frozen=True)
class Copy:
    """One appearance of a value, or one run of a node.

    Attributes:
        active: whether it happens; None for always.
        start: its slot.
        end: slot of the last reader; for a run, the start.
        transfer: whether a page-in makes it.
    """

    active: cp_model.IntVar | None
    start: cp_model.LinearExpr | int
    end: cp_model.LinearExpr | int
    transfer: bool = False

    @property
    def choice(self) -> cp_model.IntVar:
        """Return the variable of a copy that may or may not happen."""
        if self.active is None:
            raise ValueError("An original always happens.")
        return self.active


@dataclass
class RetentionModel:
    """The model of one problem in one order."""

    instance: Instance
    horizon: Horizon
    model: cp_model.CpModel = field(default_factory=cp_model.CpModel)
    runs: list[list[Copy]] = field(default_factory=list)
    copies: list[list[Copy]] = field(default_factory=list)
    paged_out: dict[int, cp_model.IntVar] = field(default_factory=dict)
    intervals: list[cp_model.IntervalVar] = field(default_factory=list)
    demands: list[int] = field(default_factory=list)
    shares: dict[tuple[int, int], list[cp_model.IntVar]] = field(default_factory=dict)

    @property
    def last_slot(self) -> int:
        """Return the slot of the last stage's node."""
        count = len(self.instance.nodes)
        return count * count - 1

    def steps(self, solver: cp_model.CpSolver) -> tuple[Step, ...]:
        """Return the plan of a solution."""
        instance = self.instance
        events: list[tuple[int, int, int, list[Step]]] = []
        for position, runs in enumerate(self.runs):
            for run in runs:
                if run.active is None or solver.boolean_value(run.active):
                    steps = [Step(Action.COMPUTE, instance.nodes[position].name)]
                    events.append((solver.value(run.start), 1, position, steps))
        for value, copies in enumerate(self.copies):
            name = instance.values[value]
            for copy in copies:
                if copy.transfer and copy.active is not None and solver.boolean_value(copy.active):
                    steps = [Step(Action.PAGE_IN_START, name), Step(Action.PAGE_IN_END, name)]
                    events.append((solver.value(copy.start), 0, value, steps))
            if value in self.paged_out and solver.boolean_value(self.paged_out[value]):
                steps = [Step(Action.PAGE_OUT_START, name), Step(Action.PAGE_OUT_END, name)]
                events.append((instance.producer[value] * (len(instance.nodes) + 1), 2, value, steps))
        events.sort(key=lambda event: event[:3])
        seen: dict[str, int] = {}
        ordered: list[Step] = []
        for step in (step for event in events for step in event[3]):
            if step.action is Action.COMPUTE:
                seen[step.subject] = seen.get(step.subject, -1) + 1
                ordered.append(Step(step.action, step.subject, seen[step.subject]))
            else:
                ordered.append(step)
        return tuple(ordered)


def retention_model(problem: ScheduleProblem, limits: Limits, order: tuple[str, ...]) -> RetentionModel:
    """Build variables, intervals and covers; the budget and the objective are added by the phases."""
    instance = build_instance(problem, order)
    built = RetentionModel(instance, find_horizon(instance))
    for position in range(len(instance.nodes)):
        built.runs.append(_runs(built, position))
    for value in range(len(instance.values)):
        built.copies.append(_copies(built, value))
    _add_covers(built)
    _add_intervals(built)
    if limits.deadline_seconds is not None:
        _add_deadline(built, limits.deadline_seconds)
    return built


def _runs(built: RetentionModel, position: int) -> list[Copy]:
    model, count = built.model, len(built.instance.nodes)
    own = position * (count + 1)
    runs = [Copy(None, own, own)]
    last = built.horizon.last_run[position]
    previous: tuple[cp_model.IntVar, cp_model.IntVar] | None = None
    for _ in range(min(RECOMPUTES, last - position)):
        active, stage = model.new_bool_var(""), model.new_int_var(position + 1, last, "")
        if previous is not None:
            model.add_implication(active, previous[0])
            model.add(stage > previous[1]).only_enforce_if(active)
        previous = active, stage
        start = stage * count + position
        runs.append(Copy(active, start, start))
    return runs


def _copies(built: RetentionModel, value: int) -> list[Copy]:
    """Return all appearances of a value, with an end each, and allow no two at once."""
    instance, model, count = built.instance, built.model, len(built.instance.nodes)
    producer = instance.producer[value]
    if value in instance.kept:
        return [Copy(None, built.runs[producer][0].start, built.last_slot)]
    last = built.horizon.last_need[value] * count + count - 1
    copies = [Copy(run.active, run.start, model.new_int_var(0, last, "")) for run in built.runs[producer]]
    if can_page(instance.problem, instance.values[value]) and built.horizon.last_need[value] > producer + 1:
        out = built.paged_out[value] = model.new_bool_var("")
        previous: Copy | None = None
        for _ in range(PAGE_INS):
            start = model.new_int_var((producer + 1) * count, last, "")
            copy = Copy(model.new_bool_var(""), start, model.new_int_var(0, last, ""), transfer=True)
            model.add_implication(copy.choice, out)
            if previous is not None:
                model.add_implication(copy.choice, previous.choice)
                model.add(copy.start > previous.start).only_enforce_if(copy.active)
            previous = copy
            copies.append(copy)
    return copies


def _add_covers(built: RetentionModel) -> None:
    """Let every run read each of its inputs from exactly one copy that is there.

    An output may take over the buffer of one input whose copy ends there: that copy's bytes then count one slot less.
    """
    instance, model = built.instance, built.model
    takeovers: dict[tuple[int, int, int], list[cp_model.IntVar]] = {}
    for position, runs in enumerate(built.runs):
        for value in instance.reads[position]:
            heirs = [written for read, written in instance.inplace[position] if read == value]
            for turn, run in enumerate(runs):
                covers = []
                for number, copy in enumerate(built.copies[value]):
                    cover = model.new_bool_var("")
                    covers.append(cover)
                    if copy.active is not None:
                        model.add_implication(cover, copy.active)
                    # A page-in comes before the computation of its slot, a computation makes nothing for itself.
                    first = copy.start if copy.transfer else copy.start + 1
                    model.add(run.start >= first).only_enforce_if(cover)
                    model.add(copy.end >= run.start).only_enforce_if(cover)
                    if heirs and value not in instance.kept:
                        shared = model.new_bool_var("")
                        model.add_implication(shared, cover)
                        model.add(copy.end == run.start).only_enforce_if(shared)
                        built.shares.setdefault((value, number), []).append(shared)
                        takeovers.setdefault((position, turn, heirs[0]), []).append(shared)
                model.add(sum(covers) == (1 if run.active is None else run.active))
    for candidates in takeovers.values():
        model.add_at_most_one(candidates)


def _add_intervals(built: RetentionModel) -> None:
    """Add what occupies RAM when: copies, workspaces, tokens."""
    instance, model = built.instance, built.model
    for value, copies in enumerate(built.copies):
        retained = []
        for number, copy in enumerate(copies):
            interval = _interval(built, copy, copy.end + 1)
            retained.append(interval)
            shares = built.shares.get((value, number), [])
            if shares:
                model.add_at_most_one(shares)
                until = model.new_int_var(0, built.last_slot + 1, "")
                model.add(until == copy.end + 1 - sum(shares))
                interval = _interval(built, copy, until)
            built.intervals.append(interval)
            built.demands.append(instance.sizes[value])
        if len(retained) > 1:
            model.add_no_overlap(retained)
        if value in built.paged_out:
            begin = instance.producer[value] * (len(instance.nodes) + 1)
            token = model.new_optional_interval_var(
                begin, built.last_slot + 1 - begin, built.last_slot + 1, built.paged_out[value], ""
            )
            built.intervals.append(token)
            built.demands.append(versions.TOKEN_BYTES)
    for position, runs in enumerate(built.runs):
        for number, run in enumerate(runs):
            workspace = instance.workspace[position]
            if number:
                workspace += instance.problem.graph.scratch_bytes(instance.nodes[position])
            if workspace:
                built.intervals.append(_interval(built, run, run.start + 1))
                built.demands.append(workspace)


def _interval(built: RetentionModel, copy: Copy, until: cp_model.LinearExpr | int) -> cp_model.IntervalVar:
    """Return the interval from a copy's start up to, not including, a slot."""
    if isinstance(copy.start, int) and isinstance(until, int):
        return built.model.new_fixed_size_interval_var(copy.start, until - copy.start, "")
    size = built.model.new_int_var(0, built.last_slot + 1, "")
    if copy.active is None:
        return built.model.new_interval_var(copy.start, size, until, "")
    return built.model.new_optional_interval_var(copy.start, size, until, copy.active, "")


def _add_deadline(built: RetentionModel, deadline_seconds: float) -> None:
    """Charge recomputes, and transfers where they stop the computations; times are rounded up."""
    instance, costs = built.instance, built.instance.problem.costs
    unit = deadline_seconds / TIME_UNITS
    terms = [
        math.ceil(instance.seconds[position] / unit) * run.active
        for position, runs in enumerate(built.runs)
        for run in runs
        if run.active is not None
    ]
    if not costs.asynchronous:
        for value, copies in enumerate(built.copies):
            seconds = costs.page_in[instance.values[value]].seconds if value in built.paged_out else 0.0
            terms += [math.ceil(seconds / unit) * copy.choice for copy in copies if copy.transfer]
            if value in built.paged_out:
                out = costs.page_out[instance.values[value]].seconds
                terms.append(math.ceil(out / unit) * built.paged_out[value])
    built.model.add(sum(terms) <= math.floor((deadline_seconds - instance.base_seconds) / unit))
