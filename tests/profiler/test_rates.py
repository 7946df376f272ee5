"""Rates that are fitted to the nodes of real graphs: what made the times is found again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from poet_onnx.costing.costs import cost_table
from poet_onnx.costing.device import load_device
from poet_onnx.graph import TrainingGraph
from poet_onnx.graph.extract import extract, load_model
from poet_onnx.passes.normalize import normalize
from poet_onnx.profiler.board import device_like
from poet_onnx.profiler.rates import TimedNodes, fit_rates

NEAR = load_device("host").compute
OVERHEAD_SECONDS = 3e-6


@pytest.fixture(scope="module")
def graph(model_path: Callable[..., Path]) -> TrainingGraph:
    model = load_model(model_path("densenet"))
    normalize()(model)
    return extract(model)


def timed(graph: TrainingGraph, device: str, threads: int, *, slow: float = 1.0) -> TimedNodes:
    """Return what the nodes would take on a device; each twentieth is so many times slower than its work says."""
    costs = cost_table(graph, load_device(device), threads=threads).nodes
    seconds = {
        node.name: costs[node.name].seconds * (slow if place % 20 == 7 else 1.0)
        for place, node in enumerate(graph.nodes)
    }
    nodes = sum(not node.view for node in graph.nodes)
    return TimedNodes(sum(seconds.values()) + nodes * OVERHEAD_SECONDS, OVERHEAD_SECONDS, seconds)


@pytest.mark.parametrize(
    ("device", "threads", "binds", "never"),
    [
        ("a72", 1, "memory", "elementwise"),
        ("pi4", 4, "memory", "elementwise"),
        ("zero2w", 2, "memory", "elementwise"),
        ("m4", 1, "elementwise", "memory"),
    ],
)
def test_the_rates_of_a_device_are_found_again(
    graph: TrainingGraph, device: str, threads: int, binds: str, never: str
) -> None:
    """What no node waits for is not found out, and stays as it is near."""
    names = {"memory": "memory_bytes_per_second", "elementwise": "elementwise_flops_per_second"}
    right = load_device(device).compute.with_threads(threads)
    found = fit_rates(graph, timed(graph, device, threads), NEAR)
    assert found.matmul_flops_per_second == pytest.approx(right.matmul_flops_per_second, rel=0.01)
    assert getattr(found, names[binds]) == pytest.approx(getattr(right, names[binds]), rel=0.01)
    assert getattr(found, f"{binds}_share") > 0.03
    assert getattr(found, names[never]) == pytest.approx(getattr(NEAR, names[never]))
    assert getattr(found, f"{never}_share") == 0.0
    assert found.miss_share < 0.01


def test_all_nodes_together_take_the_step_whatever_some_of_them_do(graph: TrainingGraph) -> None:
    step = timed(graph, "a72", 1, slow=3.0)
    found = fit_rates(graph, step, NEAR)
    rates = found.model_dump(include={*type(NEAR).model_fields} - {"active_watts"})
    device = load_device("host").model_copy(update={"compute": NEAR.model_copy(update=rates)})
    predicted = sum(cost.seconds for cost in cost_table(graph, device).nodes.values())
    assert predicted == pytest.approx(step.seconds, rel=1e-6)
    assert 0.02 < found.miss_share < 0.5
    right = load_device("a72").compute
    assert found.matmul_flops_per_second == pytest.approx(right.matmul_flops_per_second, rel=0.25)


def test_a_board_is_like_the_built_in_device_of_its_model() -> None:
    for model, device in (
        ("Raspberry Pi 5 Model B Rev 1.0", "pi5"),
        ("Raspberry Pi 400 Rev 1.0", "pi4"),
        ("Raspberry Pi Compute Module 4 Rev 1.1", "pi4"),
        ("Raspberry Pi Zero 2 W Rev 1.0", "zero2w"),
        ("NVIDIA Jetson Orin Nano Developer Kit", "orin-nano"),
        ("NVIDIA Jetson Nano Developer Kit", "jetson-nano"),
        ("NVIDIA Jetson Xavier NX Developer Kit", "xavier-nx"),
        ("Radxa ROCK 5B", "rock5b"),
        ("NXP i.MX93 11X11 EVK board", "imx93"),
        ("LENOVO 20XW", "host"),
        ("", "host"),
    ):
        assert device_like(model) == device
        assert load_device(device).process is not None
