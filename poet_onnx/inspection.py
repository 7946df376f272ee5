"""What fills the memory of a training step, and how small its budget could be."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import pydantic

from poet_onnx.costs import CostTable, cost_table, estimated_workspace_nodes
from poet_onnx.device import DeviceProfile
from poet_onnx.extract import check_training, extract, load_model
from poet_onnx.forms import Form, forms
from poet_onnx.graph import TrainingGraph
from poet_onnx.optimizer_choice import OptimizerChoice
from poet_onnx.passes.batch_norm_modes import SettleBatchNorm, model_beside
from poet_onnx.passes.frozen_batch_norm import frozen_outputs
from poet_onnx.passes.lowering import normalize_for
from poet_onnx.plan import Step
from poet_onnx.planning import set_aside_bytes
from poet_onnx.problem import ScheduleProblem
from poet_onnx.report import Figures
from poet_onnx.scheduling import memory_aware_order, ordered_steps, smallest_budget
from poet_onnx.scheduling.budget import SmallestBudget
from poet_onnx.scheduling.instance import file_order
from poet_onnx.simulate import replay

SCHEMA_VERSION = 1
LARGEST_TENSORS = 10


class _Value(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class LiveTensor(_Value):
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


class Floor(_Value):
    """The smallest activation budget for which a plan was found, and a bound on that of others like it.

    Attributes:
        budget_bytes: a plan keeps to this.
        bound_bytes: no plan of those that `covers` names keeps to less. Plans in other orders of the nodes may, and
            plans that both page and recompute.
        covers: those plans, in words.
    """

    budget_bytes: int
    bound_bytes: int
    covers: str


class Inspection(_Value):
    """What fills the memory of a training step.

    Attributes:
        target: runtime whose form of the model was looked at.
        original, ordered: the nodes in file order, and in the memory-aware order.
        smallest_budget_bytes: of transient bytes, with everything that the device allows.
        with_paging: the floor when both means may be used; None for a device without storage.
        without_paging: the floor of recompute alone.
        with_parts: the floor when large weight gradients may be computed in parts besides, and for the stock runtime
            other expansions taken; None where that does not lower it.
        largest_node, largest_node_bytes: the node that needs the most by itself, in any plan with whole gradients.
        set_aside_bytes: what a budget for the stock runtime keeps for what onnxruntime adds to its blocks on aarch64;
            it is in every floor, and in what a percentage is one of.
        estimated_workspace_nodes: nodes whose kernels' own memory is an estimate, in all of the figures.
        frozen_batch_norms: what the batch normalizations make that use their running statistics in training, too.
    """

    schema_version: int = SCHEMA_VERSION
    model: str
    target: str
    device: str
    ram_bytes: int
    resident_bytes: int
    original: Peak
    ordered: Peak
    smallest_budget_bytes: int
    with_paging: Floor | None
    without_paging: Floor
    with_parts: Floor | None
    largest_node: str
    largest_node_bytes: int
    set_aside_bytes: int = 0
    estimated_workspace_nodes: tuple[str, ...] = ()
    frozen_batch_norms: tuple[str, ...] = ()


def inspect(
    path: str | os.PathLike[str],
    device: DeviceProfile,
    *,
    dims: Mapping[str, int] | None = None,
    target: str = "training",
    frozen_batch_norm: str = "auto",
    optimizer: str | None = None,
    accumulation_steps: int = 1,
    clip_norm: bool = False,
) -> Inspection:
    """Find what fills the memory of a model's training step and the smallest budget that can work on a device.

    Args:
        path: a training model.
        device: whose storage and costs to assume.
        dims: sizes of named dimensions.
        target: runtime that will run the model; for "stock" its lowered form is looked at.
        frozen_batch_norm: as for `rewrite`.
        optimizer: as for `rewrite`.
        accumulation_steps: as for `rewrite`.
        clip_norm: as for `rewrite`.

    Raises:
        InputError: if the model cannot be used.
    """
    model = load_model(path)
    check_training(model)
    nodes = len(model.graph)
    SettleBatchNorm(frozen_batch_norm, forward=partial(model_beside, path))(model)
    frozen = frozen_outputs(model)
    normalize_for(target, dims)(model)
    updates = OptimizerChoice.read(optimizer, target, accumulation_steps, clip_norm).for_model(model)
    first, *others = forms(model, device, target, updates=updates)
    graph = extract(first.model)
    costs = cost_table(graph, device)
    problem = ScheduleProblem(graph, costs)
    order = memory_aware_order(problem)
    recompute_only = smallest_budget(replace(problem, paging=False), order)
    aside = set_aside_bytes(problem, order, target)
    without_paging = _floor(recompute_only, aside)
    with_paging = None if device.storage is None else _floor(smallest_budget(problem, order), aside)
    first_bytes = min(floor.budget_bytes for floor in (without_paging, with_paging) if floor is not None)
    with_parts = _floor_of_others(others, device, target, first_bytes)
    return Inspection(
        model=os.fspath(path),
        target=target,
        device=device.name,
        ram_bytes=device.ram_bytes,
        resident_bytes=graph.resident_bytes,
        original=_peak(graph, costs, ordered_steps(file_order(graph)), nodes),
        ordered=_peak(graph, costs, ordered_steps(order), nodes),
        smallest_budget_bytes=first_bytes if with_parts is None else with_parts.budget_bytes,
        with_paging=with_paging,
        without_paging=without_paging,
        with_parts=with_parts,
        largest_node=recompute_only.node,
        largest_node_bytes=recompute_only.node_bytes,
        set_aside_bytes=aside,
        estimated_workspace_nodes=estimated_workspace_nodes(graph, costs),
        frozen_batch_norms=frozen,
    )


def _floor_of_others(others: Sequence[Form], device: DeviceProfile, target: str, first_bytes: int) -> Floor | None:
    """Return the lowest floor of the model's other forms, if it is below that of the first."""
    found = []
    for form in others:
        graph = extract(form.model)
        problem = ScheduleProblem(graph, cost_table(graph, device))
        order = memory_aware_order(problem)
        found.append(_floor(smallest_budget(problem, order), set_aside_bytes(problem, order, target)))
    best = min(found, key=lambda floor: floor.budget_bytes, default=None)
    return best if best is not None and best.budget_bytes < first_bytes else None


def _floor(found: SmallestBudget, aside_bytes: int) -> Floor:
    return Floor(
        budget_bytes=found.budget_bytes + aside_bytes,
        bound_bytes=found.bound_bytes + aside_bytes,
        covers=str(found.covers),
    )


def _peak(graph: TrainingGraph, costs: CostTable, steps: Sequence[Step], nodes: int) -> Peak:
    """Replay an order of the nodes and describe the moment at which it needs the most."""
    replayed = replay(ScheduleProblem(graph, costs), steps)
    node = next(node for node in graph.nodes if node.name == steps[replayed.peak_step].subject)
    largest = [graph.tensors[name] for name, _ in replayed.live_at_peak[:LARGEST_TENSORS]]
    return Peak(
        **Figures.of(replayed.prediction, nodes).model_dump(),
        peak_node=node.name,
        peak_op_type=node.op_type,
        peak_workspace_bytes=costs.nodes[node.name].workspace_bytes,
        peak_tensors=tuple(
            LiveTensor(name=tensor.name, size_bytes=tensor.size_bytes, dtype=tensor.dtype, shape=tensor.shape)
            for tensor in largest
        ),
        peak_tensor_count=len(replayed.live_at_peak),
    )
