"""A form of a model as the scheduler gets it, and what its budget keeps for the runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from poet_onnx.addresses import BLOCK_EXTRA_BYTES
from poet_onnx.plan import Step
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.rewriting.forms import Form
from poet_onnx.scheduling import memory_aware_order
from poet_onnx.scheduling.liveness import build_instance

BLOCKS_BESIDES = 16
"""Blocks that may be there beside the graph's values: workspace, tokens, what a session passes in and out."""


@dataclass(frozen=True)
class Variant:
    """A form of the model as the scheduler gets it.

    Attributes:
        form: how the model was changed.
        problem: for the form's graph, within the budget that was asked for, without what is resident.
        target: runtime that will run the graph.
        known: steps of plans made before for the graph.
    """

    form: Form
    problem: ScheduleProblem
    target: str
    known: tuple[tuple[Step, ...], ...]

    @cached_property
    def rule(self) -> tuple[str, ...]:
        """Return the memory-aware order."""
        return memory_aware_order(self.problem)

    @cached_property
    def aside_bytes(self) -> int:
        """Return what is set aside of the budget."""
        return 0 if self.problem.budget_bytes is None else set_aside_bytes(self.problem, self.rule, self.target)

    @property
    def limited(self) -> ScheduleProblem:
        """Return the problem with what is set aside taken off its budget."""
        if self.problem.budget_bytes is None:
            return self.problem
        # A RAM budget below the resident bytes leaves nothing: ask for one byte, to learn what would do.
        return replace(self.problem, budget_bytes=max(1, self.problem.budget_bytes - self.aside_bytes))


def set_aside_bytes(problem: ScheduleProblem, order: Sequence[str], target: str) -> int:
    """Return the bytes that a budget keeps for what the stock runtime adds to the blocks that an order holds.

    On aarch64 onnxruntime makes every block MLAS_SYMM_QGEMM_BUF_OVERRUN bytes larger (allocator.cc), whatever is in it.
    """
    if target != "stock":
        return 0
    instance = build_instance(problem, order)
    change = [0] * (len(order) + 1)
    for value in range(len(instance.values)):
        change[instance.producer[value]] += 1
        change[min(instance.last_use(value), len(order) - 1) + 1] -= 1
    return BLOCK_EXTRA_BYTES * (max(accumulate(change)) + BLOCKS_BESIDES)
