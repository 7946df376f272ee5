"""From a model and a request to a plan: variants are tried in turn, and what would do is said where none has one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import poet_onnx
from poet_onnx.errors import InfeasibleError, LimitReachedError
from poet_onnx.plan import Step
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.reporting.inspection import inspect
from poet_onnx.rewriting import planning
from poet_onnx.rewriting.variants import PART_BYTES
from poet_onnx.scheduling import memory_aware_order
from poet_onnx.simulate.versions import BufferLives, trace_buffers

PATIENT: dict[str, Any] = {"device": "a72", "time_limit_seconds": 600.0}
"""A device, and a time limit within which a busy machine finds the best plan too."""


@pytest.mark.deep
def test_what_would_do_is_not_worked_out_where_another_variant_has_a_plan(
    model_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole weight gradients do not fit, and within a deadline it takes long to find out what would."""

    def work_out(*_: object, **__: object) -> None:
        raise AssertionError("what would do was worked out")

    monkeypatch.setattr("poet_onnx.rewriting.smallest.smallest_budget", work_out)
    result = poet_onnx.rewrite(model_path("resnet18"), **PATIENT, activation_budget="40%", deadline="1.5x")
    assert result.plan.part_bytes is not None
    assert result.rewritten.seconds <= (result.plan.limits.deadline_seconds or 0.0) * (1 + 1e-9)


@pytest.mark.deep
def test_the_variant_that_needs_the_least_says_what_would_do(model_path: Callable[..., Path]) -> None:
    path = model_path("resnet18")
    with pytest.raises(InfeasibleError) as whole:
        poet_onnx.rewrite(path, device="a72", activation_budget=1 << 20, split=False)
    with pytest.raises(InfeasibleError) as any_variant:
        poet_onnx.rewrite(path, device="a72", activation_budget=1 << 20)
    assert (any_variant.value.smallest_budget_bytes or 0) < (whole.value.smallest_budget_bytes or 0)


@pytest.mark.deep
def test_a_variant_that_was_not_settled_hides_no_plan_of_another(
    model_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the time ends with nothing known of whole gradients, those in parts are tried all the same."""
    path = model_path("resnet18")
    from poet_onnx.scheduling.refusals import NothingFoundError
    from poet_onnx.scheduling.search import Search

    tried: list[int | None] = []

    def settle_nothing_at_first(run: Search) -> poet_onnx.Plan:
        tried.append(run.limits.budget_bytes)
        if len(tried) == 1:
            raise NothingFoundError(run.problem, run.limits, (), float("inf"))
        return in_best_order(run)

    in_best_order = Search.in_best_order
    monkeypatch.setattr(Search, "in_best_order", settle_nothing_at_first)
    result = poet_onnx.rewrite(path, device="a72", activation_budget="40%")
    assert result.plan.part_bytes is not None
    tried.clear()
    with pytest.raises(LimitReachedError, match="or a larger --time-limit"):
        poet_onnx.rewrite(path, device="a72", activation_budget=1 << 20)


@pytest.mark.deep
@pytest.mark.parametrize(("option", "settled"), [("activation_budget", False), ("ram_budget", True)])
def test_what_would_do_is_said_in_the_terms_of_who_asked(
    model_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, option: str, settled: bool
) -> None:
    """Whatever the usual search ends with, what is named works, though that search finds nothing there either."""
    from poet_onnx.plan import PlanClass
    from poet_onnx.scheduling.liveness import build_instance, file_order
    from poet_onnx.scheduling.refusals import NoneExistsError, NothingFoundError
    from poet_onnx.scheduling.search import Search

    def find_nothing(run: Search) -> poet_onnx.Plan:
        order = file_order(run.problem.graph)
        if settled:
            raise NoneExistsError(build_instance(run.problem, order), run.limits, PlanClass())
        raise NothingFoundError(run.problem, run.limits, order, 1.0)

    monkeypatch.setattr(Search, "in_best_order", find_nothing)
    path = model_path("unet")
    options: dict[str, Any] = {"device": "a72", "target": "stock", "deadline": "1.5x", "split": False}
    asked = 2_000
    with pytest.raises((LimitReachedError, InfeasibleError)) as refused:
        poet_onnx.rewrite(path, **options, **{option: asked})
    message, works = str(refused.value), refused.value.smallest_budget_bytes
    assert works is not None
    assert f"budget of {asked:,} bytes" in message
    assert f"{works:,} bytes" in message
    assert "set aside" in message
    assert ("for the runtime" in message) == (option == "ram_budget")
    found = poet_onnx.rewrite(path, **options, **{option: works})
    assert found.rewritten.seconds <= (found.plan.limits.deadline_seconds or 0.0) * (1 + 1e-9)
    assert (found.process.peak_bytes if option == "ram_budget" else found.plan.limits.budget_bytes) == works


@pytest.mark.deep
def test_the_ordered_step_keeps_to_all_of_itself(model_path: Callable[..., Path]) -> None:
    """100 % is what the ordered step needs, with what budgets for the stock runtime set aside."""
    path = model_path("densenet")
    result = poet_onnx.rewrite(path, device="a72", target="stock", activation_budget="100%", deadline="1.0x")
    assert result.plan.certificate.status == "not_needed"
    figures = inspect(path, device="a72", target="stock")
    assert figures.set_aside_bytes > 0
    assert result.budget_bytes == figures.ordered.transient_peak_bytes + figures.set_aside_bytes
    half = poet_onnx.rewrite(path, device="a72", target="stock", activation_budget="50%", time_limit_seconds=5)
    assert half.budget_bytes == result.budget_bytes // 2
    assert half.rewritten.transient_peak_bytes + figures.set_aside_bytes <= half.budget_bytes


def test_a_variant_that_spends_much_less_is_taken_though_another_has_a_plan(model_path: Callable[..., Path]) -> None:
    options: dict[str, Any] = {**PATIENT, "activation_budget": "90%", "paging": False}
    path = model_path("vgg16")
    whole, any_variant = poet_onnx.rewrite(path, split=False, **options), poet_onnx.rewrite(path, **options)
    assert any_variant.plan.part_bytes is not None
    assert any_variant.rewritten.energy_joules < 0.97 * whole.rewritten.energy_joules


@pytest.mark.deep
@pytest.mark.parametrize("shares", [["65%", "80%"], ["65%", "70%", "75%", "80%"]])
def test_more_ram_never_costs_more_whichever_variant_is_the_cheapest(
    model_path: Callable[..., Path], shares: list[str]
) -> None:
    """Gradients in parts need few bytes and 1.7 % more energy; whole ones are dearer yet, up to 75 % of the RAM."""
    spent, parts = [], []
    for share in shares:
        result = poet_onnx.rewrite(model_path("resnet18"), **PATIENT, activation_budget=share)
        spent.append(result.rewritten.energy_joules)
        parts.append(result.plan.part_bytes)
    assert spent == sorted(spent, reverse=True)
    assert parts[0]
    assert parts[-1] is None


@pytest.mark.deep
def test_an_interrupt_after_the_first_plan_keeps_it(
    model_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, budget = model_path("resnet18"), "70%"
    assert poet_onnx.rewrite(path, **PATIENT, activation_budget=budget).plan.part_bytes is not None

    def interrupt(*_: object) -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr(planning, "least_overhead_in_order", interrupt)
    result = poet_onnx.rewrite(path, **PATIENT, activation_budget=budget)
    assert result.plan.part_bytes is None
    assert result.rewritten.transient_peak_bytes <= (result.plan.limits.budget_bytes or 0)


@pytest.mark.deep
def test_other_variants_are_not_looked_at_where_they_save_nothing(
    model_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[int] = []
    schedule = planning.schedule

    def listen(*arguments: Any, **named: Any) -> Any:
        looked_at.append(len(looked_at))
        return schedule(*arguments, **named)

    monkeypatch.setattr(planning, "schedule", listen)
    result = poet_onnx.rewrite(model_path("resnet18"), **PATIENT, activation_budget="90%")
    assert result.plan.part_bytes is None
    assert looked_at == [0]


@pytest.mark.parametrize("budget", [{"activation_budget": "100%"}, {"ram_budget": "300MiB"}], ids=["step", "process"])
def test_a_step_that_fits_in_order_is_simulated_once(
    model_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, budget: dict[str, str]
) -> None:
    """It is replayed once more for the addresses of its blocks; and nobody makes a quick plan of it."""
    replays: Counter[tuple[str, tuple[Step, ...]]] = Counter()

    def counted(problem: ScheduleProblem, steps: Sequence[Step]) -> BufferLives:
        replays[problem.graph.fingerprint, tuple(steps)] += 1
        return trace_buffers(problem, steps)

    def fail(*_: object) -> None:
        pytest.fail("a quick plan was made")

    monkeypatch.setattr("poet_onnx.simulate.trace_buffers", counted)
    monkeypatch.setattr("poet_onnx.scheduling.order_search.quick_plan", fail)
    monkeypatch.setattr("poet_onnx.scheduling.search.quick_plan", fail)
    result = poet_onnx.rewrite(model_path("mobilenet"), target="stock", device="a72", **budget)  # type: ignore[arg-type]
    assert result.plan.certificate.status == "not_needed"
    assert replays[result.graph.fingerprint, result.plan.steps] <= 2
    assert max(replays.values()) <= 2


@pytest.mark.deep
def test_variants_whose_computing_alone_costs_more_than_a_plan_are_not_ordered(
    model_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the largest weight gradients in parts the order fits; in smaller parts computing alone costs more."""
    ordered = []

    def counted(problem: ScheduleProblem) -> tuple[str, ...]:
        ordered.append(problem.graph.fingerprint)
        return memory_aware_order(problem)

    monkeypatch.setattr("poet_onnx.rewriting.baseline.memory_aware_order", counted)
    result = poet_onnx.rewrite(model_path("resnet18"), target="stock", device="a72", activation_budget="60%")
    assert result.plan.part_bytes == PART_BYTES["stock"][0]
    assert ordered[-1] == result.graph.fingerprint
    assert len(ordered) == 2
