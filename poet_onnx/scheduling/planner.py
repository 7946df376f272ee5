"""The scheduler's front door: a problem in, a checked plan with its certificate out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from poet_onnx.errors import CheckFailedError, InfeasibleError, LimitReachedError
from poet_onnx.plan import Action, Certificate, Plan, Step
from poet_onnx.problem import ScheduleProblem
from poet_onnx.scheduling.budget import smallest_budget
from poet_onnx.scheduling.candidates import Candidates
from poet_onnx.scheduling.formulation import formulate
from poet_onnx.scheduling.instance import Instance, build_instance
from poet_onnx.scheduling.lowering import to_steps
from poet_onnx.scheduling.order import memory_aware_order
from poet_onnx.scheduling.outcome import Limits, Outcome, Progress
from poet_onnx.scheduling.search import improve
from poet_onnx.scheduling.starts import Matrix, greedy_start
from poet_onnx.scheduling.transfers import overlap
from poet_onnx.simulate import simulate

OVERHEAD_GAP = 0.1
"""Besides the asked gap, the solver closes the gap over the overhead to this, as long as time lasts."""

SEARCH_SECONDS = 10.0
"""For each local search, before the solver starts and on what it found; it ends by itself in a fraction of that."""

TRANSFER_SHARES = (0.0, 0.25, 0.5, 1.0)
"""Shares of the transfers' time that are charged to the deadline, tried in turn until a plan keeps it."""


def ordered_steps(order: Sequence[str]) -> tuple[Step, ...]:
    """Return the steps that run every node once in an order."""
    return tuple(Step(Action.COMPUTE, name) for name in order)


@dataclass(frozen=True, slots=True)
class _Solution:
    """Steps, how the solver ended, and which plans its bound holds for; no outcome where no solver was needed."""

    steps: tuple[Step, ...]
    outcome: Outcome | None = None
    covers: str = "all plans: nothing is recomputed or paged"


def schedule(
    problem: ScheduleProblem,
    *,
    gap: float = 0.01,
    time_limit_seconds: float = 60.0,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
    order: Sequence[str] | None = None,
) -> Plan:
    """Find the plan of least energy within the budget and the deadline.

    Args:
        problem: what to plan.
        gap: stop when (energy - bound) / energy is at most this.
        time_limit_seconds: of the solver; the best plan found by then is returned.
        seed: of the solver.
        progress: called with a `Progress` while the solver works.
        order: of the nodes; the memory-aware order if not given.

    Raises:
        InfeasibleError: if no plan keeps to the budget and the deadline; it says what would do.
        LimitReachedError: if the time limit came before any plan was found.
    """
    begin = time.monotonic()
    order = tuple(order) if order is not None else memory_aware_order(problem)
    instance = build_instance(problem, order)
    steps = ordered_steps(order)
    unlimited = simulate(replace(problem, budget_bytes=None, deadline_seconds=None), steps)
    deadline = problem.deadline_seconds
    if deadline is not None and unlimited.seconds > deadline:
        raise InfeasibleError(
            f"No plan meets a deadline of {deadline:.6g} s: the computations alone take {unlimited.seconds:.6g} s; "
            "give at least that."
        )
    if problem.budget_bytes is None or unlimited.transient_peak_bytes <= problem.budget_bytes:
        return _plan(problem, _Solution(steps), begin, seed)
    limits = Limits(gap, min(OVERHEAD_GAP, 10 * gap), time_limit_seconds, seed)
    return _plan(problem, _solve(instance, limits, progress), begin, seed)


def _plan(problem: ScheduleProblem, solution: _Solution, begin: float, seed: int) -> Plan:
    prediction = simulate(problem, solution.steps)
    energy = prediction.energy_joules
    status, solver, base, bound = "not_needed", "none", energy, energy
    if solution.outcome is not None:
        from poet_onnx.scheduling.solver import solver_name

        status, solver, base = solution.outcome.status, solver_name(), _base_joules(problem)
        bound = min(energy, base + solution.outcome.bound_joules)
    overhead = energy - base
    certificate = Certificate(
        status=status,
        objective_joules=energy,
        bound_joules=bound,
        gap=(energy - bound) / energy if energy else 0.0,
        overhead_gap=(energy - bound) / overhead if overhead > 0 else 0.0,
        covers=solution.covers,
        solver=solver,
        seed=seed,
        threads=1,
        solve_seconds=time.monotonic() - begin,
    )
    return Plan(
        fingerprint=problem.graph.fingerprint,
        device=problem.costs.device,
        budget_bytes=problem.budget_bytes,
        deadline_seconds=problem.deadline_seconds,
        steps=solution.steps,
        prediction=prediction,
        certificate=certificate,
    )


def _base_joules(problem: ScheduleProblem) -> float:
    costs = problem.costs
    nodes = [costs.nodes[node.name] for node in problem.graph.nodes]
    return sum(node.joules + costs.idle_watts * node.seconds for node in nodes)


def _solve(instance: Instance, limits: Limits, progress: Callable[[Progress], None] | None) -> _Solution:
    """Solve for energy; charge ever more of the transfers' time until the plan keeps the deadline."""
    problem = instance.problem
    budget = problem.budget_bytes
    if budget is None:
        raise CheckFailedError("A schedule without a budget needs no solver.")
    _refuse_large_nodes(instance, budget)
    shares = TRANSFER_SHARES if problem.costs.asynchronous else (1.0,)
    if problem.deadline_seconds is None:
        shares = (0.0,)
    end = time.monotonic() + limits.time_limit_seconds
    bound: float | None = None
    fastest = float("inf")
    for share in shares:
        left = max(1.0, end - time.monotonic())
        outcome, steps, covers = _solve_once(instance, replace(limits, time_limit_seconds=left), share, progress)
        if bound is None:
            if outcome.status == "infeasible":
                _refuse_budget(instance)
            bound = outcome.bound_joules
        if steps is None:
            continue
        steps = overlap(problem, steps)
        seconds = simulate(replace(problem, deadline_seconds=None), steps).seconds
        fastest = min(fastest, seconds)
        if problem.deadline_seconds is None or seconds <= problem.deadline_seconds:
            status = _status(outcome, bound, limits, problem, steps)
            return _Solution(steps, replace(outcome, status=status, bound_joules=bound), covers)
    raise LimitReachedError(_nothing_found(instance, limits, fastest))


def _nothing_found(instance: Instance, limits: Limits, fastest: float) -> str:
    """Say that no plan was found although none was proven not to exist, and what would do."""
    problem = instance.problem
    if fastest < float("inf"):
        works = smallest_budget(problem, [node.name for node in instance.nodes]).budget_bytes
        return (
            f"No plan for a budget of {problem.budget_bytes:,} bytes was found that meets the deadline of "
            f"{problem.deadline_seconds:.6g} s, transfers included: the fastest found takes {fastest:.6g} s; "
            f"give at least that, or a budget of {works:,} bytes."
        )
    return (
        f"No plan for a budget of {problem.budget_bytes:,} bytes was found in {limits.time_limit_seconds:.0f} s; "
        "give a larger --time-limit, budget or deadline."
    )


def _status(outcome: Outcome, bound: float, limits: Limits, problem: ScheduleProblem, steps: tuple[Step, ...]) -> str:
    """Return "optimal" for a plan within the asked gap of the bound, however it was found; otherwise why it is not."""
    energy = simulate(problem, steps).energy_joules
    if energy - (_base_joules(problem) + bound) <= limits.gap * energy * (1 + 1e-9):
        return "optimal"
    return "time_limit" if outcome.status == "optimal" else outcome.status


def _solve_once(
    instance: Instance, limits: Limits, share: float, progress: Callable[[Progress], None] | None
) -> tuple[Outcome, tuple[Step, ...] | None, str]:
    """Build and solve one model; tighten its memory rows if rounding made the solver's answer exceed the budget."""
    # Imported here, so that a plan can be carried out and a model inspected where no solver is installed.
    from poet_onnx.scheduling.solver import solve

    problem = instance.problem
    budget = problem.budget_bytes or 0
    base = _base_joules(problem)
    bound = 0.0
    start: list[float] | None = None
    for tightened in (0, budget // 500_000 + 64, budget // 50_000 + 64):
        model = formulate(instance, budget - tightened, transfer_share=share)
        if model.fixed_bytes > budget - tightened:
            break
        try:
            start = greedy_start(model)
            if start is not None:
                start = improve(model, start, time_limit_seconds=SEARCH_SECONDS)
            outcome = solve(model, base, limits, start=start, progress=progress)
        except KeyboardInterrupt:
            outcome = Outcome("interrupted", tuple(start) if start else None, 0.0, 0)
        bound = bound or outcome.bound_joules
        outcome = replace(outcome, bound_joules=bound)
        if outcome.x is None:
            return outcome, None, ""
        exact = model.complete(model.supplies(outcome.x))
        if Matrix(model.memory, len(exact)).excess(exact) <= tightened:
            exact = improve(model, exact, time_limit_seconds=SEARCH_SECONDS)
            return outcome, to_steps(model, exact), _covers(model.candidates)
    return Outcome("infeasible", None, bound, 0), None, ""


def _covers(candidates: Candidates) -> str:
    """Say in words which plans the bound holds for."""
    hops = "any number of" if candidates.hops >= len(candidates.units) else f"at most {candidates.hops}"
    stays = sum(1 for value in candidates.last_alive if value not in candidates.instance.kept)
    return (
        "plans in this order; recompute just in time for a reader, in chains of "
        f"{hops} fused units whose inner values are not stored; one page-out per value, right after it is made, "
        f"page-ins right before a reader; {stays} small or short-lived values stay in RAM; transfers may all be hidden"
    )


def _refuse_large_nodes(instance: Instance, budget: int) -> None:
    if any(instance.smallest_node_bytes(position) > budget for position in range(len(instance.nodes))):
        _refuse_budget(instance)


def _refuse_budget(instance: Instance) -> None:
    """Raise the error that names the smallest budget that works."""
    problem = instance.problem
    smallest = smallest_budget(problem, [node.name for node in instance.nodes])
    within = "" if problem.deadline_seconds is None else f" within {problem.deadline_seconds:.6g} s"
    raise InfeasibleError(
        f"No plan{within} keeps to a transient budget of {problem.budget_bytes:,} bytes: the smallest that works is "
        f"{smallest.budget_bytes:,} bytes (bound {smallest.bound_bytes:,}), and node '{smallest.node}' alone needs "
        f"{smallest.node_bytes:,}; give at least {smallest.budget_bytes:,} bytes or allow recompute, paging or time.",
        smallest.budget_bytes,
    )
