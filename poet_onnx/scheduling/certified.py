"""A plan with its certificate: how good it is proven to be, and among which plans."""

from __future__ import annotations

import time

from poet_onnx.plan import Certificate, Plan, Step, gaps
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling.outcome import Bound, Limits
from poet_onnx.simulate import simulate

ROUNDING = 1e-9
"""Energies that differ by no more than this part of them are the same."""


def certified(
    problem: ScheduleProblem,
    steps: tuple[Step, ...],
    bound: Bound,
    *,
    limits: Limits,
    ending: str,
    begin: float,
) -> Plan:
    """Return a plan of some steps with its certificate.

    Args:
        problem: what was planned.
        steps: of the plan.
        bound: what is proven.
        limits: of the search: its gap, and its seed.
        ending: status where the gap was not reached; "not_needed" where everything fits as it is.
        begin: when the search began.

    Raises:
        CheckFailedError: if the simulator does not accept the steps.
    """
    prediction = simulate(problem, steps)
    energy, solver, status = prediction.energy_joules, "none", ending
    bound_joules = min(energy, bound.joules)
    gap, overhead_gap = gaps(energy, bound_joules, problem.base_joules)
    if ending != "not_needed":
        from poet_onnx.scheduling.solver import solver_name

        solver = solver_name()
        # Here and not before, for placing the transfers may have saved energy.
        status = "optimal" if energy - bound_joules <= (limits.gap + ROUNDING) * energy else ending
    certificate = Certificate(
        status=status,
        objective_joules=energy,
        bound_joules=bound_joules,
        gap=gap,
        overhead_gap=overhead_gap,
        covers=bound.covers,
        wide_bound_joules=min(energy, bound.wide_joules),
        solver=solver,
        seed=limits.seed,
        threads=1,
        solve_seconds=time.monotonic() - begin,
    )
    return Plan(
        fingerprint=problem.graph.fingerprint,
        device=problem.costs.device,
        budget_bytes=problem.budget_bytes,
        deadline_seconds=problem.deadline_seconds,
        steps=steps,
        prediction=prediction,
        certificate=certificate,
    )
