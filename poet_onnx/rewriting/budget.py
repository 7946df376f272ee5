"""The budget that was asked for: what it leaves the scheduler of a graph variant, and how that is said to the user.

A RAM budget bounds a process, an activation budget the transient peak; a percentage is one of what the ordered step
needs. Of a RAM budget the process keeps what it takes whatever the plan, and of either what the runtime adds to the
blocks of the baseline order is set aside. The scheduler gets the rest.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

from poet_onnx.costing.costs import estimated_workspace_nodes
from poet_onnx.costing.device import HOST, load_device
from poet_onnx.costing.process import ProcessMemory
from poet_onnx.costing.process_costs import ProcessCosts
from poet_onnx.errors import PoetWarning
from poet_onnx.graph import TrainingGraph
from poet_onnx.plan import Prediction
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.rewriting.baseline import Baseline
from poet_onnx.rewriting.evaluation import EvaluationStep
from poet_onnx.rewriting.process import TrainingProcess
from poet_onnx.rewriting.request import BudgetKind, Request
from poet_onnx.scheduling import PRECISION, SimulatedPlan, Terms


@dataclass(frozen=True)
class RequestedBudget:
    """A budget in the terms of a request.

    Attributes:
        kind: "ram" bounds the process's peak, "activation" the transient peak.
        bound_bytes: the bound on that; None for none.
        process: that trains.
        evaluation_bytes: transient bytes that evaluating takes.
    """

    kind: BudgetKind
    bound_bytes: int | None
    process: TrainingProcess
    evaluation_bytes: int = 0

    @classmethod
    def of(
        cls,
        request: Request,
        first: Baseline,
        ordered: Prediction,
        process: TrainingProcess,
        evaluation: EvaluationStep | None = None,
    ) -> RequestedBudget:
        """Return the budget of a request; without one that of the device, but a plan that was given has its own.

        A share is one of all that the ordered step needs, so that it keeps to 100 %: also of what is set aside, and of
        what evaluating needs where that is more.

        Args:
            request: that was made.
            first: the model's first variant.
            ordered: prediction for its baseline order.
            process: that trains.
            evaluation: what it runs besides; None for nothing.
        """
        if request.budget is not None:
            if request.budget_kind == "ram":
                _warn_of_tensors_alone(request, first.graph, process)
            whole_bytes = ordered.transient_peak_bytes + first.aside_bytes
            evaluating_bytes = 0 if evaluation is None else evaluation.transient_peak_bytes
            bound: int | None = request.budget.in_bytes(max(whole_bytes, evaluating_bytes))
        else:
            bound = None if request.plan is not None else request.device.ram_bytes
        return cls(request.budget_kind, bound, process)

    def evaluating(self, evaluation: EvaluationStep, training: TrainingGraph) -> RequestedBudget:
        """Return it with what evaluating takes besides training with a graph."""
        process = evaluation.process_of(self.process, training)
        return replace(self, process=process, evaluation_bytes=evaluation.transient_peak_bytes)

    def step_bytes(self, graph: TrainingGraph) -> int | None:
        """Return the transient bytes that it leaves the step of a graph, with what is set aside; None for no bound."""
        if self.bound_bytes is None or self.kind == "activation":
            return self.bound_bytes
        return self.bound_bytes - self.process.fixed_bytes(graph)

    def plan_bytes(self, baseline: Baseline) -> int | None:
        """Return the transient bytes that it leaves the scheduler of a graph variant; None for no bound."""
        step_bytes = self.step_bytes(baseline.graph)
        if step_bytes is None:
            return None
        # A RAM budget below what is taken anyway leaves nothing: ask for one byte, to learn what would do.
        return 1 if self._starts_above(baseline) else max(1, step_bytes - baseline.aside_bytes)

    def _starts_above(self, baseline: Baseline) -> bool:
        """Return whether a process takes more than a RAM budget before it trains."""
        if self.bound_bytes is None or self.kind == "activation":
            return False
        return self.process.starting_bytes(baseline.graph) > self.bound_bytes

    def excess_bytes(self, memory: ProcessMemory) -> int:
        """Return by how much a process exceeds it; at most 0 where it keeps to it."""
        if self.bound_bytes is None or self.kind == "activation":
            return 0
        return memory.peak_bytes - self.bound_bytes

    @property
    def evaluation_excess_bytes(self) -> int:
        """Return by how much evaluating exceeds an activation budget; a RAM budget bounds a process that has both."""
        if self.bound_bytes is None or self.kind == "ram":
            return 0
        return self.evaluation_bytes - self.bound_bytes

    def needed_bytes(self, baseline: Baseline, problem: ScheduleProblem, plan: SimulatedPlan) -> int:
        """Return the smallest budget of its kind that a plan keeps, which is laid out where that matters.

        Args:
            baseline: of the graph variant.
            problem: of the variant, that the plan is for.
            plan: that needs it.
        """
        if self.kind == "activation":
            return max(plan.prediction.transient_peak_bytes + baseline.aside_bytes, self.evaluation_bytes)
        return self.ram_bytes(baseline, plan, self.process.laid_out(problem, plan.steps).memory)

    def ram_bytes(self, baseline: Baseline, plan: SimulatedPlan, memory: ProcessMemory) -> int:
        """Return the smallest RAM budget that a plan keeps whose process is known: what is set aside counts."""
        step_bytes = plan.prediction.transient_peak_bytes + baseline.aside_bytes
        return max(memory.peak_bytes, step_bytes + self.process.fixed_bytes(baseline.graph))

    def least_bytes(self, baseline: Baseline) -> Callable[[SimulatedPlan], int]:
        """Return what tells how much a plan of a graph variant needs at least, and nearly, before it is laid out."""
        if self.kind == "activation":
            return lambda plan: plan.prediction.transient_peak_bytes + baseline.aside_bytes
        return self.process.likely_peak_bytes(baseline.graph)

    def least_variant_bytes(self, baseline: Baseline) -> int:
        """Return what every plan of a graph variant needs at least."""
        return self._least_bytes(baseline, baseline.aside_bytes)

    def could_lower(self, baseline: Baseline, known_bytes: float) -> bool:
        """Return whether a plan of a graph variant may need so much less than a known budget as is looked for."""
        share = PRECISION if self.kind == "activation" else 0.0
        at_most_bytes = known_bytes / (1 + share)
        # What is set aside is known with an order of the nodes alone, and most variants need no order to be left out.
        return (
            self._least_bytes(baseline, aside_bytes=0) < at_most_bytes
            and self.least_variant_bytes(baseline) < at_most_bytes
        )

    def _least_bytes(self, baseline: Baseline, aside_bytes: int) -> int:
        step_bytes = baseline.least_peak_bytes + aside_bytes
        if self.kind == "activation":
            return step_bytes
        return max(self.process.starting_bytes(baseline.graph), step_bytes + self.process.fixed_bytes(baseline.graph))

    def terms(self, baseline: Baseline, works_bytes: int | None, *, split: bool) -> Terms:
        """Return the words in which a refusal speaks of it.

        Args:
            baseline: of the graph variant that has no plan.
            works_bytes: the smallest budget for which a plan is at hand; None for none.
            split: whether weight gradients may be computed in parts.
        """
        parts = []
        if self.kind == "ram":
            fixed = self.process.fixed_bytes(baseline.graph)
            parts.append(f"{fixed:,} for the runtime, the session, parameters, what the optimizer keeps and the batch")
            if self._starts_above(baseline):
                starting_bytes = self.process.starting_bytes(baseline.graph)
                parts.append(f"{starting_bytes:,} while the runtime is imported and the graph loaded")
        if baseline.aside_bytes:
            parts.append(f"{baseline.aside_bytes:,} set aside for what onnxruntime adds to its blocks on aarch64")
        estimated = estimated_workspace_nodes(baseline.graph, baseline.costs)
        if estimated:
            count = f"{len(estimated)} node{'' if len(estimated) == 1 else 's'}"
            parts.append(f"an estimate, settled by `poet-onnx profile`, of what the kernels of {count} allocate")
        return Terms(
            "RAM budget" if self.kind == "ram" else "transient budget",
            asked_bytes=self.bound_bytes or 0,
            works_bytes=works_bytes,
            note=f" (with {' and '.join(parts)})" if parts else "",
            forbidden=() if split else ("gradients in parts",),
        )


def _warn_of_tensors_alone(request: Request, graph: TrainingGraph, process: TrainingProcess) -> None:
    """Say so where nothing is known of the device's process, so that a RAM budget counts tensors and no more."""
    device = request.device
    if process.costs != ProcessCosts() or device.planning_only:
        return
    known = TrainingProcess(ProcessCosts.of(load_device(HOST), None, request.options.target), request.options.target)
    missing_bytes = known.fixed_bytes(graph) - process.fixed_bytes(graph)
    warnings.warn(
        f"The RAM budget counts tensors alone, for device {device.name} has no [process]: Python, onnxruntime and the "
        f"session come on top, {missing_bytes:,} bytes on device {HOST}. Measure them with `poet-onnx profile` and "
        "give --costs, or write [process] into the profile.",
        PoetWarning,
        stacklevel=2,
    )
