"""Measures the costs of a training graph on the machine at hand: every node, the page directory, power."""

from __future__ import annotations

import math
import os
import platform
import statistics
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import onnx_ir as ir

from poet_onnx.device import DeviceProfile
from poet_onnx.errors import CheckFailedError, InputError
from poet_onnx.extract import extract, load_model
from poet_onnx.feeds import random_feeds
from poet_onnx.graph import TrainingGraph
from poet_onnx.measured import MeasuredCosts, NodeMeasurement
from poet_onnx.passes.lowering import choose_expansions, lower, normalize_for
from poet_onnx.profiler.kernels import KernelTimes, time_kernels
from poet_onnx.profiler.power import find_meter
from poet_onnx.profiler.storage import measure_storage
from poet_onnx.profiler.timing import StepRunner, StepTime, time_steps
from poet_onnx.profiler.workspace import count_workspace
from poet_onnx.runtime import installed_runtime

__all__ = ["StepRunner", "StepTime", "measure", "measure_storage"]


def measure(
    model_path: str | os.PathLike[str],
    device: DeviceProfile,
    *,
    page_dir: str | os.PathLike[str] | None = None,
    repetitions: int = 20,
    warmup: int = 3,
    threads: int = 1,
    seed: int = 0,
    page_cache: bool = False,
    dims: Mapping[str, int] | None = None,
    target: str = "training",
    progress: Callable[[str], None] | None = None,
) -> MeasuredCosts:
    """Measure what a training step costs on this machine.

    Half of the plain steps run before the profiled ones, which have a process of their own, and half after. Kernel
    times are medians of the profiled steps, scaled so that together with the runtime's overhead per node they make the
    median plain step.

    Args:
        model_path: a training model, as for `rewrite`.
        device: supplies what is not measured here.
        page_dir: where tensors would be paged to; default the system's directory for temporary files. Nothing is
            measured there if the device has no storage.
        repetitions: timed steps of each kind.
        warmup: steps before them.
        threads: threads inside an operator.
        seed: of the random feeds.
        page_cache: measure transfers through the page cache, as they run where RAM is plentiful, instead of waiting for
            the storage itself.
        dims: sizes of named dimensions.
        target: as for `rewrite`: with "stock" the model is lowered first, as `rewrite` does for the same device.
        progress: called with what is being done.

    Raises:
        InputError: the model cannot be scheduled, the page directory cannot be written, or an argument is out of range.
        CheckFailedError: the runtime's tensors have other sizes than the graph says.
    """
    if repetitions < 1 or warmup < 0:
        raise InputError(f"{repetitions} repetitions after {warmup} warm-up steps measure nothing: give 1 or more.")
    report = progress or (lambda text: None)
    model = load_model(model_path)
    normalize_for(target, dims)(model)
    expansions = None if target == "training" else choose_expansions(model, device, thrifty=False)
    lower(model, target, expansions)
    graph = extract(model, dims=dims)
    feeds = random_feeds(graph, seed)
    with tempfile.TemporaryDirectory(prefix="poet-profile-") as scratch:
        path = Path(scratch, "model.onnx")
        ir.save(model, path, external_data="weights", size_threshold_bytes=1 << 20)
        report(f"timing {repetitions} steps of {len(graph.nodes)} nodes")
        meter = find_meter()
        half = math.ceil(repetitions / 2)
        halves = [time_steps(path, feeds, repetitions=half, warmup=warmup, threads=threads, meter=meter)]
        times = time_kernels(
            path,
            Path(scratch),
            seed=seed,
            repetitions=repetitions,
            warmup=warmup,
            threads=threads,
            dims=dims or {},
        )
        halves.append(time_steps(path, feeds, repetitions=half, warmup=warmup, threads=threads, meter=meter))
    steps = [step for part in halves for step in part.steps]
    watts = [part.active_watts for part in halves if part.active_watts is not None]
    step_seconds = statistics.median(step.cpu_seconds if threads == 1 else step.wall_seconds for step in steps)
    nodes_seconds, overhead_seconds = _share_step(graph, times, step_seconds)
    report("counting workspace")
    workspace = count_workspace(model, graph, threads=threads)
    storage = None
    if device.storage is not None:
        report("timing the page directory")
        storage = measure_storage(
            page_dir or tempfile.gettempdir(), page_cache=page_cache, asynchronous=device.storage.asynchronous
        )
    runtime = installed_runtime()
    return MeasuredCosts(
        fingerprint=graph.fingerprint,
        device=device.name,
        machine=describe_machine(),
        runtime=f"{runtime.distribution} {runtime.version}",
        threads=threads,
        repetitions=repetitions,
        step_seconds=step_seconds,
        node_overhead_seconds=overhead_seconds,
        nodes={
            node.name: NodeMeasurement(
                seconds=nodes_seconds[node.name],
                workspace_bytes=workspace[node.name],
                output_bytes=times.output_bytes[node.name],
            )
            for node in graph.nodes
        },
        storage=storage,
        active_watts=statistics.fmean(watts) if watts else None,
    )


def _share_step(graph: TrainingGraph, times: KernelTimes, step_seconds: float) -> tuple[dict[str, float], float]:
    """Return seconds of every kernel and the overhead of each node, which together make the plain step.

    The overhead is what the plain step takes beyond the kernels, at most the gap that the profiled steps have between
    two kernels. What is left of the difference is the machine's noise: the kernels are scaled to the step.

    Raises:
        CheckFailedError: the runtime ran other nodes, or made tensors of other sizes, than the graph says.
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
    names = [node.name for node in graph.nodes]
    kernels = sum(times.kernel_seconds[name] for name in names)
    overhead = min(max(0.0, (step_seconds - kernels) / len(names)), times.gap_seconds)
    scale = (step_seconds - overhead * len(names)) / kernels
    return {name: times.kernel_seconds[name] * scale for name in names}, overhead


def describe_machine() -> str:
    """Return the processor, its number of cores and the operating system in words; no name of the machine."""
    model = platform.processor() or "unknown processor"
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model"))]
    return f"{platform.machine()}, {names[0] if names else model}, {os.cpu_count()} CPUs, {platform.system()}"
