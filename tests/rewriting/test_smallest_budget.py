"""The budget that a refusal names works, so does every larger one, and it is the same on any machine."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import random_dag

import poet_onnx
from poet_onnx.errors import InfeasibleError, LimitReachedError
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.quantities import budget_text, parse_budget
from poet_onnx.reporting.inspection import inspect
from poet_onnx.scheduling import memory_aware_order, ordered_steps, schedule, smallest_budget
from poet_onnx.simulate import simulate


def larger(budget: int) -> tuple[int, ...]:
    """Return a budget and some that are larger."""
    return budget, budget + 1, budget + 64, math.ceil(1.01 * budget)


def refused(path: Path, **options: Any) -> int:
    """Return the budget that a refusal names."""
    with pytest.raises((InfeasibleError, LimitReachedError)) as error:
        poet_onnx.rewrite(path, **options)
    named = error.value.smallest_budget_bytes
    assert named is not None
    assert budget_text(named) in str(error.value)
    return named


@given(size_bytes=st.one_of(st.integers(1, 2**14), st.integers(1, 2**40)))
def test_a_budget_in_the_unit_that_people_type_is_no_smaller(size_bytes: int) -> None:
    in_bytes, _, in_unit = budget_text(size_bytes).removesuffix(")").partition(" bytes (")
    assert int(in_bytes.removesuffix(" bytes").replace(",", "")) == size_bytes
    typed = parse_budget(in_unit or size_bytes, name="budget").size_bytes
    assert typed is not None
    assert size_bytes <= typed <= size_bytes * 1.1


@pytest.mark.deep
@given(
    seed=st.integers(0, 10**6),
    nodes=st.integers(4, 24),
    means=st.sampled_from([(True, True), (True, False), (False, True)]),
    slack=st.sampled_from([None, 1.0, 1.2, 2.0]),
    written=st.sampled_from([None, 0, 500]),
)
def test_the_smallest_budget_and_larger_ones_have_plans(
    seed: int, nodes: int, means: tuple[bool, bool], slack: float | None, written: int | None
) -> None:
    graph, costs = random_dag(seed, nodes)
    problem = ScheduleProblem(graph, costs, recompute=means[0], paging=means[1])
    order = memory_aware_order(problem)
    alone = simulate(problem, ordered_steps(order))
    others = Limits(None, None if slack is None else slack * alone.seconds, written)
    found = smallest_budget(problem, order, limits=others)
    assert found.node_bytes <= found.budget_bytes <= alone.transient_peak_bytes
    assert found.bound_bytes <= found.budget_bytes
    assert found.plan is not None
    simulate(problem, found.plan.steps, others.within(found.budget_bytes))
    varied = smallest_budget(problem, order, limits=others, varied=True)
    assert varied.budget_bytes == found.budget_bytes
    for other in varied.others:
        simulate(problem, other.steps, others)
    for budget in larger(found.budget_bytes):
        plan = schedule(problem, others.within(budget), time_limit_seconds=0.2)
        simulate(problem, plan.steps, others.within(budget))


@contextmanager
def no_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let each look at the clock take a minute, as on a machine that does all but this."""
    looks = iter(range(10**9))
    with monkeypatch.context() as patch:
        for clock in ("monotonic", "thread_time"):
            patch.setattr(time, clock, lambda: 60.0 * next(looks))
        yield


@pytest.mark.parametrize(
    "options",
    [
        {"activation_budget": "2%"},
        {"activation_budget": "2%", "paging": False},
        {"activation_budget": "2%", "deadline": "1.2x", "max_written": 1},
        {"activation_budget": "2%", "method": "dtr"},
        {"ram_budget": "40MB", "target": "stock"},
    ],
)
def test_the_budget_that_is_named_is_the_same_on_a_slow_machine_and_works(
    model_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    path = model_path("mlp-mse", batch=4)
    options |= {"device": "a72", "time_limit_seconds": 1.0}
    named = refused(path, **options)
    with no_time(monkeypatch):
        assert refused(path, **options) == named
        kind = "ram_budget" if "ram_budget" in options else "activation_budget"
        for budget in larger(named):
            poet_onnx.rewrite(path, **options | {kind: budget})


@pytest.mark.parametrize("target", ["training", "stock"])
def test_an_inspection_names_what_a_refusal_names(model_path: Callable[..., Path], target: str) -> None:
    path = model_path("mlp-mse", batch=4)
    found = inspect(path, device="a72", target=target)
    for kind, named in (("activation", found.smallest_budget_bytes), ("ram", found.smallest_process_bytes)):
        assert refused(path, device="a72", target=target, **{f"{kind}_budget": "1kB"}) == named


CASES = [
    (name, target, kind, more)
    for name in ("resnet18", "bert-2", "gpt")
    for target in ("training", "stock")
    for kind in ("activation_budget", "ram_budget")
    for more in ({}, {"deadline": "1.3x"}, {"paging": False})
]


@pytest.mark.deep
@pytest.mark.parametrize(("name", "target", "kind", "more"), CASES)
def test_on_real_models_what_is_named_works_beside_a_busy_process(
    model_path: Callable[..., Path], name: str, target: str, kind: str, more: dict[str, Any]
) -> None:
    path = model_path(name)
    options: dict[str, Any] = {"device": "host", "target": target, "time_limit_seconds": 20.0, **more}
    named = refused(path, **options, **{kind: 1000})
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            assert refused(path, **options, **{kind: 2000}) == named
            for budget in larger(named):
                result = poet_onnx.rewrite(path, **options, **{kind: budget})
                assert result.budget_bytes == budget
                if kind == "ram_budget":
                    assert result.process.peak_bytes <= budget
                else:
                    assert (result.plan.limits.budget_bytes or 0) <= budget
        finally:
            busy.kill()
