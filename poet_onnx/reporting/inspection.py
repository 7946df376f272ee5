"""What fills the memory of a training step, and how small its budget could be."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

from poet_onnx.costing.costs import estimated_workspace_nodes
from poet_onnx.costing.device import load_device
from poet_onnx.costing.process import ProcessMemory
from poet_onnx.costing.process_costs import ProcessCosts
from poet_onnx.errors import CheckFailedError
from poet_onnx.options import taking
from poet_onnx.plan import PlanClass
from poet_onnx.plan.limits import UNLIMITED
from poet_onnx.record import Record
from poet_onnx.reporting.curve import Curve
from poet_onnx.reporting.curve_point import CurvePoint
from poet_onnx.reporting.report import Figures, ProcessPart, process_parts
from poet_onnx.rewriting.baseline import Baseline
from poet_onnx.rewriting.budget import RequestedBudget
from poet_onnx.rewriting.evaluation import EvaluationStep, process_beside
from poet_onnx.rewriting.options import InspectOptions
from poet_onnx.rewriting.process import TrainingProcess, versions_of
from poet_onnx.rewriting.smallest import Candidate, thriftiest_of
from poet_onnx.rewriting.source import Given
from poet_onnx.rewriting.storing import constants_of
from poet_onnx.rewriting.variants import variants
from poet_onnx.scheduling import SmallestBudget, file_order, ordered_steps
from poet_onnx.simulate import Replay, replay

SCHEMA_VERSION = 2
LARGEST_TENSORS = 10


class LiveTensor(Record):
    """A tensor that is in memory at the peak."""

    name: str
    size_bytes: int
    dtype: str
    shape: tuple[int, ...]


class Peak(Figures):
    """One order of the nodes, and the moment at which it needs the most.

    Attributes:
        peak_node, peak_op_type: the node that runs at the peak.
        peak_workspace_bytes: what its kernel allocates for itself.
        peak_tensors: the largest tensors alive there, largest first.
        peak_tensor_count: how many are alive there.
    """

    peak_node: str
    peak_op_type: str
    peak_workspace_bytes: int
    peak_tensors: tuple[LiveTensor, ...]
    peak_tensor_count: int


class Floor(Record):
    """The smallest activation budget for which a plan was found, and a bound on that of others like it.

    Attributes:
        budget_bytes: a plan keeps to this.
        process_bytes: the smallest RAM budget for which a plan was found, mostly another one.
        bound_bytes: no plan of those that `covers` names keeps to less. Plans in other orders of the nodes may, and
            plans that both page and recompute.
        covers: those plans.
    """

    budget_bytes: int
    process_bytes: int
    bound_bytes: int
    covers: PlanClass


class Inspection(Record):
    """What fills the memory of a training step.

    Attributes:
        target: runtime for which the model was looked at.
        original, ordered: the nodes in file order, and in the memory-aware order.
        process: the parts of what a process takes that trains the ordered graph.
        smallest_budget_bytes: of transient bytes, with everything that the device allows: what a refusal names.
        smallest_process_bytes: the smallest RAM budget found, likewise.
        with_paging: the floor when both means may be used; None for a device without storage.
        without_paging: the floor of recompute alone.
        with_parts: the floor when large weight gradients may be computed in parts besides; None where that does not
            lower it.
        largest_node, largest_node_bytes: the node that needs the most by itself, in any plan with whole gradients.
        set_aside_bytes: what a budget for the stock runtime keeps for what onnxruntime adds to its blocks on aarch64;
            it is in every floor, and in what a percentage is one of.
        estimated_workspace_nodes: nodes whose kernels' own memory is an estimate, in all of the figures.
        frozen_batch_norms: what the batch normalizations make that use their running statistics in training, too.
        curve: what a step takes at some RAM budgets, smallest first; empty where that was not asked for.
    """

    schema_version: int = SCHEMA_VERSION
    model: str
    target: str
    device: str
    ram_bytes: int
    resident_bytes: int
    original: Peak
    ordered: Peak
    process: tuple[ProcessPart, ...]
    smallest_budget_bytes: int
    smallest_process_bytes: int
    with_paging: Floor | None
    without_paging: Floor
    with_parts: Floor | None
    largest_node: str
    largest_node_bytes: int
    set_aside_bytes: int = 0
    estimated_workspace_nodes: tuple[str, ...] = ()
    frozen_batch_norms: tuple[str, ...] = ()
    curve: tuple[CurvePoint, ...] = ()


@taking(InspectOptions)
def inspect(path: str | os.PathLike[str], options: InspectOptions) -> Inspection:
    """Find what fills the memory of a model's training step and the smallest budget that can work on a device.

    Args:
        path: a training model; with a loss, a forward model.
        options: each field of `InspectOptions` as a keyword argument.

    Raises:
        InputError: if an option or the model cannot be used.
    """
    device, target = load_device(options.device, options.storage), options.target
    versions = versions_of(device, options)
    device = versions.running_on(device, target)
    given = Given.read(path, options)
    threads = device.compute.threads(options.threads)
    source, updates = given.prepared(options, threads=threads)
    costs = ProcessCosts.of(device, None, target, threads=threads, versions=versions)
    evaluated = None if updates is None else given.train_graph
    beside = partial(EvaluationStep.beside, evaluated, source.model, device, target, threads=threads)
    evaluation = beside()
    evaluation_bytes = 0 if evaluation is None else evaluation.transient_peak_bytes
    found = variants(source.model, device, target, updates=updates, threads=threads)
    baselines = (Baseline.of(variant, device, target, threads=threads) for variant in found)
    first = next(baselines)
    process = process_beside(evaluation, costs, first.graph, target)
    in_order = process.laid_out(first.problem, first.ordered.steps).memory
    budgets = _Budgets.of(process)
    constants = constants_of(evaluated, source.model)
    curve = Curve(source.model, device, target, threads, updates, constants, costs, beside)
    recompute_only, without_paging = budgets.floor(Candidate(first, replace(first.problem, paging=False), UNLIMITED))
    with_paging = None
    if device.storage is not None:
        with_paging = budgets.floor(Candidate(first, first.problem, UNLIMITED), unpaged=recompute_only)[1]
    lowest = with_paging or without_paging
    with_parts = _floor_of_others(baselines, budgets, lowest)
    lowest = with_parts or lowest
    orders = (file_order(first.graph), first.order)
    original, ordered = (replay(first.problem, ordered_steps(order)) for order in orders)
    return Inspection(
        model=os.fspath(path),
        target=target,
        device=device.name,
        ram_bytes=device.ram_bytes,
        resident_bytes=first.graph.resident_bytes,
        original=_peak(
            first, original, orders[0], source.node_count, process.of_order(first.graph, original.prediction)
        ),
        ordered=_peak(first, ordered, orders[1], len(first.graph.nodes), in_order),
        process=process_parts(in_order),
        smallest_budget_bytes=max(lowest.budget_bytes, evaluation_bytes),
        smallest_process_bytes=lowest.process_bytes,
        with_paging=with_paging,
        without_paging=without_paging,
        with_parts=with_parts,
        largest_node=recompute_only.node,
        largest_node_bytes=recompute_only.node_bytes,
        set_aside_bytes=first.aside_bytes,
        estimated_workspace_nodes=estimated_workspace_nodes(first.graph, first.costs),
        frozen_batch_norms=source.frozen_batch_norms,
        curve=curve.points(first, in_order.peak_bytes) if options.curve else (),
    )


@dataclass(frozen=True)
class _Budgets:
    """Budgets of both kinds, of no size: what is looked for is the smallest."""

    step: RequestedBudget
    process: RequestedBudget

    @classmethod
    def of(cls, process: TrainingProcess) -> _Budgets:
        return cls(RequestedBudget("activation", None, process), RequestedBudget("ram", None, process))

    def floor(
        self,
        candidate: Candidate,
        *,
        varied: bool = True,
        unpaged: SmallestBudget | None = None,
        process_bytes: float = math.inf,
    ) -> tuple[SmallestBudget, Floor]:
        """Return how far the transient peak of a graph variant can be pushed down, and what that means for budgets.

        The RAM budget is one below that of another variant, which stands where no smaller one is found.
        """
        found = candidate.smallest(varied=varied, unpaged=unpaged)
        step = thriftiest_of(candidate, found, self.step)
        process = thriftiest_of(candidate, found, self.process, process_bytes)
        if step is None:
            raise CheckFailedError("Without limits, the baseline order is a plan, but none was found.")
        return found, Floor(
            budget_bytes=step.budget_bytes,
            process_bytes=int(process_bytes) if process is None else process.budget_bytes,
            bound_bytes=found.bound_bytes + candidate.baseline.aside_bytes,
            covers=found.covers,
        )


def _floor_of_others(others: Iterable[Baseline], budgets: _Budgets, first: Floor) -> Floor | None:
    """Return the lowest floor of the model's other graph variants, if it is below that of the first."""
    lowest, process_bytes = first, first.process_bytes
    for baseline in others:
        is_smaller = budgets.step.could_lower(baseline, lowest.budget_bytes)
        is_lighter = budgets.process.could_lower(baseline, process_bytes)
        if is_smaller or is_lighter:
            candidate = Candidate(baseline, baseline.problem, UNLIMITED)
            floor = budgets.floor(candidate, varied=is_lighter, process_bytes=process_bytes)[1]
            lowest = min(lowest, floor, key=lambda floor: floor.budget_bytes) if is_smaller else lowest
            process_bytes = floor.process_bytes if is_lighter else process_bytes
    # Plans with fewer transient bytes have more nodes, for which the session takes memory of its own.
    both = lowest.model_copy(update={"process_bytes": process_bytes})
    return None if both == first else both


def _peak(
    baseline: Baseline, replayed: Replay, order: tuple[str, ...], node_count: int, process: ProcessMemory
) -> Peak:
    """Describe the moment at which a replayed order of the nodes needs the most."""
    graph, name = baseline.graph, order[replayed.peak_step]
    node = next(node for node in graph.nodes if node.name == name)
    largest = [graph.tensors[tensor] for tensor, _ in replayed.live_at_peak[:LARGEST_TENSORS]]
    return Peak(
        **Figures.of(replayed.prediction, node_count, process).model_dump(),
        peak_node=name,
        peak_op_type=node.op_type,
        peak_workspace_bytes=baseline.costs.nodes[name].workspace_bytes,
        peak_tensors=tuple(
            LiveTensor(name=tensor.name, size_bytes=tensor.size_bytes, dtype=tensor.dtype, shape=tensor.shape)
            for tensor in largest
        ),
        peak_tensor_count=len(replayed.live_at_peak),
    )
