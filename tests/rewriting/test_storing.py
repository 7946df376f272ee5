"""Costs that were measured with all in RAM serve plans with parameters in a store, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from slow_costs import costs_in_proportion
from stored_nets import write_net

import poet_onnx
from poet_onnx.costing.device import load_device
from poet_onnx.costing.measured import ProcessMeasurement
from poet_onnx.errors import InfeasibleError

TIMES = 3
SETTINGS: dict[str, Any] = {
    "device": "a72",
    "target": "stock",
    "loss": "cross-entropy",
    "optimizer": "adamw",
    "gap": 0.5,
}


@pytest.mark.parametrize("kind", ["text", "image"])
def test_what_was_measured_in_ram_counts_with_a_store(tmp_path: Path, kind: str) -> None:
    net = write_net(kind, tmp_path / "net.onnx")
    resident = poet_onnx.rewrite(net, store="never", **SETTINGS)
    measured = costs_in_proportion(resident, "a72", TIMES, target="stock")
    modelled = poet_onnx.rewrite(net, store="always", **SETTINGS)
    scaled = poet_onnx.rewrite(net, store="always", costs=measured, **SETTINGS)
    assert scaled.plan.stored == modelled.plan.stored
    assert scaled.graph.fingerprint == modelled.graph.fingerprint
    for name, cost in modelled.costs.nodes.items():
        found = scaled.costs.nodes[name]
        assert found.storage_seconds == cost.storage_seconds
        computed = found.seconds - found.storage_seconds
        assert computed == pytest.approx(TIMES * (cost.seconds - cost.storage_seconds), rel=1e-6, abs=1e-12)
    again = poet_onnx.rewrite(net, costs=measured, plan=scaled.plan, **SETTINGS)
    assert again.rewritten == scaled.rewritten


def test_measured_costs_decide_what_is_stored(tmp_path: Path) -> None:
    net = write_net("wide_text", tmp_path / "net.onnx")
    resident = poet_onnx.rewrite(net, store="never", **SETTINGS)
    measured = costs_in_proportion(resident, "a72", TIMES, target="stock")
    least = poet_onnx.rewrite(net, store="always", costs=measured, **SETTINGS).process.peak_bytes
    found = poet_onnx.rewrite(net, costs=measured, ram_budget=least, **SETTINGS)
    assert found.plan.stored
    assert found.process.peak_bytes <= least


def test_a_session_on_a_store_takes_no_less_than_the_profile_says(tmp_path: Path) -> None:
    """What was measured is a session with all in RAM."""
    net = write_net("wide_text", tmp_path / "net.onnx")
    resident = poet_onnx.rewrite(net, store="never", **SETTINGS)
    profile = load_device("a72").process
    assert profile is not None
    known = {name: getattr(profile, name) or 0 for name in ProcessMeasurement.model_fields}
    measured = costs_in_proportion(resident, "a72", TIMES, target="stock")
    small = measured.model_copy(update={"process": ProcessMeasurement(**(known | {"session_bytes": 6 << 20}))})
    for store, is_measured in (("never", True), ("always", False)):
        modelled = poet_onnx.rewrite(net, store=store, **SETTINGS).process.peak_bytes
        found = poet_onnx.rewrite(net, store=store, costs=small, **SETTINGS).process.peak_bytes
        assert (found < modelled) is is_measured


@pytest.mark.parametrize("budget", ["42MiB", "43MiB"])
def test_a_refusal_names_the_smaller_budget_of_both_ways(tmp_path: Path, budget: str) -> None:
    """The buffers of a store take more than these parameters and what an optimizer keeps of them."""
    net, found = write_net("text", tmp_path / "net.onnx"), {}
    for store in ("never", "always", "auto"):
        with pytest.raises(InfeasibleError) as error:
            poet_onnx.rewrite(net, store=store, ram_budget=budget, **SETTINGS)
        found[store] = error.value.smallest_budget_bytes
    assert found["auto"] == found["never"] < found["always"]


@pytest.mark.deep
def test_a_part_stays_in_ram_where_there_is_no_time_to_search(tmp_path: Path) -> None:
    """A part with which the step fits in its order needs none."""
    net = write_net("wide_text", tmp_path / "net.onnx")
    whole, resident = (poet_onnx.rewrite(net, store=store, **SETTINGS) for store in ("always", "never"))
    budget = (whole.process.peak_bytes + 2 * resident.process.peak_bytes) // 3
    found = poet_onnx.rewrite(net, ram_budget=budget, **(SETTINGS | {"time_limit_seconds": 0.5}))
    assert 0 < len(found.plan.stored) < len(whole.plan.stored)
    assert found.process.peak_bytes <= budget
    assert found.rewritten.energy_joules < whole.rewritten.energy_joules


def test_a_deadline_leaves_a_part_in_ram(tmp_path: Path) -> None:
    """All in RAM needs more, and a step that waits for all in a store takes longer."""
    net = write_net("wide_text", tmp_path / "net.onnx")
    resident, stored = (poet_onnx.rewrite(net, store=store, **SETTINGS) for store in ("never", "always"))
    budget = (resident.process.peak_bytes + stored.process.peak_bytes) // 2
    found = poet_onnx.rewrite(net, ram_budget=budget, **SETTINGS)
    assert found.plan.stored
    assert found.rewritten.seconds < 0.9 * stored.rewritten.seconds
    deadline = 1.01 * found.rewritten.seconds
    hurried = poet_onnx.rewrite(net, ram_budget=budget, deadline=deadline, **SETTINGS)
    assert hurried.rewritten.seconds <= deadline
    assert hurried.process.peak_bytes <= budget


def test_a_deadline_that_is_too_short_names_what_all_in_ram_takes(tmp_path: Path) -> None:
    net = write_net("wide_text", tmp_path / "net.onnx")
    seconds = poet_onnx.rewrite(net, store="never", **SETTINGS).rewritten.seconds
    with pytest.raises(InfeasibleError, match=f"the computations alone take {seconds:.6g} s"):
        poet_onnx.rewrite(net, deadline=seconds / 2, **SETTINGS)
