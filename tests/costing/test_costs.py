"""Costs of real graphs on real profiles: roofline, joules = watts x seconds, transfers, measured costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from forward_models import parse

from poet_onnx.costing.costs import cost_table
from poet_onnx.costing.device import DeviceProfile, device_names, load_device
from poet_onnx.costing.flops import count_work
from poet_onnx.costing.measured import MeasuredCosts, NodeMeasurement, StorageMeasurement
from poet_onnx.costing.versions import Versions
from poet_onnx.costing.workspace import workspace_bytes
from poet_onnx.errors import InputError
from poet_onnx.graph import TrainingGraph
from poet_onnx.graph.extract import extract, load_model
from poet_onnx.passes.normalize import normalize


@pytest.fixture(scope="module")
def graph(model_path: Callable[..., Path]) -> TrainingGraph:
    model = load_model(model_path("bert-2"))
    normalize()(model)
    return extract(model)


def storage_of(device: DeviceProfile) -> tuple[float, float, float, float, float]:
    storage = device.storage
    assert storage is not None
    return (
        storage.page_out_latency_seconds,
        storage.page_out_bytes_per_second,
        storage.page_in_latency_seconds,
        storage.page_in_bytes_per_second,
        storage.watts,
    )


@pytest.mark.parametrize("name", device_names())
def test_every_node_and_value_has_a_cost(graph: TrainingGraph, name: str) -> None:
    device = load_device(name)
    costs = cost_table(graph, device)
    assert costs.device == name
    assert set(costs.nodes) == {node.name for node in graph.nodes}
    values = {t.name for t in graph.tensors.values() if not t.resident and t.buffer_owner == t.name}
    assert set(costs.page_out) == set(costs.page_in) == values
    for node in graph.nodes:
        cost = costs.nodes[node.name]
        assert not cost.measured
        if node.view:
            assert (cost.seconds, cost.joules, cost.workspace_bytes) == (0.0, 0.0, 0)
            continue
        assert cost.seconds >= 0.0
        assert cost.workspace_bytes == workspace_bytes(graph, node)
        if device.compute.joules_per_flop is None:
            assert cost.joules == pytest.approx(cost.seconds * device.compute.active_watts)


def test_a_node_takes_the_longer_of_arithmetic_and_movement(graph: TrainingGraph) -> None:
    device = load_device("a72")
    compute = device.compute
    costs = cost_table(graph, device)
    bound_by = set()
    for node in graph.nodes:
        work = count_work(graph, node)
        arithmetic = work.matmul_flops / compute.matmul_flops_per_second
        arithmetic += work.elementwise_flops / compute.elementwise_flops_per_second
        movement = work.moved_bytes / (compute.memory_bytes_per_second or 0.0)
        assert costs.nodes[node.name].seconds == pytest.approx(max(arithmetic, movement))
        bound_by.add(arithmetic > movement)
    assert bound_by == {True, False}


def test_the_papers_a72_spends_what_its_constants_say(graph: TrainingGraph) -> None:
    compute = load_device("a72-paper").compute
    costs = cost_table(graph, load_device("a72-paper"))
    node = next(node for node in graph.nodes if node.op_type == "Gemm")
    work = count_work(graph, node)
    flops = work.matmul_flops + work.elementwise_flops
    assert costs.nodes[node.name].seconds == pytest.approx(flops / 2e9)
    assert costs.nodes[node.name].joules == pytest.approx(flops * (compute.joules_per_flop or 0.0))


def test_transfers(graph: TrainingGraph) -> None:
    device = load_device("tx2")
    costs = cost_table(graph, device)
    out_latency, out_rate, in_latency, in_rate, watts = storage_of(device)
    for name, cost in costs.page_out.items():
        size = graph.tensors[name].size_bytes
        assert cost.seconds == pytest.approx(out_latency + size / out_rate)
        assert costs.page_in[name].seconds == pytest.approx(in_latency + size / in_rate)
        assert (cost.joules, costs.page_in[name].joules) == pytest.approx(
            (cost.seconds * watts, costs.page_in[name].seconds * watts)
        )
    assert costs.asynchronous
    assert not cost_table(graph, load_device("m4")).asynchronous


def test_a_device_without_storage_pages_nothing(graph: TrainingGraph) -> None:
    costs = cost_table(graph, load_device("a72").model_copy(update={"storage": None}))
    assert (costs.page_out, costs.page_in, costs.asynchronous) == ({}, {}, False)


def measured_costs(graph: TrainingGraph, active_watts: float | None = None) -> MeasuredCosts:
    nodes = {
        node.name: NodeMeasurement(
            seconds=index * 1e-6,
            workspace_bytes=index,
            output_bytes=sum(graph.tensors[name].size_bytes for name in node.outputs if name),
        )
        for index, node in enumerate(graph.nodes)
    }
    return MeasuredCosts(
        fingerprint=graph.fingerprint,
        device="host",
        target="training",
        machine="x86_64",
        runtime="onnxruntime-training 1.19.2",
        threads=1,
        repetitions=1,
        step_seconds=sum(node.seconds + 1e-6 for node in nodes.values()),
        node_overhead_seconds=1e-6,
        nodes=nodes,
        storage=StorageMeasurement(
            page_out_bytes_per_second=1e6,
            page_in_bytes_per_second=2e6,
            page_out_latency_seconds=0.1,
            page_in_latency_seconds=0.2,
            wake_seconds=0.3,
            hand_over_seconds=0.4,
            method="device",
        ),
        active_watts=active_watts,
    )


@pytest.mark.parametrize("active_watts", [None, 25.0])
def test_measured_costs_replace_modelled_ones(graph: TrainingGraph, active_watts: float | None) -> None:
    device = load_device("host")
    costs = cost_table(graph, device, measured_costs(graph, active_watts))
    watts = active_watts or device.compute.active_watts
    for index, node in enumerate(graph.nodes):
        cost = costs.nodes[node.name]
        assert cost.measured
        assert cost.seconds == pytest.approx(index * 1e-6 + 1e-6)
        assert cost.joules == pytest.approx(cost.seconds * watts)
        assert cost.workspace_bytes == (0 if node.view else max(index, workspace_bytes(graph, node)))
    assert costs.energy_measured == (active_watts is not None)
    assert (costs.wake_seconds, costs.hand_over_seconds) == (0.3, 0.4)
    name, cost_out = next(iter(costs.page_out.items()))
    size = graph.tensors[name].size_bytes
    assert cost_out.seconds == pytest.approx(0.1 + size / 1e6)
    assert costs.page_in[name].seconds == pytest.approx(0.2 + size / 2e6)
    assert costs.page_in[name].joules == pytest.approx(costs.page_in[name].seconds * storage_of(device)[4])


def test_a_workspace_below_the_rule_is_not_believed(graph: TrainingGraph) -> None:
    """A file that says 0 would make plans that exceed their budgets."""
    measured = measured_costs(graph)
    none = {name: node.model_copy(update={"workspace_bytes": 0}) for name, node in measured.nodes.items()}
    for threads in (1, 4):
        costs = cost_table(graph, load_device("host"), measured.model_copy(update={"nodes": none, "threads": threads}))
        ruled = {node.name: workspace_bytes(graph, node, threads=threads) for node in graph.nodes}
        assert {name: cost.workspace_bytes for name, cost in costs.nodes.items()} == ruled
    assert sum(ruled.values())


def test_every_thread_may_need_workspace(model_path: Callable[..., Path]) -> None:
    model = load_model(model_path("mobilenet"))
    normalize()(model)
    graph = extract(model)
    one, four = (cost_table(graph, load_device("host"), threads=threads).nodes for threads in (1, 4))
    assert all(four[name].workspace_bytes >= cost.workspace_bytes for name, cost in one.items())
    assert any(four[name].workspace_bytes > cost.workspace_bytes for name, cost in one.items())


@pytest.mark.parametrize(
    ("sizes", "group", "allocated"),
    [  # by a convolution of 3 x 3 with 1, 2 and 4 threads, as onnxruntime 1.23 and 1.26 count
        ((4, 3, 8, 64), 1, (443232, 885728, 1770720)),
        ((4, 8, 4, 64), 1, (1180800, 2360576, 4720128)),
        ((1, 8, 4, 64), 1, (66688, 132352, 263680)),
        ((1, 16, 16, 32), 4, (149760, 297344, 592512)),
        ((2, 64, 64, 4), 1, (184320, 184448, 184704)),
        ((8, 3, 64, 33), 1, (285696, 564608, 1122432)),
    ],
)
def test_convolutions_of_older_runtimes_write_whole_columns(
    sizes: tuple[int, int, int, int], group: int, allocated: tuple[int, ...]
) -> None:
    count, channels, filters, side = sizes
    model = parse(
        f"""g (float[{count}, {channels}, {side}, {side}] x, float[{filters}, {channels // group}, 3, 3] w)
        => (float[{count}, {filters}, {side}, {side}] y) {{
        y = Conv <pads = [1, 1, 1, 1], group = {group}> (x, w) }}""",
        {},
    )
    graph = extract(model, trains=False)
    weight_bytes, (node,) = 4 * filters * channels // group * 9, graph.nodes
    for threads, counted in zip((1, 2, 4), allocated, strict=True):
        found = workspace_bytes(graph, node, threads=threads, whole_columns=True)
        assert 0 <= counted - found <= weight_bytes + 4 * 128 * threads
    older = Versions("3.10").running_on(load_device("a72"), "stock")
    assert older.whole_columns
    assert not Versions("3.11", "1.27").running_on(load_device("a72"), "stock").whole_columns
    assert not Versions("3.10").running_on(load_device("a72"), "training").whole_columns
    assert cost_table(graph, older, threads=2).nodes[node.name].workspace_bytes == workspace_bytes(
        graph, node, threads=2, whole_columns=True
    )


def test_measured_costs_of_another_graph_are_refused(graph: TrainingGraph) -> None:
    other = dataclasses.replace(graph, fingerprint="0" * 64)
    with pytest.raises(InputError, match="another graph"):
        cost_table(other, load_device("host"), measured_costs(graph))


def test_threads_take_less_time_where_the_profile_knows_all_cores(graph: TrainingGraph) -> None:
    pi4, a72 = load_device("pi4"), load_device("a72")
    seconds = [
        sum(cost.seconds for cost in cost_table(graph, pi4, threads=threads).nodes.values()) for threads in (1, 2, 4)
    ]
    assert seconds[0] > seconds[1] > seconds[2] > seconds[0] / 4
    one, four = (cost_table(graph, a72, threads=threads).nodes for threads in (1, 4))
    assert [cost.seconds for cost in one.values()] == [cost.seconds for cost in four.values()]
