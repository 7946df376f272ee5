"""Measures a training step: the whole, every node of it, and what other variants of its graph have in their place."""

from __future__ import annotations

import math
import statistics
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import onnx_ir as ir

from poet_onnx.costing.costs import cost_table
from poet_onnx.costing.device import DeviceProfile
from poet_onnx.costing.measured import NodeMeasurement
from poet_onnx.energy import run_energy
from poet_onnx.errors import CheckFailedError, PoetWarning
from poet_onnx.graph import Node, TrainingGraph
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.profiler.energy import Metered, operator_watts, scale_to_step
from poet_onnx.profiler.kernels import KernelTimes, time_kernels
from poet_onnx.profiler.rates import TimedNodes
from poet_onnx.profiler.timing import time_steps
from poet_onnx.profiler.workspace import CountedWorkspace, count_workspace
from poet_onnx.rewriting.variants import GraphVariant
from poet_onnx.runtime.feeds import random_feeds
from poet_onnx.runtime.memory_left import memory_left
from poet_onnx.scheduling import SimulatedPlan

_VARIANT_SHARE = 0.5
"""Another variant runs this share of the repetitions: only some of its nodes are new."""


@dataclass(frozen=True)
class Runs:
    """How often and how steps run.

    Attributes:
        seed: of the random feeds.
        repetitions: timed steps of each kind.
        warmup: steps before them.
        threads: threads inside an operator.
        note: called between timings, while the processor has been busy.
    """

    seed: int
    repetitions: int
    warmup: int
    threads: int
    note: Callable[[], None]


@dataclass(frozen=True)
class MeasuredStep:
    """What a step took.

    Attributes:
        seconds: of the whole step.
        overhead_seconds: of each node beside its kernel.
        nodes: by name.
        active_watts: above rest during the steps; None where no meter saw any.
        watts_scale: of the power of nodes alone, with which all of them give that.
    """

    seconds: float
    overhead_seconds: float
    nodes: Mapping[str, NodeMeasurement]
    active_watts: float | None
    watts_scale: float = 1.0

    @property
    def timed(self) -> TimedNodes:
        """Return the times alone."""
        kernels = {name: node.seconds for name, node in self.nodes.items()}
        return TimedNodes(self.seconds, self.overhead_seconds, kernels, self.active_watts)


def warn_of_room(graph: TrainingGraph, device: DeviceProfile) -> None:
    """Warn where the unmodified step takes more memory than is left.

    Args:
        graph: of the step.
        device: any; what nodes cost plays no part.
    """
    problem = ScheduleProblem(graph, cost_table(graph, device))
    order = [node.name for node in graph.nodes if not node.view]
    peak_bytes = SimulatedPlan.in_order(problem, order).prediction.step_peak_bytes
    left = memory_left()
    if peak_bytes > left.size_bytes:
        warnings.warn(
            f"The step takes {peak_bytes:,} bytes as it is, and {max(0, left.size_bytes):,} are left ({left.limit}): "
            "if it is ended for want of memory, profile with --by-node, which never runs it whole.",
            PoetWarning,
            stacklevel=2,
        )


def time_step(variant: GraphVariant, runs: Runs, metered: Metered | None = None) -> TimedNodes:
    """Time the step of a graph variant, and all its nodes.

    Raises:
        InputError: ONNX Runtime cannot run the model, or the process that times its kernels dies.
        CheckFailedError: the runtime's tensors have other sizes than the graph says.
    """
    return _timed(variant, runs, metered)[0]


def measure_step(variant: GraphVariant, runs: Runs, metered: Metered | None = None) -> MeasuredStep:
    """Measure the step of a graph variant, and all its nodes; their energy, too, where there is a meter.

    Raises:
        InputError: ONNX Runtime cannot run the model, or the process that times its kernels dies.
        CheckFailedError: the runtime's tensors have other sizes than the graph says.
    """
    model, graph = variant.model, variant.graph
    timed, times = _timed(variant, runs, metered)
    workspace = count_workspace(model, graph, graph.nodes, threads=runs.threads)
    nodes = _measurements(graph.nodes, timed.kernel_seconds, times, workspace)
    if metered is None or timed.active_watts is None:
        return MeasuredStep(timed.seconds, timed.overhead_seconds, nodes, None)
    watts_scale = 1.0
    if metered.every_operator:
        watts = operator_watts(model, graph, graph.nodes, metered, threads=runs.threads)
        watts_scale = scale_to_step(watts, timed.kernel_seconds, timed.active_watts)
        nodes = _with_watts(nodes, watts, watts_scale)
    return MeasuredStep(timed.seconds, timed.overhead_seconds, nodes, timed.active_watts, watts_scale)


def measure_variant(
    variant: GraphVariant,
    runs: Runs,
    first_graph: TrainingGraph,
    first: MeasuredStep,
    metered: Metered | None = None,
) -> dict[str, NodeMeasurement]:
    """Measure the nodes that a graph variant has beyond the first one; return them by name.

    Their times are scaled by what the nodes that both have took in the first variant, so that a machine which has
    become slower meanwhile makes no difference.

    Raises:
        InputError: ONNX Runtime cannot run the model, or the process that times its kernels dies.
        CheckFailedError: the runtime's tensors have other sizes than the graph says.
    """
    model, graph = variant.model, variant.graph
    new = graph.nodes_beyond(first_graph)
    with tempfile.TemporaryDirectory(prefix="poet-profile-") as scratch:
        times = _kernel_times(_saved(model, Path(scratch)), runs, math.ceil(runs.repetitions * _VARIANT_SHARE))
    _check_times(graph, times)
    common = {node.name for node in graph.nodes} - {node.name for node in new}
    before = sum(first.nodes[name].seconds for name in common)
    scale = before / sum(times.kernel_seconds[name] for name in common)
    workspace = count_workspace(model, graph, new, threads=runs.threads)
    seconds = {node.name: times.kernel_seconds[node.name] * scale for node in new}
    nodes = _measurements(new, seconds, times, workspace)
    if metered is None or not metered.every_operator or first.active_watts is None:
        return nodes
    return _with_watts(nodes, operator_watts(model, graph, new, metered, threads=runs.threads), first.watts_scale)


def _with_watts(
    nodes: Mapping[str, NodeMeasurement], watts: Mapping[str, float], scale: float
) -> dict[str, NodeMeasurement]:
    return {
        name: node.model_copy(update={"active_watts": watts[name] * scale}) if name in watts else node
        for name, node in nodes.items()
    }


def _timed(variant: GraphVariant, runs: Runs, metered: Metered | None) -> tuple[TimedNodes, KernelTimes]:
    graph = variant.graph
    feeds = random_feeds(graph, runs.seed)
    half = math.ceil(runs.repetitions / 2)
    energy_of = (
        None
        if metered is None
        else partial(run_energy, meter=metered.meter, rest=metered.rest, most_seconds=metered.most_seconds)
    )
    with tempfile.TemporaryDirectory(prefix="poet-profile-") as scratch:
        path = _saved(variant.model, Path(scratch))
        plain = partial(
            time_steps, path, feeds, repetitions=half, warmup=runs.warmup, threads=runs.threads, note=runs.note
        )
        halves = [plain()]
        times = _kernel_times(path, runs, runs.repetitions)
        halves.append(plain(energy_of=energy_of))
    _check_times(graph, times)
    steps = [step for part in halves for step in part.steps]
    seconds = statistics.median(step.cpu_seconds if runs.threads == 1 else step.wall_seconds for step in steps)
    overhead_seconds, scale = _share_step(graph, times, seconds)
    energy = halves[-1].energy
    watts = None if energy is None or energy.watts_above_rest <= 0 else energy.watts_above_rest
    kernels = {node.name: times.kernel_seconds[node.name] * scale for node in graph.nodes}
    return TimedNodes(seconds, overhead_seconds, kernels, watts), times


def _saved(model: ir.Model, folder: Path) -> Path:
    path = folder / "model.onnx"
    ir.save(model, path, external_data="weights", size_threshold_bytes=1 << 20)
    return path


def _kernel_times(path: Path, runs: Runs, repetitions: int) -> KernelTimes:
    return time_kernels(
        path,
        path.parent,
        seed=runs.seed,
        repetitions=repetitions,
        warmup=runs.warmup,
        threads=runs.threads,
    )


def _measurements(
    nodes: Iterable[Node],
    seconds: Mapping[str, float],
    times: KernelTimes,
    workspace: Mapping[str, CountedWorkspace],
) -> dict[str, NodeMeasurement]:
    return {
        node.name: NodeMeasurement(
            seconds=seconds[node.name],
            workspace_bytes=workspace[node.name].size_bytes,
            output_bytes=times.output_bytes[node.name],
            workspace_estimated=workspace[node.name].estimated,
        )
        for node in nodes
    }


def _check_times(graph: TrainingGraph, times: KernelTimes) -> None:
    """Check that the runtime ran the nodes of a graph and made tensors of these sizes.

    Raises:
        CheckFailedError: it ran other nodes, or made tensors of other sizes, than the graph says.
    """
    for node in graph.nodes:
        if node.name not in times.kernel_seconds:
            raise CheckFailedError(f"Node {node.name!r} of operator {node.op_type} did not run: its time is not known.")
        expected = sum(graph.tensors[name].size_bytes for name in node.outputs if name)
        if times.output_bytes[node.name] != expected:
            raise CheckFailedError(
                f"Node {node.name!r} of operator {node.op_type} made {times.output_bytes[node.name]} bytes, "
                f"the graph says {expected}."
            )


def _share_step(graph: TrainingGraph, times: KernelTimes, step_seconds: float) -> tuple[float, float]:
    """Return the overhead of each node, and the scale of the kernels' seconds with which all make the plain step.

    The overhead is what the plain step takes beyond the kernels, at most the gap that the profiled steps have between
    two kernels. What is left of the difference is the machine's noise: the kernels are scaled to the step.
    """
    kernels = sum(times.kernel_seconds[node.name] for node in graph.nodes)
    overhead = min(max(0.0, (step_seconds - kernels) / len(graph.nodes)), times.gap_seconds)
    return overhead, (step_seconds - overhead * len(graph.nodes)) / kernels
