"""Scheduling: the order of nodes, what is recomputed and what is paged, with a proof of how good that is.

What other packages need is here; nothing else of this one is theirs.
"""

from poet_onnx.scheduling.baselines import METHODS, Method, Outcome, plan_by, plan_with
from poet_onnx.scheduling.bound import least_overhead_in_order
from poet_onnx.scheduling.incumbent import Progress, overhead_gap_of
from poet_onnx.scheduling.liveness import file_order, most_values_alive
from poet_onnx.scheduling.order import memory_aware_order
from poet_onnx.scheduling.planner import known_plan, plan_quickly, schedule
from poet_onnx.scheduling.refusals import NoneExistsError, NothingFoundError, Terms
from poet_onnx.scheduling.smallest import PRECISION, SmallestBudget, least_peak_bytes, smallest_budget
from poet_onnx.scheduling.steps import SimulatedPlan, ordered_steps

__all__ = [
    "METHODS",
    "PRECISION",
    "Method",
    "NoneExistsError",
    "NothingFoundError",
    "Outcome",
    "Progress",
    "SimulatedPlan",
    "SmallestBudget",
    "Terms",
    "file_order",
    "known_plan",
    "least_overhead_in_order",
    "least_peak_bytes",
    "memory_aware_order",
    "most_values_alive",
    "ordered_steps",
    "overhead_gap_of",
    "plan_by",
    "plan_quickly",
    "plan_with",
    "schedule",
    "smallest_budget",
]
