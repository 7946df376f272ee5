"""Scheduling: the order of nodes, what is recomputed and what is paged, with a proof of how good that is."""

from poet_onnx.scheduling.incumbent import Progress
from poet_onnx.scheduling.order import memory_aware_order
from poet_onnx.scheduling.planner import ordered_steps, schedule
from poet_onnx.scheduling.refusals import smallest_budget

__all__ = [
    "Progress",
    "memory_aware_order",
    "ordered_steps",
    "schedule",
    "smallest_budget",
]
