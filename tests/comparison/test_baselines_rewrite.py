"""Every method carried out on a real model: the same bits, in the planned order, within the predicted memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cli_runs import Cli

from poet_onnx import rewrite, verify
from poet_onnx.choices import METHODS
from poet_onnx.errors import InputError, LimitReachedError
from poet_onnx.plan.serialization import from_json, to_json
from poet_onnx.scheduling import METHODS as REGISTRY

OWN = {"checkpoint-all": ("densenet", 1, "100%"), "poet-paper": ("mlp-bce", 256, "75%")}
"""Model, batch size and budget of their own: one keeps everything, the other's program is too hard for the DenseNet."""


CASES = [(name, share) for name in ("densenet", "unet", "resnet18", "transformer") for share in ("80%", "70%")]


def test_all_methods_have_a_name_to_type() -> None:
    assert set(METHODS) == set(REGISTRY)


@pytest.mark.deep
@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_and_is_verified(model_path: Callable[..., Path], tmp_path: Path, method: str) -> None:
    name, batch, budget = OWN.get(method, ("densenet", 1, "95%"))
    path = model_path(name, batch=batch)
    result = rewrite(path, device="tx2", activation_budget=budget, split=False, method=method, gap=0.5)
    prediction = result.plan.prediction
    assert result.method == method
    assert from_json(to_json(result.plan, result.graph), result.graph) == result.plan
    assert (prediction.recomputed_nodes + prediction.page_out_bytes > 0) == (budget != "100%")
    out = tmp_path / "out.onnx"
    result.save(out)
    report = verify(path, out, feeds=1)
    assert report.passed, report.problems
    assert report.bits_equal
    assert report.order_exact
    assert report.measured_transient_peak_bytes <= result.plan.limits.budget_bytes
    assert abs(report.measured_transient_peak_bytes - report.predicted_transient_peak_bytes) <= 0.002 * (
        report.predicted_transient_peak_bytes
    )


@pytest.mark.deep
@pytest.mark.parametrize(("name", "share"), CASES)
def test_no_method_spends_less_than_poet_by_more_than_the_gap(
    model_path: Callable[..., Path], name: str, share: str
) -> None:
    options = {"device": "tx2", "activation_budget": share, "split": False, "time_limit_seconds": 60.0}
    ours = rewrite(model_path(name), **options).plan
    for method in METHODS:
        if method.startswith("poet"):
            continue
        try:
            other = rewrite(model_path(name), method=method, **options).plan.prediction
        except LimitReachedError as refused:
            assert method in str(refused)
            continue
        assert ours.prediction.energy_joules <= other.energy_joules * (1 + ours.certificate.gap + 1e-9), method
        assert ours.certificate.bound_joules <= other.energy_joules * (1 + 1e-9), method


def test_a_refusal_names_the_method_and_its_smallest_plan(model: Path, cli: Cli) -> None:
    refused = cli("rewrite", model, "--device", "tx2", "--activation-budget", "50%", "--method", "chen-sqrt")
    assert refused.code == 4
    assert "Method 'chen-sqrt' has no plan for a transient budget of" in refused.err.replace("\n", " ")
    assert "Its smallest plan takes" in refused.err.replace("\n", " ")


def test_known_plans_are_for_our_own_methods(model: Path) -> None:
    known = rewrite(model, device="tx2", activation_budget="95%").plan
    with pytest.raises(InputError, match="leave known_plans out"):
        rewrite(model, device="tx2", activation_budget="95%", method="dtr", known_plans=[known])
