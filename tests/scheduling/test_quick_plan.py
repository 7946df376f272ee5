"""Quick plans where chains of recomputes hold more than an eviction counts."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from real_problems import real_problem

from poet_onnx.plan.limits import Limits
from poet_onnx.scheduling import memory_aware_order
from poet_onnx.scheduling import quick_plan as module
from poet_onnx.scheduling.liveness import Liveness
from poet_onnx.scheduling.quick_plan import quick_plan


def test_only_places_that_exceed_the_budget_have_less_of_it(model_path: Callable[..., Path]) -> None:
    """With less everywhere, plans that page nearly all of GPT were the only ones that kept to a fifth: 4.5 times."""
    problem = real_problem(model_path("gpt"), "a72")
    profile = Liveness(problem).in_order(memory_aware_order(problem))
    budget = profile.peak_bytes // 5
    plan = quick_plan(profile, Limits(budget))
    assert plan is not None
    assert plan.prediction.transient_peak_bytes <= budget
    assert plan.joules < 3 * problem.base_joules


def test_the_first_way_that_leads_to_a_plan_is_enough_where_the_time_is_over(
    model_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = real_problem(model_path("gpt"), "a72")
    profile = Liveness(problem).in_order(memory_aware_order(problem))
    tried: list[str] = []
    leads_nowhere, leads_to_plan, is_late = (
        lambda profile, limits: tried.append("nowhere"),
        lambda profile, limits: tried.append("plan") or module.evict(profile, limits),
        lambda profile, limits: tried.append("late") or module.evict(profile, limits),
    )
    monkeypatch.setattr(module, "_WAYS", (leads_nowhere, leads_to_plan, is_late))
    limits = Limits(profile.peak_bytes // 2)
    assert quick_plan(profile, limits, end=-math.inf) is not None
    assert {*tried} == {"nowhere", "plan"}
    assert quick_plan(profile, limits) is not None
    assert {*tried} == {"nowhere", "plan", "late"}
