"""Profiling on this machine: real steps, real files."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from deep import sampled

import poet_onnx
from poet_onnx.costing.costs import cost_table
from poet_onnx.costing.device import load_device
from poet_onnx.costing.measured import load_measured
from poet_onnx.costing.workspace import workspace_bytes
from poet_onnx.errors import CheckFailedError, InputError
from poet_onnx.graph import TrainingGraph
from poet_onnx.graph.extract import extract, load_model
from poet_onnx.passes.lowering import normalize_for
from poet_onnx.passes.normalize import normalize
from poet_onnx.profiler import describe_machine, measure, measure_storage
from poet_onnx.profiler.fitting import fit_latency_and_rate
from poet_onnx.profiler.kernels import KernelTimes, time_kernels
from poet_onnx.rewriting.variants import variants
from poet_onnx.runtime import Throttle

HOST = load_device("host")


def graph_of(path: Path) -> TrainingGraph:
    model = load_model(path)
    normalize()(model)
    return extract(model)


PROFILED = [
    ("mlp-l1", 1, False),
    ("mlp-mse", 2, True),
    ("mobilenet", 2, False),
    ("unet", 1, False),
    ("bert-2", 1, False),
]
"""Models, their batch size, and whether that is given as a named dimension."""


@pytest.mark.deep
@pytest.mark.parametrize(("name", "batch", "named"), PROFILED)
def test_a_profile_covers_the_step(
    model_path: Callable[..., Path], tmp_path: Path, name: str, batch: int, named: bool
) -> None:
    path, dims = model_path(name, batch=batch, dynamic=named), {"batch": batch} if named else None
    said: list[str] = []
    measured = measure(path, HOST, page_dir=tmp_path, repetitions=3, warmup=1, dims=dims, progress=said.append)
    graph = poet_onnx.rewrite(path, device=HOST, dims=dims).graph
    assert measured.fingerprint == graph.fingerprint
    assert measured.runtime.startswith("onnxruntime")
    assert os.uname().nodename not in measured.model_dump_json(exclude={"nodes"})
    assert measured.machine == describe_machine()
    costs = cost_table(graph, HOST, measured)
    assert sum(cost.seconds for cost in costs.nodes.values()) == pytest.approx(measured.step_seconds)
    assert measured.step_seconds > measured.node_overhead_seconds >= 0.0
    for node in graph.nodes:
        assert measured.nodes[node.name].workspace_bytes == workspace_bytes(graph, node), node.op_type
        made = sum(graph.tensors[each].size_bytes for each in node.outputs if each)
        assert measured.nodes[node.name].output_bytes == made
    assert measured.storage is not None
    assert measured.storage.method == "device"
    assert len(said) == 3 + len(measured.variants)
    assert measured.process is not None
    assert HOST.process is not None
    assert measured.process.runtime_bytes == pytest.approx(HOST.process.training_runtime_bytes, rel=0.1)
    assert measured.process.session_bytes < 2 * HOST.process.session_bytes
    assert list(tmp_path.iterdir()) == []
    measured.save(tmp_path / "costs.json")
    assert load_measured(tmp_path / "costs.json") == measured


@pytest.mark.deep
@pytest.mark.parametrize("target", ["training", "stock"])
def test_a_profile_covers_every_graph_variant(model_path: Callable[..., Path], tmp_path: Path, target: str) -> None:
    """What a variant has in the place of some nodes is measured; the others keep their costs."""
    path = model_path("unet")
    measured = measure(path, HOST, page_dir=tmp_path, repetitions=1, warmup=0, target=target, optimizer="none")
    model = load_model(path)
    normalize_for(target)(model)
    first, *others = (variant.graph for variant in variants(model, HOST, target))
    assert others
    before = cost_table(first, HOST, measured).nodes
    assert set(measured.variants) == {graph.fingerprint for graph in others}
    for graph in others:
        nodes = cost_table(graph, HOST, measured, first_graph=first).nodes
        new = graph.nodes_beyond(first)
        assert {node.name for node in new} == set(measured.variants[graph.fingerprint])
        assert all(cost.measured for cost in nodes.values())
        assert {
            name: cost for name, cost in nodes.items() if name not in {node.name for node in new}
        }.items() <= before.items()
        for node in new:
            assert nodes[node.name].workspace_bytes == workspace_bytes(graph, node), node.op_type
            assert node.view or nodes[node.name].seconds > 0.0
    measured.save(tmp_path / "costs.json")
    assert load_measured(tmp_path / "costs.json") == measured


def test_arguments_that_measure_nothing(model_path: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="0 repetitions"):
        measure(model_path("mlp-l1"), HOST, repetitions=0)
    with pytest.raises(InputError, match="does not exist"):
        measure(model_path("mlp-l1"), HOST, page_dir=tmp_path / "absent", repetitions=1, warmup=0)


def test_sizes_that_differ_from_the_graph_are_reported(model_path: Callable[..., Path]) -> None:
    from poet_onnx.profiler.steps import _check_times, _share_step

    graph = graph_of(model_path("mlp-l1"))
    times = KernelTimes(
        kernel_seconds={node.name: 1.0 for node in graph.nodes},
        gap_seconds=0.25,
        output_bytes={n.name: sum(graph.tensors[o].size_bytes for o in n.outputs if o) for n in graph.nodes},
    )
    assert _share_step(graph, times, 2.0 * len(graph.nodes)) == pytest.approx((0.25, 1.75))
    _check_times(graph, times)
    first = graph.nodes[0].name
    with pytest.raises(CheckFailedError, match=f"'{first}'.*made 1 bytes"):
        _check_times(graph, dataclasses.replace(times, output_bytes={**times.output_bytes, first: 1}))
    ran = {name: second for name, second in times.kernel_seconds.items() if name != first}
    with pytest.raises(CheckFailedError, match=f"'{first}'.*did not run"):
        _check_times(graph, dataclasses.replace(times, kernel_seconds=ran))


def test_a_kernel_process_that_fails_says_why(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"not a model")
    with pytest.raises(InputError, match=r"kernels of model\.onnx failed: .*model\.onnx"):
        time_kernels(path, tmp_path, seed=0, repetitions=1, warmup=0, threads=1)


@pytest.mark.parametrize(("page_cache", "asynchronous"), sampled(product([False, True], repeat=2), (True, False)))
def test_storage_is_measured(tmp_path: Path, page_cache: bool, asynchronous: bool) -> None:
    figures = measure_storage(tmp_path, page_cache=page_cache, asynchronous=asynchronous, repetitions=3)
    assert figures.method == ("page_cache" if page_cache else "device")
    assert 1e5 < figures.page_out_bytes_per_second < 1e12
    assert 1e5 < figures.page_in_bytes_per_second < 1e12
    assert figures.hand_over_seconds >= 0.0 if asynchronous else figures.hand_over_seconds == 0.0
    assert figures.wake_seconds >= 0.0 if asynchronous else figures.wake_seconds == 0.0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("asynchronous", [False, True])
def test_figures_are_no_better_than_the_storage(tmp_path: Path, asynchronous: bool) -> None:
    """No transfer is quicker than the throttle lets it, and some size takes no longer than was fitted."""
    throttle = Throttle(
        page_out_bytes_per_second=1e8,
        page_in_bytes_per_second=2e8,
        page_out_latency_seconds=0.005,
        page_in_latency_seconds=0.010,
    )
    sizes = (1 << 16, 1 << 20, 1 << 22)
    figures = measure_storage(
        tmp_path, page_cache=True, asynchronous=asynchronous, throttle=throttle, sizes_bytes=sizes, repetitions=5
    )
    besides = figures.hand_over_seconds + figures.wake_seconds
    for latency, rate, least_latency, fastest in (
        (figures.page_out_latency_seconds, figures.page_out_bytes_per_second, 0.005, 1e8),
        (figures.page_in_latency_seconds, figures.page_in_bytes_per_second, 0.010, 2e8),
    ):
        assert any(besides + latency + size / rate >= least_latency + size / fastest for size in sizes)


def test_storage_that_cannot_be_measured(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no directory"):
        measure_storage(tmp_path / "absent")
    with pytest.raises(InputError, match=r"/proc cannot be written"):
        measure_storage("/proc")


def test_the_fit_finds_latency_and_rate() -> None:
    sizes = [1 << 16, 1 << 20, 1 << 24]
    latency, rate = fit_latency_and_rate(sizes, [0.002 + size / 5e7 for size in sizes])
    assert (latency, rate) == pytest.approx((0.002, 5e7))
    latency, rate = fit_latency_and_rate(sizes, [size / 5e7 for size in sizes])
    assert latency == pytest.approx(0.0, abs=1e-9)
    assert rate == pytest.approx(5e7)
    latency, rate = fit_latency_and_rate(sizes, [1.0, 0.9, 0.8])  # a larger transfer cannot be quicker
    assert latency == 0.0
    assert rate > 0.0
