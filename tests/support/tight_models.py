"""Random problems whose budget is between the smallest that works and the peak, with the model for it."""

from __future__ import annotations

from random_graphs import random_graph

from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling import memory_aware_order, smallest_budget
from poet_onnx.scheduling.liveness import build_instance
from poet_onnx.scheduling.model import Formulation, formulate


def tight_model(seed: int, layers: int, share: float, **options: bool) -> tuple[ScheduleProblem, Limits, Formulation]:
    """Return a problem, a budget at a share of the way from the smallest to the peak, and the model of both."""
    graph, costs = random_graph(seed, layers)
    problem = ScheduleProblem(graph, costs, **options)
    order = memory_aware_order(problem)
    instance = build_instance(problem, order)
    smallest = smallest_budget(problem, order).budget_bytes
    limits = Limits(int(smallest + share * (max(instance.step_bytes()) - smallest)))
    return problem, limits, formulate(instance, limits)
