"""Which plans are looked at: the class that every bound and every refusal of the scheduler names."""

from __future__ import annotations

from poet_onnx.plan import PlanClass
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling.candidates import Candidates


def class_in_order(problem: ScheduleProblem) -> PlanClass:
    """Return the class of all that a problem allows in one order."""
    return PlanClass(problem.recompute, problem.paging and bool(problem.costs.page_out))


def solver_class(candidates: Candidates) -> PlanClass:
    """Return the class of what the solver's model expresses with some candidates."""
    wide = class_in_order(candidates.instance.problem)
    stays = sum(1 for value in candidates.last_alive if value not in candidates.instance.kept)
    return PlanClass(wide.recompute, wide.paging, hops=candidates.hops, stays=stays)
