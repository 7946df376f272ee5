"""Plans survive the way to a file and back, and are refused where they do not belong."""

from __future__ import annotations

import json

import pytest
from random_graphs import random_graph

from poet_onnx.errors import InputError
from poet_onnx.graph import TrainingGraph
from poet_onnx.plan import Action, Plan
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.plan.serialization import from_json, to_json
from poet_onnx.scheduling import schedule, smallest_budget


def _tight_plan(seed: int) -> tuple[Plan, TrainingGraph]:
    graph, costs = random_graph(seed, 12)
    problem = ScheduleProblem(graph, costs)
    budget = smallest_budget(problem).budget_bytes
    return schedule(problem, Limits(budget)), graph


@pytest.mark.parametrize("seed", range(8))
def test_round_trip(seed: int) -> None:
    plan, graph = _tight_plan(seed)
    text = to_json(plan, graph)
    assert from_json(text, graph) == plan
    assert len(text) < 3000


def test_all_kinds_of_steps_occur() -> None:
    actions = {step.action for seed in range(8) for step in _tight_plan(seed)[0].steps}
    assert actions == set(Action)


def test_plan_of_another_graph_is_refused() -> None:
    plan, graph = _tight_plan(1)
    other, _ = random_graph(2, 12)
    with pytest.raises(InputError, match="plan again for this model"):
        from_json(to_json(plan, graph), other)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 99}, "schema version 99"),
        ({"steps": "0-9999"}, "'0-9999'"),
        ({"steps": "q7"}, "'q7'"),
        ({"steps": "3-0"}, "'3-0'"),
        ({"steps": "p3-5"}, "'p3-5'"),
        ({"steps": "\N{FULLWIDTH DIGIT ONE}"}, "\N{FULLWIDTH DIGIT ONE}"),
        ({"steps": "9" * 5000}, "'9{40}...'"),
        ({"surprise": 1}, "surprise"),
        ({"part_bytes": 0}, "part_bytes is out of range"),
    ],
)
def test_broken_plans_are_refused(change: dict[str, object], message: str) -> None:
    plan, graph = _tight_plan(1)
    with pytest.raises(InputError, match=message):
        from_json(json.dumps({**json.loads(to_json(plan, graph)), **change}), graph)


CLASS = {"recompute": True, "paging": True, "in_order": True, "hops": None, "stays": None}


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("limits", {"budget_bytes": "much"}, "budget_bytes"),
        ("limits", {"budget_bytes": -1}, "budget_bytes is out of range"),
        ("limits", {"budget_bytes": 2**70}, "budget_bytes is out of range"),
        ("limits", {"budget_bytes": True}, "budget_bytes"),
        ("limits", {"budget_bytes": 1}, "but the budget is 1 bytes"),
        ("limits", {"deadline_seconds": float("nan")}, "deadline_seconds is out of range"),
        ("limits", {"deadline_seconds": float("inf")}, "deadline_seconds is out of range"),
        ("limits", {"deadline_seconds": 0.0}, "deadline_seconds is out of range"),
        ("limits", {"deadline_seconds": 1e-12}, "but the deadline is 1e-12 s"),
        ("prediction", {"energy_joules": 1e9}, r"1e\+09 J in one place"),
        ("prediction", {"energy_joules": 1e300}, "energy_joules is out of range"),
        ("prediction", {"seconds": 1e3}, "not what computing and waiting take"),
        ("prediction", {"page_in_bytes": -1}, "page_in_bytes is out of range"),
        ("prediction", {"stall_seconds": float("-inf")}, "stall_seconds is out of range"),
        ("certificate", {"status": "sure"}, "certificate.status is none of"),
        ("certificate", {"gap": -5.0}, "gap is out of range"),
        ("certificate", {"gap": 0.75}, "are not those of energy and bound"),
        ("certificate", {"overhead_gap": float("nan")}, "overhead_gap is out of range"),
        ("certificate", {"bound_joules": 1e9}, "above its energy"),
        ("certificate", {"bound_joules": 0.0}, "are not those of energy and bound"),
        ("certificate", {"objective_joules": 1e9}, r"1e\+09 J in another"),
        ("certificate", {"seed": int("9" * 300)}, "seed is out of range"),
        ("certificate", {"covers": "all plans"}, "covers"),
        ("certificate", {"covers": {**CLASS, "in_order": False, "paging": False}}, "no class of plans"),
        ("certificate", {"covers": {**CLASS, "hops": 3}}, "no class of plans"),
        ("certificate", {"covers": {**CLASS, "hops": -1, "stays": 3}}, "no class of plans"),
        ("certificate", {"covers": {**CLASS, "paging": False}}, "does what plans of .* do not page do not"),
        ("certificate", {"covers": {**CLASS, "and": "all others"}}, "and"),
        ("certificate", {"status": "not_needed"}, "no class of plans"),
        ("certificate", {"status": "not_needed", "covers": {**CLASS, "in_order": False}}, "nothing was needed"),
        ("certificate", {"wide_bound_joules": 1e9}, "for more plans is above"),
        ("certificate", {"solver": "proven by hand"}, "no solver of this release"),
        ("certificate", {"solver": "SCIP 9.0 (PySCIPOpt 5.0) and proven by hand"}, "no solver of this release"),
        ("certificate", {"solver": "none"}, "no solver of this release"),
        ("certificate", {"threads": 7}, "7 threads"),
        ("certificate", {"proof": "proven by hand"}, "proof"),
    ],
)
def test_plans_that_contradict_themselves_are_refused(part: str, change: dict[str, object], message: str) -> None:
    plan, graph = _tight_plan(1)
    file = json.loads(to_json(plan, graph))
    file[part] |= change
    with pytest.raises(InputError, match=message):
        from_json(json.dumps(file), graph)


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00\x01", "null"])
def test_what_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="not a plan"):
        from_json(text, random_graph(1, 3)[0])
