"""What a method makes of a cell's problem: its plan, simulated before anybody believes it, or why it has none."""

from __future__ import annotations

from poet_onnx.comparison.cell import Job, Outcome
from poet_onnx.costing.flops import count_work
from poet_onnx.errors import CheckFailedError
from poet_onnx.plan import Action, Plan, Step
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling import plan_with
from poet_onnx.simulate import simulate


def outcome_of(job: Job) -> Outcome:
    """Let a cell's method plan."""
    seconds = job.cell.time_limit_seconds
    found = plan_with(job.cell.method, job.problem, job.limits, time_limit_seconds=seconds, order=job.order)
    if found.plan is None:
        return Outcome(
            status="infeasible" if found.is_proven else "no_plan",
            message=found.reason,
            closest_peak_bytes=None if found.closest is None else found.closest.transient_peak_bytes,
            closest_seconds=None if found.closest is None else found.closest.seconds,
            solve_seconds=found.solve_seconds,
        )
    return _simulated(job, found.plan, found.bound_joules, found.solve_seconds)


def _simulated(job: Job, plan: Plan, bound_joules: float | None, seconds: float) -> Outcome:
    try:
        figures = simulate(job.problem, plan.steps, job.limits)
    except CheckFailedError as error:
        return Outcome(status="failed", message=f"The method's plan does not hold: {error}", solve_seconds=seconds)
    return Outcome(
        status=plan.certificate.status,
        energy_joules=figures.energy_joules,
        bound_joules=bound_joules,
        seconds=figures.seconds,
        transient_peak_bytes=figures.transient_peak_bytes,
        page_out_bytes=figures.page_out_bytes,
        page_in_bytes=figures.page_in_bytes,
        recomputed_nodes=figures.recomputed_nodes,
        recomputed_flops=_recomputed_flops(job.problem, plan.steps),
        solve_seconds=seconds,
    )


def _recomputed_flops(problem: ScheduleProblem, steps: tuple[Step, ...]) -> int:
    """Return the floating-point operations of what runs again."""
    nodes = {node.name: node for node in problem.graph.nodes}
    again = (nodes[step.subject] for step in steps if step.action is Action.COMPUTE and step.copy)
    work = [count_work(problem.graph, node) for node in again]
    return sum(each.matmul_flops + each.elementwise_flops for each in work)
