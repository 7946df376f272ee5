"""Retention intervals in CP-SAT, in the style of Moccasin (Bartan et al., ICML 2023).

Never import this where HiGHS is imported: OR-Tools brings its own.

Time has one slot for each node in each stage. A value has several copies, each an interval from the slot where it
appears to the last slot that reads it; intervals share RAM in one cumulative constraint. Moccasin's copies are
recomputes; here some copies are page-ins, which may appear at any slot, at the price of one page-out right after the
value was made. As in Moccasin, a first phase looks for a plan of least excess over the budget, the second starts there.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from ortools.sat.python import cp_model

from benchmark.horizon import Horizon, find_horizon
from benchmark.prices import Prices, can_page
from benchmark.result import INFINITY, Limits, Point, Size, Solved
from poet_onnx import simulate
from poet_onnx.plan import Action, Step
from poet_onnx.problem import ScheduleProblem
from poet_onnx.scheduling.instance import Instance, build_instance

RECOMPUTES, PAGE_INS = 2, 2
"""Most copies of a node and of a value beside the original; Moccasin found one to be enough nearly always."""

ENERGY_UNITS = 10_000_000
"""The base energy in the integers that CP-SAT adds up."""

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


def retention_model(problem: ScheduleProblem, order: tuple[str, ...]) -> RetentionModel:
    """Build variables, intervals and covers; the budget and the objective are added by the phases."""
    instance = build_instance(problem, order)
    built = RetentionModel(instance, find_horizon(instance))
    for position in range(len(instance.nodes)):
        built.runs.append(_runs(built, position))
    for value in range(len(instance.values)):
        built.copies.append(_copies(built, value))
    _add_covers(built)
    _add_intervals(built)
    if problem.deadline_seconds is not None:
        _add_deadline(built, problem.deadline_seconds)
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
            built.demands.append(simulate.TOKEN_BYTES)
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


def _overhead(built: RetentionModel) -> tuple[cp_model.LinearExprT, float]:
    """Return the energy above the base in integers, and joules in one of them."""
    instance = built.instance
    prices = Prices(instance.problem)
    unit = prices.base / ENERGY_UNITS
    terms = [
        round(prices.compute(instance.nodes[position].name) / unit) * run.active
        for position, runs in enumerate(built.runs)
        for run in runs
        if run.active is not None
    ]
    for value, out in built.paged_out.items():
        name = instance.values[value]
        terms.append(round(prices.page_out(name) / unit) * out)
        page_in = round(prices.page_in(name) / unit)
        terms += [page_in * copy.choice for copy in built.copies[value] if copy.transfer]
    return sum(terms), unit


class _Trace(cp_model.CpSolverSolutionCallback):
    """Writes incumbent and bound down at every new solution."""

    def __init__(self, points: list[Point], base_joules: float, unit_joules: float, begin: float) -> None:
        super().__init__()
        self.points = points
        self.base_joules = base_joules
        self.unit_joules = unit_joules
        self.begin = begin

    def on_solution_callback(self) -> None:
        """Write it down."""
        objective = self.base_joules + self.objective_value * self.unit_joules
        bound = self.base_joules + self.best_objective_bound * self.unit_joules
        self.points.append(Point(time.monotonic() - self.begin, objective, bound))

    def on_bound(self, bound: float) -> None:
        """Write a better bound down."""
        objective = self.points[-1].objective_joules if self.points else INFINITY
        bound_joules = self.base_joules + bound * self.unit_joules
        self.points.append(Point(time.monotonic() - self.begin, objective, bound_joules))


def solve_retention(problem: ScheduleProblem, order: tuple[str, ...], limits: Limits) -> Solved:
    """Find a plan that fits, then the one of least energy."""
    begin = time.monotonic()
    built = retention_model(problem, order)
    model, budget = built.model, problem.budget_bytes
    if budget is None:
        raise ValueError("A model needs a budget.")
    demand = sum(built.demands)
    capacity = model.new_int_var(0, demand, "capacity")
    excess = model.new_int_var(0, demand, "excess")
    model.add_cumulative(built.intervals, built.demands, capacity)
    model.add(excess >= capacity - budget)
    size = Size(len(model.proto.variables), len(model.proto.constraints))
    build_seconds = time.monotonic() - begin
    fitting, status = _fit(built, excess, limits)
    left = limits.time_limit_seconds - (time.monotonic() - begin - build_seconds)
    if fitting is None or left <= 0:
        seconds = time.monotonic() - begin - build_seconds
        return Solved(status, fitting, 0.0, size, build_seconds, seconds, (), NOTE)
    model.add(excess == 0)
    overhead, unit = _overhead(built)
    model.minimize(overhead)
    solver = _solver(limits, left)
    solver.parameters.relative_gap_limit = 0.0
    base = Prices(problem).base
    # The asked gap is one of the whole energy; the model's objective is the overhead alone.
    solver.parameters.absolute_gap_limit = max(1.0, limits.gap * ENERGY_UNITS)
    points: list[Point] = []
    trace = _Trace(points, base, unit, begin)
    solver.best_bound_callback = trace.on_bound
    found = solver.solve(model, trace)
    seconds = time.monotonic() - begin - build_seconds
    if found not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Solved("time_limit", fitting, base, size, build_seconds, seconds, tuple(points), NOTE)
    bound = base + solver.best_objective_bound * unit
    points.append(Point(time.monotonic() - begin, base + solver.objective_value * unit, bound))
    status = "optimal" if found == cp_model.OPTIMAL else "time_limit"
    return Solved(status, built.steps(solver), bound, size, build_seconds, seconds, tuple(points), NOTE)


NOTE = f"at most {RECOMPUTES} recomputes of a node and {PAGE_INS} page-ins of a value"


class _UntilItFits(cp_model.CpSolverSolutionCallback):
    """Stops at the first plan that needs no more than the budget."""

    def on_solution_callback(self) -> None:
        """Stop if it fits."""
        if self.objective_value <= 0:
            self.stop_search()


def _solver(limits: Limits, seconds: float) -> cp_model.CpSolver:
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = limits.threads
    solver.parameters.random_seed = limits.seed
    return solver


def _fit(built: RetentionModel, excess: cp_model.IntVar, limits: Limits) -> tuple[tuple[Step, ...] | None, str]:
    """Find a plan within the budget, leave it to the next phase as a hint, and return it with a status."""
    model = built.model
    model.minimize(excess)
    solver = _solver(limits, limits.time_limit_seconds)
    found = solver.solve(model, _UntilItFits())
    if found not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, "time_limit"
    if solver.objective_value > 0:
        return None, "infeasible" if found == cp_model.OPTIMAL else "time_limit"
    for number in range(len(model.proto.variables)):
        variable = model.get_int_var_from_proto_index(number)
        model.add_hint(variable, solver.value(variable))
    return built.steps(solver), "time_limit"
