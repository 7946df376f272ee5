"""Scheduling: the order of nodes, what is recomputed and what is paged, with a proof of how good that is."""

from poet_onnx.scheduling.budget import smallest_budget
from poet_onnx.scheduling.order import memory_aware_order
from poet_onnx.scheduling.outcome import Progress
from poet_onnx.scheduling.planner import ordered_steps, schedule

__all__ = [
    "Progress",
    "memory_aware_order",
    "ordered_steps",
    "schedule",
    "smallest_budget",
]
