"""Power of operators and transfers: real ones, on a board whose power is known."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from cli_runs import Cli
from logged_power import BUSY_WATTS, REST_WATTS, logged_power
from meter_trees import rapl_zone
from virtual_meter import VirtualMeter

from poet_onnx.costing.costs import cost_table
from poet_onnx.costing.device import load_device
from poet_onnx.costing.measured import MeasuredCosts, load_measured
from poet_onnx.energy import SteadyPower, run_energy
from poet_onnx.energy.rapl import RaplMeter
from poet_onnx.errors import PoetWarning
from poet_onnx.graph.extract import extract, load_model
from poet_onnx.passes.normalize import normalize
from poet_onnx.profiler import measure
from poet_onnx.profiler.energy import Metered, operator_watts, scale_to_step, transfer_watts
from poet_onnx.profiler.timing import time_steps
from poet_onnx.runtime.feeds import random_feeds

REST = SteadyPower(watts=2.0, error_watts=0.0, run_seconds=0.05, repetitions=10)


def unnoted() -> None:
    """Note nothing of the machine."""


def test_each_different_operator_is_measured_once(model_path: Callable[..., Path]) -> None:
    model = load_model(model_path("mlp-l1"))
    normalize()(model)
    graph = extract(model)
    nodes = [node for node in graph.nodes if not node.view][:3]
    spent = []
    for asked in (nodes, [*nodes, *nodes, *(node for node in graph.nodes if node.view)]):
        meter = VirtualMeter(tick_seconds=0.125, watts=5.0)
        watts = operator_watts(model, graph, asked, Metered(meter, REST, every_operator=True), threads=1)
        assert watts == {node.name: 3.0 for node in nodes}
        spent.append(meter.seconds)
    assert spent[0] == spent[1] > 0


def test_whole_steps_are_repeated_for_the_meter(model_path: Callable[..., Path]) -> None:
    path = model_path("mlp-l1")
    model = load_model(path)
    normalize()(model)
    metered = Metered(VirtualMeter(tick_seconds=0.125, watts=5.0), REST)
    energy_of = partial(run_energy, meter=metered.meter, rest=metered.rest, most_seconds=metered.most_seconds)
    feeds = random_feeds(extract(model), 0)
    steps = time_steps(path, feeds, repetitions=1, warmup=0, threads=1, note=unnoted, energy_of=energy_of)
    assert steps.energy is not None
    assert steps.energy.watts_above_rest == 3.0
    assert steps.energy.repetitions >= 10 > len(steps.steps)
    assert time_steps(path, feeds, repetitions=1, warmup=0, threads=1, note=unnoted).energy is None


def test_nodes_alone_give_the_power_of_the_step() -> None:
    watts, seconds = {"a": 2.0, "b": 4.0}, {"a": 0.3, "b": 0.1, "c": 0.2}
    scale = scale_to_step(watts, seconds, 5.0)
    assert sum(scale * watts[name] * seconds[name] for name in watts) == pytest.approx(5.0 * (0.3 + 0.1))
    assert scale_to_step({"a": 0.0}, seconds, 5.0) == 1.0


def test_the_arithmetic_between_transfers_is_taken_off(tmp_path: Path) -> None:
    """The meter's time passes with each look at it, so that runs with and without transfers take the same."""
    metered = Metered(VirtualMeter(tick_seconds=0.125, watts=5.0), REST, every_operator=True)
    assert transfer_watts(tmp_path, metered, page_cache=True) is None
    assert list(tmp_path.iterdir()) == []


def costs_of(path: Path, watts: dict[str, float | None]) -> tuple[MeasuredCosts, float]:
    """Return measured costs with a power of nodes, and what all nodes take by them in joules."""
    model = load_model(path)
    normalize()(model)
    graph = extract(model)
    names = [node.name for node in graph.nodes if not node.view]
    nodes = {
        node.name: {
            "seconds": 0.0 if node.view else 0.01,
            "workspace_bytes": 0,
            "output_bytes": sum(graph.tensors[each].size_bytes for each in node.outputs if each),
            "active_watts": watts.get("first" if node.name == names[0] else "others"),
        }
        for node in graph.nodes
    }
    measured = MeasuredCosts.model_validate(
        {
            "fingerprint": graph.fingerprint, "device": "host", "target": "training", "machine": "any",
            "runtime": "any", "threads": 1, "repetitions": 1, "step_seconds": 0.01 * len(names),
            "node_overhead_seconds": 0.0, "nodes": nodes, "active_watts": 4.0, "idle_watts": 2.0, "meter": "any",
        }
    )  # fmt: skip
    table = cost_table(graph, load_device("host"), measured)
    assert table.energy_measured
    return measured, sum(cost.joules for cost in table.nodes.values()) / 0.01 - 4.0 * (len(names) - 1)


def test_a_node_takes_its_own_power(model_path: Callable[..., Path]) -> None:
    path = model_path("mlp-l1")
    assert costs_of(path, {"first": 7.0})[1] == pytest.approx(7.0)
    assert costs_of(path, {"first": 0.0})[1] == pytest.approx(0.0)
    assert costs_of(path, {})[1] == pytest.approx(4.0)


def test_a_profile_goes_without_a_meter_that_stands_still(
    monkeypatch: pytest.MonkeyPatch, model_path: Callable[..., Path], tmp_path: Path
) -> None:
    zone = rapl_zone(tmp_path, "intel-rapl:0", "package-0", range_microjoules=65_532_610_987, count=0)
    monkeypatch.setattr("poet_onnx.profiler.meter_if_any", lambda: RaplMeter([zone]))
    device = load_device("host").model_copy(update={"storage": None})
    with pytest.warns(PoetWarning, match=r"Energy is modelled, not measured\. .*RAPL package-0 counted 0 J"):
        measured = measure(model_path("mlp-l1"), device, repetitions=1, warmup=0, optimizer="none", threads=1)
    assert (measured.active_watts, measured.idle_watts, measured.meter) == (None, None, "")


@pytest.mark.deep
def test_a_profile_measures_operators_and_transfers(cli: Cli, model_path: Callable[..., Path], tmp_path: Path) -> None:
    path, out, pages = model_path("mlp-l1"), tmp_path / "costs.json", tmp_path / "pages"
    board, one = tmp_path / "board.toml", ("--threads", "1")
    pages.mkdir()
    with logged_power(tmp_path / "power.csv") as log:
        metered = ("--energy", "--meter", log, "--page-dir", pages)
        done = cli("profile", path, "--write-device", board, "-o", out, *metered, *one)
    assert done.code == 0, done
    assert "above idle, 2 W idle (measured by external meter power.csv)" in " ".join(done.out.split())
    measured = load_measured(out)
    assert measured.idle_watts == pytest.approx(REST_WATTS, rel=0.02)
    assert measured.active_watts == pytest.approx(BUSY_WATTS - REST_WATTS, rel=0.1)
    compute = load_device(board).compute
    assert compute.active_watts == pytest.approx(measured.active_watts, rel=0.1)
    assert compute.sources["active_watts"].endswith("above rest by external meter power.csv, with one thread")
    known = {name: node.active_watts for name, node in measured.nodes.items() if node.active_watts is not None}
    joules = sum(watts * measured.nodes[name].seconds for name, watts in known.items())
    seconds = sum(measured.nodes[name].seconds for name in known)
    assert joules == pytest.approx(measured.active_watts * seconds)
    assert measured.storage is not None
    assert measured.storage.watts is None or measured.storage.watts < BUSY_WATTS
