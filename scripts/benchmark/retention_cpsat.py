"""Retention intervals solved by CP-SAT. Never import this where HiGHS is imported: both bring the same library."""

from __future__ import annotations

import time

from ortools.sat.python import cp_model

from benchmark.prices import Prices
from benchmark.result import INFINITY, Effort, Point, Size, Solved
from benchmark.retention import PAGE_INS, RECOMPUTES, RetentionModel, retention_model
from poet_onnx.plan import Step
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem

ENERGY_UNITS = 10_000_000
"""The base energy in the integers that CP-SAT adds up."""

NOTE = f"at most {RECOMPUTES} recomputes of a node and {PAGE_INS} page-ins of a value"


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


def solve_retention(problem: ScheduleProblem, limits: Limits, order: tuple[str, ...], effort: Effort) -> Solved:
    """Find a plan that fits, then the one of least energy."""
    begin = time.monotonic()
    built = retention_model(problem, limits, order)
    model, budget = built.model, limits.transient_bytes
    demand = sum(built.demands)
    capacity = model.new_int_var(0, demand, "capacity")
    excess = model.new_int_var(0, demand, "excess")
    model.add_cumulative(built.intervals, built.demands, capacity)
    model.add(excess >= capacity - budget)
    size = Size(len(model.proto.variables), len(model.proto.constraints))
    build_seconds = time.monotonic() - begin
    fitting, status = _fit(built, excess, effort)
    left = effort.time_limit_seconds - (time.monotonic() - begin - build_seconds)
    if fitting is None or left <= 0:
        seconds = time.monotonic() - begin - build_seconds
        return Solved(status, fitting, 0.0, size, build_seconds, seconds, (), NOTE)
    model.add(excess == 0)
    overhead, unit = _overhead(built)
    model.minimize(overhead)
    solver = _solver(effort, left)
    solver.parameters.relative_gap_limit = 0.0
    base = Prices(problem).base
    # The asked gap is one of the whole energy; the model's objective is the overhead alone.
    solver.parameters.absolute_gap_limit = max(1.0, effort.gap * ENERGY_UNITS)
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


class _UntilItFits(cp_model.CpSolverSolutionCallback):
    """Stops at the first plan that needs no more than the budget."""

    def on_solution_callback(self) -> None:
        """Stop if it fits."""
        if self.objective_value <= 0:
            self.stop_search()


def _solver(effort: Effort, seconds: float) -> cp_model.CpSolver:
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = effort.threads
    solver.parameters.random_seed = effort.seed
    return solver


def _fit(built: RetentionModel, excess: cp_model.IntVar, effort: Effort) -> tuple[tuple[Step, ...] | None, str]:
    """Find a plan within the budget, leave it to the next phase as a hint, and return it with a status."""
    model = built.model
    model.minimize(excess)
    solver = _solver(effort, effort.time_limit_seconds)
    found = solver.solve(model, _UntilItFits())
    if found not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, "time_limit"
    if solver.objective_value > 0:
        return None, "infeasible" if found == cp_model.OPTIMAL else "time_limit"
    for number in range(len(model.proto.variables)):
        variable = model.get_int_var_from_proto_index(number)
        model.add_hint(variable, solver.value(variable))
    return built.steps(solver), "time_limit"
