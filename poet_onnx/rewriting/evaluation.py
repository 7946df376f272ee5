"""The evaluation graph that goes with a rewritten step: it runs in the region of the step, by a plan of its own.

Nothing is kept for a backward pass, so that a good order is nearly always enough. Where it is not, values are computed
again; none are paged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version

import onnx_ir as ir
from onnx_ir import passes
from onnx_ir.passes.common import RemoveUnusedNodesPass

from poet_onnx.addresses import plan_region
from poet_onnx.addresses.marks import marks
from poet_onnx.addresses.region import Region
from poet_onnx.costing.device import DeviceProfile
from poet_onnx.costing.process_costs import ProcessCosts
from poet_onnx.description.forward import FORWARD_KEY
from poet_onnx.description.metadata import EvaluationDescription
from poet_onnx.description.names import EVALUATION_KEY, OUTPUTS_KEY, handle_name
from poet_onnx.errors import InfeasibleError, LimitReachedError
from poet_onnx.gradients.batch_axis import free_batch
from poet_onnx.gradients.evaluation_graph import is_small
from poet_onnx.gradients.train_graph import TrainGraph
from poet_onnx.graph import TrainingGraph
from poet_onnx.graph.extract import extract
from poet_onnx.graph.extract.roles import forget_roles
from poet_onnx.passes.arena import InsertArena
from poet_onnx.passes.forward_beside import Beside, live_nodes, packed_forward
from poet_onnx.passes.layout import nodes_of_plan
from poet_onnx.passes.layout_nodes import LayoutNode
from poet_onnx.passes.lowering import lower, normalize_for
from poet_onnx.passes.materialize import MaterializePlan
from poet_onnx.passes.metadata import VERSION_KEY, WriteInputRanges
from poet_onnx.passes.roles import find_roles
from poet_onnx.passes.stored import load_tensors
from poet_onnx.passes.stored_constants import StoredConstants
from poet_onnx.passes.unread import RemoveUnread
from poet_onnx.passes.updates import free_state
from poet_onnx.passes.vocabulary_loss import UseVocabularyLoss
from poet_onnx.plan import Plan
from poet_onnx.plan.limits import Limits
from poet_onnx.rewriting.baseline import Baseline
from poet_onnx.rewriting.process import TrainingProcess
from poet_onnx.rewriting.variants import GraphVariant, panels_on, quantized_panels
from poet_onnx.scheduling import SimulatedPlan, schedule

_ANY_GAP, _MOST_SECONDS = 0.99, 10.0
"""Gap and time of a plan that only has to fit."""


@dataclass(frozen=True)
class Exported:
    """A graph with the exporter's nodes.

    Attributes:
        made: returns it, lowered.
        nodes: of it, about.
        constants_bytes: that exporting it takes.
    """

    made: Callable[[], ir.Model]
    nodes: int
    constants_bytes: int


@dataclass(frozen=True)
class EvaluationStep:
    """A graph that computes the loss of a batch and trains nothing, with its plan.

    Attributes:
        baseline: the graph, lowered, and the order of its nodes.
        description: what its names are for.
        transient_peak_bytes: of the plan, with what is set aside.
        layout: the nodes.
        region: where the blocks lie.
        target: runtime that runs it.
        exported: the graph that is exported, where that is another one.
    """

    baseline: Baseline
    description: EvaluationDescription
    transient_peak_bytes: int
    layout: tuple[LayoutNode, ...]
    region: Region
    target: str
    exported: Exported | None = None

    @classmethod
    def beside(
        cls,
        made: TrainGraph | None,
        training: ir.Model,
        device: DeviceProfile,
        target: str,
        *,
        threads: int = 1,
        stored: Sequence[str] = (),
        constants: StoredConstants | None = None,
    ) -> EvaluationStep | None:
        """Prepare an evaluation graph as its training graph is prepared, and order its nodes; None if there is none.

        Args:
            made: has the graph, which is not changed; None for a training graph that was given.
            training: the training graph, normalized, whose step is to have an optimizer.
            device: that it is planned for.
            target: runtime that runs it.
            threads: inside an operator.
            stored: names of what lives in a store.
            constants: that live there; None without a store.
        """
        if made is None:
            return None
        roles = find_roles(training)
        arrays = frozenset((*roles.parameters, *roles.state))
        prepared = partial(_prepared, frozen=made.frozen, arrays=arrays, device=device, target=target, threads=threads)
        if constants is not None:
            prepared = partial(prepared, stored=stored, constants=constants)
        plain, exported = partial(prepared, made.evaluation), None
        if made.fused is not None:
            graph = made.evaluation.graph
            beside = Beside.of(graph, made.fused.graph)
            exported = Exported(plain, live_nodes(graph), beside.exporting_bytes)
        model = plain() if made.fused is None else prepared(made.fused, is_exported=False)
        arrays |= set(map(handle_name, stored))
        held = tuple(value.name or "" for value in model.graph.inputs if value.name in arrays)
        variant = GraphVariant(None, model, extract(model, trains=False))
        baseline = Baseline.of(variant, device, target, threads=threads)
        return cls._planned(baseline, EvaluationDescription(held), baseline.ordered, target, exported)

    @classmethod
    def _planned(
        cls,
        baseline: Baseline,
        description: EvaluationDescription,
        plan: Plan | SimulatedPlan,
        target: str,
        exported: Exported | None,
    ) -> EvaluationStep:
        region = plan_region(replace(baseline.problem, recompute=True), plan.steps, target)
        return cls(
            baseline,
            description,
            plan.prediction.transient_peak_bytes + baseline.aside_bytes,
            nodes_of_plan(baseline.graph, plan.steps, marks(region.steps)),
            region,
            target,
            exported,
        )

    def within(self, limit_bytes: int | None, *, recompute: bool) -> EvaluationStep:
        """Return the graph with a plan that keeps to so many transient bytes; as it is where none is found.

        Args:
            limit_bytes: bound on the transient peak and on the region; None for none.
            recompute: whether nodes may run again.
        """
        if limit_bytes is None or not recompute or self._most_bytes <= limit_bytes:
            return self
        problem = replace(self.baseline.problem, recompute=True, paging=False)
        limits = Limits(max(1, limit_bytes - self.baseline.aside_bytes))
        try:
            plan = schedule(
                problem,
                limits,
                gap=_ANY_GAP,
                baseline=self.baseline.ordered,
                time_limit_seconds=_MOST_SECONDS,
                explains=False,
            )
        except (InfeasibleError, LimitReachedError):
            return self
        return self._planned(self.baseline, self.description, plan, self.target, self.exported)

    @property
    def _most_bytes(self) -> int:
        return max(self.transient_peak_bytes, self.region.region_bytes)

    def process_of(self, training: TrainingProcess, graph: TrainingGraph) -> TrainingProcess:
        """Return the process that evaluates besides training with a graph."""
        process = training.evaluating(self.baseline.graph, self.layout, self.region, graph)
        return (
            process if self.exported is None else process.exporting(self.exported.nodes, self.exported.constants_bytes)
        )

    def carried_out(self, region_bytes: int) -> ir.Model:
        """Write the plan into the model, and return it.

        Args:
            region_bytes: of the region that it shares with the training step.
        """
        model = self.baseline.variant.model
        passes.Sequential(
            MaterializePlan(self.baseline.graph, self.layout),
            InsertArena(replace(self.region, region_bytes=region_bytes)),
            RemoveUnread(),
        )(model)
        model.metadata_props[VERSION_KEY] = version("poet-onnx")
        model.metadata_props[EVALUATION_KEY] = self.description.to_json()
        forget_roles(model.graph)
        if self.exported is not None:
            model.metadata_props[FORWARD_KEY] = packed_forward(self.exported.made(), model.graph)
        return model


def _prepared(
    given: ir.Model,
    *,
    frozen: Iterable[str],
    arrays: Collection[str],
    device: DeviceProfile,
    target: str,
    threads: int,
    stored: Sequence[str] = (),
    constants: StoredConstants | None = None,
    is_exported: bool = True,
) -> ir.Model:
    """Return a graph of the loss, which is not changed, lowered as the training graph is.

    Weights named in `frozen` stay whole, and `arrays` names parameters and running statistics. The rest is as for
    `EvaluationStep.beside`, but whether the graph is also exported.
    """
    model = given.clone()
    graph = model.graph
    with _kept_whole(graph, frozen):
        normalize_for(target)(model)
    WriteInputRanges()(model)
    graph.outputs[1:] = [value for value in graph.outputs[1:] if is_small(value)]  # OUTPUTS_KEY names them all
    outputs = model.metadata_props.get(OUTPUTS_KEY)
    returned = () if outputs is None else json.loads(outputs)
    in_parts = UseVocabularyLoss(with_gradient=False, trained=arrays, returned=returned)(model).modified
    lower(model, target)
    free_state(graph, [name for name in graph.initializers if name in arrays])
    if is_exported and outputs is not None:  # sizes may have come with the lowering
        free_batch(model, returned, arrays)
    if in_parts:
        RemoveUnusedNodesPass()(model)  # that made scores of all words
    quantized_panels(threads)(model)
    if constants is not None:
        load_tensors(graph, stored, constants)
        panels = panels_on(device, threads)
        if panels is not None:
            panels(model)
    RemoveUnread()(model)
    return model


def process_beside(
    evaluation: EvaluationStep | None, costs: ProcessCosts, graph: TrainingGraph, target: str
) -> TrainingProcess:
    """Return the process that trains with a graph, and evaluates where there is something to evaluate with."""
    process = TrainingProcess(costs.of_graph(graph), target)
    return process if evaluation is None else evaluation.process_of(process, graph)


@contextmanager
def _kept_whole(graph: ir.Graph, names: Iterable[str]) -> Iterator[None]:
    """Let frozen weights stay as they are, which passes may transpose or cut: adapters are merged into them by name."""
    weights = [value for name in names if (value := graph.initializers.get(name)) is not None and _is_weight(value)]
    numbers = {value.name or "": value.const_value for value in weights}
    for value in weights:
        del graph.initializers[value.name or ""]
        value.const_value = None
        graph.inputs.append(value)
    yield
    for value in [value for value in graph.inputs if value.name in numbers]:
        graph.inputs.remove(value)
        value.const_value = numbers[value.name or ""]
        graph.initializers.add(value)


def _is_weight(value: ir.Value) -> bool:
    return value.const_value is not None and len(value.const_value.shape) > 1 and not value.is_graph_input()
