"""What a request means for a model: its first graph variant in two orders, and budget and deadline in numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_ir as ir

from poet_onnx.costing.process_costs import ProcessCosts
from poet_onnx.costing.store_traffic import store_written_bytes
from poet_onnx.description.metadata import Updates
from poet_onnx.errors import InfeasibleError
from poet_onnx.graph import TrainingGraph
from poet_onnx.passes.stored import StoreChoice
from poet_onnx.plan import Prediction
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.rewriting.baseline import Baseline
from poet_onnx.rewriting.budget import RequestedBudget
from poet_onnx.rewriting.evaluation import EvaluationStep, process_beside
from poet_onnx.rewriting.process import TrainingProcess
from poet_onnx.rewriting.request import Request
from poet_onnx.rewriting.smallest import Candidate
from poet_onnx.rewriting.variants import GraphVariant, variants
from poet_onnx.scheduling import (
    file_order,
    ordered_steps,
)
from poet_onnx.simulate import simulate


class NoRoomError(InfeasibleError):
    """A RAM budget leaves a step nothing besides what is in RAM all the time.

    Attributes:
        least_bytes: no plan needs less.
    """

    def __init__(self, message: str, least_bytes: int) -> None:
        super().__init__(message)
        self.least_bytes = least_bytes


@dataclass(frozen=True)
class Asked:
    """What a request means for a model: budgets and deadlines are relative to its first graph variant.

    Attributes:
        request: as it came.
        first: the first variant.
        original: prediction for its nodes in the order of the file.
        ordered: prediction for its baseline order.
        budget: that was asked for.
        deadline_seconds: bound on the predicted step time; None for none.
        evaluation: what the process runs besides, planned for the budget if it fits; None for none.
        measured_graph: what costs were measured of, if that is not the first variant.
    """

    request: Request
    first: Baseline
    original: Prediction
    ordered: Prediction
    budget: RequestedBudget
    deadline_seconds: float | None
    evaluation: EvaluationStep | None
    measured_graph: TrainingGraph | None

    @classmethod
    def of(
        cls,
        request: Request,
        first: GraphVariant,
        evaluation: EvaluationStep | None,
        *,
        measured_graph: TrainingGraph | None = None,
        gives_way: bool = False,
    ) -> Asked:
        """Simulate the first variant in the file's order and in a better one, and plan the evaluation.

        Raises:
            NoRoomError: if that is asked for by `gives_way`.
        """
        baseline = baseline_of(first, request, measured_graph)
        original = in_file_order(baseline)
        ordered = baseline.ordered.prediction
        deadline = None if request.deadline is None else request.deadline.in_seconds(ordered.seconds)
        process = process_of(request, baseline, evaluation)
        budget = RequestedBudget.of(request, baseline, ordered, process, evaluation)
        step_bytes = budget.step_bytes(baseline.graph)
        if gives_way and step_bytes is not None and step_bytes <= 0:
            least_bytes = (budget.bound_bytes or 0) - step_bytes
            raise NoRoomError(
                f"The budget is {-step_bytes:,} bytes less than what is in RAM besides the step.", least_bytes
            )
        asked = cls(request, baseline, original, ordered, budget, deadline, evaluation, measured_graph)
        if evaluation is None:
            return asked
        return asked.evaluating(evaluation.within(step_bytes, recompute=request.recompute))

    def evaluating(self, evaluation: EvaluationStep) -> Asked:
        """Return it with an evaluation that has another plan."""
        return replace(self, budget=self.budget.evaluating(evaluation, self.first.graph), evaluation=evaluation)

    def check_room(self, *, in_order: bool) -> None:
        """Check that there may be a plan of the first variant, or that it fits `in_order`.

        Raises:
            NoRoomError: if each plan, or that order, needs more than the budget.
        """
        bound_bytes, least_bytes = self.budget.bound_bytes, self.budget.least_variant_bytes(self.first)
        if bound_bytes is not None and least_bytes > bound_bytes:
            missing_bytes = least_bytes - bound_bytes
            raise NoRoomError(f"The budget is {missing_bytes:,} bytes less than what every plan needs.", least_bytes)
        room_bytes = self.budget.plan_bytes(self.first) if in_order else None
        if room_bytes is not None and self.ordered.transient_peak_bytes > room_bytes:
            raise NoRoomError("The budget is less than what the step needs in its order.", least_bytes)

    def candidate(self, baseline: Baseline) -> Candidate:
        """Return what is asked of the plan of a variant."""
        return Candidate(baseline, self.problem(baseline), self.limits(baseline, self.budget.plan_bytes(baseline)))

    def baseline(self, variant: GraphVariant) -> Baseline:
        """Return the baseline of any of the model's variants."""
        if variant is self.first.variant:
            return self.first
        return baseline_of(variant, self.request, self.measured_graph or self.first.graph)

    def problem(self, baseline: Baseline) -> ScheduleProblem:
        """Return what the scheduler is asked for a variant."""
        return replace(
            baseline.problem,
            recompute=self.request.recompute,
            paging=self.request.paging and baseline.problem.paging,
        )

    def limits(self, baseline: Baseline, budget_bytes: int | None) -> Limits:
        """Return what the plan of a variant must keep to, where so many transient bytes are left of the budget.

        Raises:
            InfeasibleError: if the store alone is written more than a step may write.
        """
        limits, stored = self.request.limits, store_written_bytes(baseline.graph)
        if limits.max_written_bytes is not None and stored:
            if limits.max_written_bytes < stored:
                raise InfeasibleError(
                    f"A step writes {stored:,} bytes to the store, but may write {limits.max_written_bytes:,}: allow "
                    "more with --max-written, or fewer steps with --lifetime."
                )
            limits = replace(limits, max_written_bytes=limits.max_written_bytes - stored)
        return replace(limits, budget_bytes=budget_bytes, deadline_seconds=self.deadline_seconds)


def first_variant(
    model: ir.Model, request: Request, updates: Updates | None, stored: StoreChoice | None = None
) -> GraphVariant:
    """Return the first graph variant of a model, with what lives in a store; None without one."""
    target, threads = request.options.target, request.threads
    return next(variants(model, request.device, target, updates=updates, stored=stored, threads=threads))


def in_file_order(baseline: Baseline) -> Prediction:
    """Return what the simulator predicts of a variant's nodes in the order of the file."""
    return simulate(baseline.problem, ordered_steps(file_order(baseline.graph)))


def process_of(request: Request, first: Baseline, evaluation: EvaluationStep | None) -> TrainingProcess:
    """Return the process that trains with a first variant, and evaluates where there is something to evaluate with."""
    target = request.options.target
    costs = ProcessCosts.of(
        request.device, request.measured, target, threads=request.threads, versions=request.versions
    )
    return replace(process_beside(evaluation, costs, first.graph, target), changes=request.is_one_of_several)


def baseline_of(variant: GraphVariant, request: Request, first_graph: TrainingGraph | None) -> Baseline:
    """Return the baseline of a variant, with costs measured of the first graph, or of the variant's own for None."""
    device, target, measured, threads = (
        request.device,
        request.options.target,
        request.measured,
        request.threads,
    )
    return Baseline.of(variant, device, target, measured=measured, first_graph=first_graph, threads=threads)
