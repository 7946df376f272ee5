"""Random training models, all the way: planned, rewritten, run in ONNX Runtime, compared bit by bit, byte by byte."""

from __future__ import annotations

import random

import pytest
from brute_force import least_energy
from deep import sampled
from random_models import random_model

from poet_onnx import rewrite, verify
from poet_onnx.costing.device import load_device
from poet_onnx.errors import InfeasibleError
from poet_onnx.plan import Action
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.rewriting.rewrite import RewriteResult
from poet_onnx.simulate import simulate

METHODS = ({}, {"paging": False}, {"recompute": False})
SEEDS = sampled(range(200), *range(0, 200, 42))


def _tight(seed: int, layers: int, **options: bool) -> RewriteResult:
    """Rewrite a random model at, or a little above, the smallest budget that works."""
    rng = random.Random(seed)
    device = load_device(rng.choice(["a72", "tx2"]))
    model = random_model(seed, layers)
    with pytest.raises(InfeasibleError) as refused:
        rewrite(model, device=device, activation_budget=4096, **options)
    smallest = refused.value.smallest_budget_bytes
    assert smallest is not None
    return rewrite(model, device=device, activation_budget=smallest + rng.choice([0, 5_000, 20_000]), **options)


@pytest.mark.parametrize("seed", SEEDS)
def test_rewritten_model_is_the_same_and_fits(seed: int) -> None:
    options = METHODS[seed % len(METHODS)]
    result = _tight(seed, 1 + seed % 14, **options)
    problem = ScheduleProblem(result.graph, result.costs, **options)
    assert simulate(problem, result.plan.steps, result.plan.limits) == result.plan.prediction
    assert result.plan.certificate.objective_joules == result.plan.prediction.energy_joules
    report = verify(random_model(seed, 1 + seed % 14), result.model, feeds=2)
    assert report.passed, report.problems
    assert report.bits_equal
    assert report.order_exact
    assert result.plan.limits.budget_bytes is not None
    assert report.measured_transient_peak_bytes <= result.plan.limits.budget_bytes


@pytest.mark.usefixtures("exact")
@pytest.mark.parametrize("seed", sampled(range(10), 0, 1, 5))
def test_energy_equals_exhaustive_search_on_real_models(seed: int) -> None:
    result = _tight(seed, 1 + seed % 2)
    plan = result.plan
    order = [step.subject for step in plan.steps if step.action is Action.COMPUTE and not step.copy]
    best = least_energy(ScheduleProblem(result.graph, result.costs), plan.limits, order)
    assert best is not None
    # The search knows no buffer that an output takes over, so it may need a little more than the plan does.
    assert plan.certificate.bound_joules <= best * (1 + 1e-6)
    assert plan.prediction.energy_joules <= best * (1 + 0.01)


@pytest.mark.deep
def test_models_differ_and_both_methods_occur() -> None:
    results = [_tight(seed, 12) for seed in range(7)]
    assert len({result.graph.fingerprint for result in results}) == len(results)
    assert any(result.plan.prediction.recomputed_nodes for result in results)
    assert any(result.plan.prediction.page_out_bytes for result in results)
