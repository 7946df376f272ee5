"""Segments with parts: checkpoints that the backward pass makes again take less RAM than those that stay."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import helper
from small_models import export_small

from poet_onnx.costing.costs import cost_table
from poet_onnx.costing.device import load_device
from poet_onnx.graph.extract import extract, load_model
from poet_onnx.passes.normalize import normalize
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling import memory_aware_order
from poet_onnx.scheduling.eviction import Eviction
from poet_onnx.scheduling.liveness import Liveness, Profile
from poet_onnx.scheduling.segments import FEW_SEGMENTS, SEGMENTS, in_segments
from poet_onnx.scheduling.steps import steps_of_eviction
from poet_onnx.simulate import simulate

LAYERS, WIDTH, INNER, BATCH = 24, 16, 64, 32


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    """Return the order of x + tanh(tanh(x V) W) U, over and over, without paging."""
    nodes, weights, last = [], {}, "x"
    for layer in range(LAYERS):
        weights |= {f"v{layer}": (WIDTH, INNER), f"w{layer}": (INNER, INNER), f"u{layer}": (INNER, WIDTH)}
        nodes += [
            helper.make_node("MatMul", [last, f"v{layer}"], [f"wide{layer}"]),
            helper.make_node("Tanh", [f"wide{layer}"], [f"bent{layer}"]),
            helper.make_node("MatMul", [f"bent{layer}", f"w{layer}"], [f"wider{layer}"]),
            helper.make_node("Tanh", [f"wider{layer}"], [f"twice{layer}"]),
            helper.make_node("MatMul", [f"twice{layer}", f"u{layer}"], [f"narrow{layer}"]),
            helper.make_node("Add", [last, f"narrow{layer}"], [f"sum{layer}" if layer < LAYERS - 1 else "scores"]),
        ]
        last = f"sum{layer}"
    folder: Path = tmp_path_factory.mktemp("segments")
    model = load_model(export_small(folder, nodes, weights, x=(BATCH, WIDTH), classes=WIDTH))
    normalize()(model)
    graph = extract(model)
    problem = ScheduleProblem(graph, cost_table(graph, load_device("a72")), paging=False)
    return Liveness(problem).in_order(memory_aware_order(problem))


def lowest_bytes(profile: Profile, segments: int, parts: int) -> int:
    """Return the lowest peak that the simulator finds while the budget falls, a fiftieth at a time."""
    peak_bytes = profile.peak_bytes
    lowest = peak_bytes
    for fiftieth in range(16, 5, -1):
        eviction = in_segments(profile, Limits(fiftieth * peak_bytes // 50), segments, parts)
        if not eviction.fill():
            break
        plan = simulate(profile.liveness.problem, steps_of_eviction(eviction))
        lowest = min(lowest, plan.transient_peak_bytes)
    return lowest


def test_parts_need_less_than_any_number_of_segments(profile: Profile) -> None:
    plain = min(lowest_bytes(profile, count, 1) for count in SEGMENTS)
    nested = min(lowest_bytes(profile, *way) for way in FEW_SEGMENTS)
    assert nested < 0.9 * plain, (nested, plain)


def test_what_comes_back_is_counted_as_before(profile: Profile) -> None:
    limits = Limits(profile.peak_bytes // 2)
    eviction = in_segments(profile, limits, 4, 6)
    assert eviction.fill()
    assert any(eviction.away_from[: eviction.count] == eviction.first[: eviction.count])
    for interval in eviction.away():
        eviction.bring_back(interval)
    assert (eviction.excess == Eviction(profile, limits).excess).all()
