"""The training process that carries out a step: the nodes and addresses of its plan, and what RAM it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from poet_onnx.addresses import plan_region
from poet_onnx.addresses.marks import marks
from poet_onnx.addresses.region import Region
from poet_onnx.costing.device import DeviceProfile
from poet_onnx.costing.process import EvaluationMemory, ProcessMemory, evaluation_memory, process_memory
from poet_onnx.costing.process_costs import ProcessCosts
from poet_onnx.costing.versions import Versions
from poet_onnx.errors import InputError
from poet_onnx.graph import TrainingGraph
from poet_onnx.passes.layout import nodes_of_plan
from poet_onnx.passes.layout_nodes import ARENA, LayoutNode, loaded_nodes
from poet_onnx.plan import Action, Prediction, Step
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.rewriting.options import FitOptions, InspectOptions, RewriteOptions
from poet_onnx.runtime import installed_runtime
from poet_onnx.scheduling import SimulatedPlan


def versions_of(device: DeviceProfile, options: FitOptions | InspectOptions | RewriteOptions) -> Versions:
    """Return which Python and onnxruntime train on a device: those that are said, and on this machine those here.

    Raises:
        InputError: nobody has measured what a version that is said takes.
    """
    try:
        here = installed_runtime()
    except InputError:  # none, or one that cannot train
        here = None
    installed = None if here is None or here.has_training else here.version
    return Versions.of(device, options.python, options.onnxruntime, installed=installed)


@dataclass(frozen=True)
class LaidOutPlan:
    """What carries out the steps of a plan.

    Attributes:
        layout: the nodes.
        region: where the blocks lie.
        memory: what the process takes.
    """

    layout: tuple[LayoutNode, ...]
    region: Region
    memory: ProcessMemory


@dataclass(frozen=True)
class TrainingProcess:
    """A process that trains with a graph.

    Attributes:
        costs: of the process besides the step's tensors.
        target: runtime that it trains with.
        evaluation: what evaluating takes; None where nothing is evaluated.
        changes: whether its plan may change for another budget.
    """

    costs: ProcessCosts
    target: str
    evaluation: EvaluationMemory | None = None
    changes: bool = False

    def of_order(self, graph: TrainingGraph, prediction: Prediction) -> ProcessMemory:
        """Return what the process takes that runs every node once, in an order whose figures are known, unpacked."""
        return self._memory(graph, _operators(graph), self._region_bytes(prediction.transient_peak_bytes))

    def fixed_bytes(self, graph: TrainingGraph) -> int:
        """Return what a process takes for a graph at least, whatever the plan, besides transient bytes."""
        return self._memory(graph, _operators(graph), 0).training_bytes

    def starting_bytes(self, graph: TrainingGraph) -> int:
        """Return the most that a process takes before it trains with a graph whose nodes run once."""
        return self.costs.starting_bytes(graph, _operators(graph))

    def _memory(
        self, graph: TrainingGraph, operators: Sequence[str], region_bytes: int, *, pages: bool = False
    ) -> ProcessMemory:
        return process_memory(
            graph,
            self.costs,
            operators=operators,
            region_bytes=region_bytes,
            pages=pages,
            evaluation=self.evaluation,
            changes=self.changes,
        )

    def _region_bytes(self, step_bytes: int) -> int:
        """Return what the region takes that serves a training step of so many bytes, and the evaluation."""
        return step_bytes if self.evaluation is None else max(step_bytes, self.evaluation.region_bytes)

    def laid_out(self, problem: ScheduleProblem, steps: Sequence[Step]) -> LaidOutPlan:
        """Return what carries out the steps of a plan."""
        region = plan_region(problem, steps, self.target)
        layout = nodes_of_plan(problem.graph, steps, marks(region.steps))
        operators, region_bytes = _loaded_operators(layout), self._region_bytes(region.region_bytes)
        pages = any(step.action is Action.PAGE_OUT_START for step in steps)
        return LaidOutPlan(layout, region, self._memory(problem.graph, operators, region_bytes, pages=pages))

    def likely_peak_bytes(self, graph: TrainingGraph) -> Callable[[SimulatedPlan], int]:
        """Return what tells the peak of a process that carries out a plan, nearly, before the plan is laid out.

        Values would be packed without a gap, and what runs again would have a Gate each, and transfers none.
        """
        costs, ordered = self.costs, self._memory(graph, _operators(graph), 0)
        by_name = {node.name: costs.node_bytes(node.op_type) for node in graph.nodes}
        other_bytes = costs.node_bytes(ARENA)

        def peak_bytes(plan: SimulatedPlan) -> int:
            extra = [step for step, before in zip(plan.steps[1:], plan.steps, strict=False) if _is_extra(step, before)]
            more_bytes = (1 + len(extra)) * other_bytes
            more_bytes += sum(by_name[step.subject] for step in extra if step.action is Action.COMPUTE)
            training_bytes = ordered.training_bytes + self._region_bytes(plan.prediction.transient_peak_bytes)
            training_bytes += costs.paging_bytes if plan.prediction.page_out_bytes else 0
            return max(ordered.import_bytes, training_bytes) + more_bytes

        return peak_bytes

    def evaluating(
        self, graph: TrainingGraph, layout: Sequence[LayoutNode], region: Region, training: TrainingGraph
    ) -> TrainingProcess:
        """Return the process that evaluates, too, with a graph whose nodes and addresses are known."""
        operators = _loaded_operators(layout)
        memory = evaluation_memory(graph, training, self.costs, operators=operators, region_bytes=region.region_bytes)
        return replace(self, evaluation=memory)

    def exporting(self, nodes: int, constants_bytes: int) -> TrainingProcess:
        """Return the process, which evaluates, and exports another graph.

        Args:
            nodes: of that graph.
            constants_bytes: that exporting its constants takes.
        """
        assert self.evaluation is not None
        return replace(self, evaluation=replace(self.evaluation, exported_nodes=nodes, exported_bytes=constants_bytes))


def _operators(graph: TrainingGraph) -> list[str]:
    return [node.op_type for node in graph.nodes]


def _loaded_operators(layout: Sequence[LayoutNode]) -> list[str]:
    """Return the operators of the nodes that a session loads: an Arena stands in front of those of a layout."""
    return [ARENA, *(node.op_type for node in loaded_nodes(layout))]


def _is_extra(step: Step, before: Step) -> bool:
    """Return whether a step has a node that the graph has not: a transfer has one if nothing parts its halves."""
    if step.action is Action.COMPUTE:
        return step.copy > 0
    is_end = step.action in (Action.PAGE_OUT_END, Action.PAGE_IN_END)
    return not is_end or before.subject != step.subject
