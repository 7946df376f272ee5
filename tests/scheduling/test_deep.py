"""Deep narrow networks: a chain of residual blocks, where recompute by segments is what saves memory."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from types import FrameType

import pytest
from deep import sampled
from onnx import helper
from small_models import export_small

from poet_onnx.costing.costs import cost_table
from poet_onnx.costing.device import load_device
from poet_onnx.graph.extract import extract, load_model
from poet_onnx.passes.normalize import normalize
from poet_onnx.plan import PlanClass
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling import memory_aware_order, ordered_steps, schedule
from poet_onnx.scheduling.eviction import Eviction, evict
from poet_onnx.scheduling.liveness import Liveness, Profile
from poet_onnx.scheduling.quick_plan import quick_plan
from poet_onnx.simulate import simulate

LAYERS, WIDTH, BATCH = 60, 16, 32


@pytest.fixture(scope="module")
def problem(tmp_path_factory: pytest.TempPathFactory) -> ScheduleProblem:
    """Return x + tanh(x W), over and over, on a board whose storage answers after 4 ms."""
    nodes, last = [], "x"
    for layer in range(LAYERS):
        nodes += [
            helper.make_node("MatMul", [last, f"w{layer}"], [f"product{layer}"]),
            helper.make_node("Tanh", [f"product{layer}"], [f"bent{layer}"]),
            helper.make_node("Add", [last, f"bent{layer}"], [f"sum{layer}" if layer < LAYERS - 1 else "scores"]),
        ]
        last = f"sum{layer}"
    folder: Path = tmp_path_factory.mktemp("deep")
    weights = {f"w{layer}": (WIDTH, WIDTH) for layer in range(LAYERS)}
    model = load_model(export_small(folder, nodes, weights, x=(BATCH, WIDTH), classes=WIDTH))
    normalize()(model)
    graph = extract(model)
    return ScheduleProblem(graph, cost_table(graph, load_device("a72")))


def profile_of(problem: ScheduleProblem) -> Profile:
    return Liveness(problem).in_order(memory_aware_order(problem))


@pytest.mark.parametrize("share", sampled([0.7, 0.5, 0.4, 0.3], 0.5, 0.3))
def test_quick_plans_recompute_segments_instead_of_paging(problem: ScheduleProblem, share: float) -> None:
    profile = profile_of(problem)
    budget = int(share * profile.peak_bytes)
    plan = quick_plan(profile, Limits(budget))
    assert plan is not None
    computing = simulate(problem, ordered_steps(memory_aware_order(problem))).energy_joules
    assert plan.prediction.page_out_bytes == 0
    assert plan.prediction.transient_peak_bytes <= budget
    assert plan.prediction.energy_joules < 1.4 * computing


def test_however_often_waits_are_cut_there_is_room_for_them(
    problem: ScheduleProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 0
    grow = Eviction._grow

    def counted(self: Eviction) -> None:
        nonlocal most
        grow(self)
        most = max(most, len(self.value))

    monkeypatch.setattr(Eviction, "_grow", counted)
    profile = profile_of(problem)
    for percent in range(20, 100, 5):
        evict(profile, Limits(percent * profile.peak_bytes // 100))
    assert most > 2 * len(profile.order), "no eviction cut more intervals than there is room for at first"


def test_an_interrupt_is_never_lost_while_waits_are_chosen(problem: ScheduleProblem) -> None:
    """NumPy drops what is raised while it asks an operand for attributes."""
    profile = profile_of(problem)
    calls = 0

    def run(interrupted_call: int | None) -> None:
        nonlocal calls
        calls = 0

        def count(frame: FrameType, event: str, _: object) -> None:
            nonlocal calls
            calls += event == "call"
            if calls == interrupted_call and event == "call":
                raise KeyboardInterrupt

        sys.setprofile(count)
        try:
            evict(profile, Limits(profile.peak_bytes // 2))
        finally:
            sys.setprofile(None)

    run(None)
    for interrupted_call in random.Random(0).sample(range(1, calls), 40):
        with pytest.raises(KeyboardInterrupt):
            run(interrupted_call)


@pytest.mark.deep
def test_a_plan_is_proven_by_memory_alone_where_the_solver_has_no_time(problem: ScheduleProblem) -> None:
    profile = profile_of(problem)
    limits = Limits(profile.peak_bytes // 2)
    plan = schedule(problem, limits, time_limit_seconds=1, order=memory_aware_order(problem))
    assert plan.certificate.covers == PlanClass()
    assert plan.certificate.gap < 0.05
