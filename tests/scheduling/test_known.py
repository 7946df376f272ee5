"""Plans found before: they are improved on, and never make a bound or a gap look better than it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from brute_force import least_energy

from poet_onnx.costing.costs import CostTable, NodeCost, TransferCost
from poet_onnx.errors import InfeasibleError
from poet_onnx.graph import Node, Phase, Residency, Tensor, TrainingGraph
from poet_onnx.plan import Action, Plan, PlanClass, Step
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.scheduling import SimulatedPlan, memory_aware_order, schedule
from poet_onnx.scheduling.incumbent import Effort, Incumbent
from poet_onnx.scheduling.liveness import file_order
from poet_onnx.scheduling.order_search import OrderChoice

LIMITS = Limits(10_000)
BETTER = ("q", "s", "p", "r", "t")


def _problem() -> tuple[ScheduleProblem, tuple[str, ...]]:
    """Return a problem that no order of its file solves without transfers, and that order; another one needs none."""
    made = {"p": 8000, "q": 8000, "r": 400, "s": 400, "t": 1000}
    reads = {"p": "x", "q": "x", "r": "vp", "s": "vq", "t": "vr vs vp"}
    tensors = {"x": Tensor("x", "FLOAT", (16,), 64, "x", Residency.RESIDENT)}
    for name, size in made.items():
        residency = Residency.OUTPUT if name == "t" else Residency.TRANSIENT
        tensors[f"v{name}"] = Tensor(f"v{name}", "FLOAT", (size // 4,), size, f"v{name}", residency)
    nodes = tuple(
        Node(name, "Op", "", tuple(reads[name].split()), (f"v{name}",), {}, Phase.FORWARD, recomputable=False)
        for name in made
    )
    graph = TrainingGraph("two ways", nodes, tensors, ("x",), ("vt",), "two ways")
    moves = {f"v{name}": TransferCost(0.5, 0.25) for name in made}
    costs = CostTable("disk", {name: NodeCost(1.0, 1.0, 0) for name in made}, moves, moves, asynchronous=False)
    return ScheduleProblem(graph, costs), file_order(graph)


def _order_of(plan: Plan) -> tuple[str, ...]:
    return tuple(step.subject for step in plan.steps if step.action is Action.COMPUTE and not step.copy)


def _without_time(plan: Plan) -> Plan:
    return replace(plan, certificate=replace(plan.certificate, solve_seconds=0.0))


def test_a_plan_in_another_order_changes_no_certificate() -> None:
    problem, order = _problem()
    alone = schedule(problem, LIMITS, gap=0.0, order=order)
    other = schedule(problem, LIMITS, gap=0.0, order=memory_aware_order(problem))
    assert other.certificate.objective_joules < alone.certificate.bound_joules
    assert _without_time(schedule(problem, LIMITS, gap=0.0, order=order, known=[other.steps])) == _without_time(alone)


def test_a_known_plan_is_improved_on_in_another_order() -> None:
    problem, order = _problem()
    known = schedule(problem, LIMITS, gap=0.0, order=order)
    found = schedule(problem, LIMITS, gap=0.0, known=[known.steps])
    assert found.certificate.objective_joules < known.certificate.objective_joules


def test_a_known_plan_in_another_order_is_returned_with_a_bound_that_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, order = _problem()
    known = schedule(problem, LIMITS, order=BETTER)
    monkeypatch.setattr("poet_onnx.scheduling.search.order_for", lambda *_, **__: OrderChoice(order, None, None))
    baseline = SimulatedPlan.in_order(problem, order)
    dearer = schedule(problem, LIMITS, gap=0.0, baseline=baseline)
    assert _order_of(dearer) == order
    found = schedule(problem, LIMITS, gap=0.0, baseline=baseline, known=[known.steps])
    assert found.steps == known.steps
    assert found.certificate.objective_joules < dearer.certificate.objective_joules
    assert found.certificate.bound_joules <= (least_energy(problem, LIMITS, BETTER) or 0.0)


def test_a_known_plan_that_breaks_the_limits_counts_for_nothing() -> None:
    problem, order = _problem()
    known = schedule(problem, LIMITS, gap=0.0, order=order)
    late = replace(LIMITS, deadline_seconds=known.prediction.seconds * 0.999)
    with pytest.raises(InfeasibleError):
        schedule(problem, late, gap=0.0, order=order, known=[known.steps])


def test_a_known_plan_is_placed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, order = _problem()
    known = schedule(problem, LIMITS, gap=0.0, order=order)
    placed: list[tuple[Step, ...]] = []
    place = Incumbent.offer_steps

    def counted(incumbent: Incumbent, steps: tuple[Step, ...]) -> None:
        placed.append(steps)
        place(incumbent, steps)

    monkeypatch.setattr(Incumbent, "offer_steps", counted)
    schedule(problem, LIMITS, gap=0.0, known=[known.steps])
    assert placed.count(known.steps) == 1


def test_of_two_orders_the_second_is_searched_for_cheaper_plans_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, order = _problem()
    better = schedule(problem, LIMITS, gap=0.0, order=BETTER)
    choice = OrderChoice(order, None, None, rival=BETTER)
    monkeypatch.setattr("poet_onnx.scheduling.search.order_for", lambda *_, **__: choice)
    known: list[float] = []
    settles = Incumbent.settles

    def listen(incumbent: Incumbent, effort: Effort) -> bool:
        known.append(effort.known_joules)
        return settles(incumbent, effort)

    monkeypatch.setattr(Incumbent, "settles", listen)
    found = schedule(problem, LIMITS, gap=0.0, baseline=SimulatedPlan.in_order(problem, order))
    assert _without_time(found) == _without_time(better)
    assert set(known) == {better.certificate.objective_joules}  # everything fits in the first order


def test_a_bound_that_reaches_a_known_plan_settles_an_order() -> None:
    problem, _ = _problem()
    incumbent = Incumbent(problem, LIMITS)
    effort = Effort(0.0, 0.0, 1.0, known_joules=problem.base_joules + 1.0)
    incumbent.lift(0.9, PlanClass())
    assert not incumbent.settles(effort)
    incumbent.lift(1.0, PlanClass())
    assert incumbent.settles(effort)
