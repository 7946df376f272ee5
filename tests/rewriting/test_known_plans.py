"""Plans made before: an answer spends no more than one of them that keeps what was asked for, and breaks no limits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_runs import Cli

import poet_onnx
from poet_onnx.errors import InputError
from poet_onnx.plan.serialization import to_json
from poet_onnx.reporting.report import Report
from poet_onnx.verification import verify

ASK: dict[str, Any] = {"device": "a72", "paging": False}


@pytest.fixture(scope="module")
def in_parts(model_path: Callable[..., Path]) -> poet_onnx.RewriteResult:
    """Return the answer for VGG-16, whose gradients in parts are much cheaper at 90 % without paging."""
    return poet_onnx.rewrite(model_path("vgg16"), activation_budget="90%", **ASK)


@pytest.mark.deep
def test_more_ram_costs_no_more_than_a_plan_for_less(model_path: Callable[..., Path]) -> None:
    path = model_path("resnet18")
    good = poet_onnx.rewrite(path, activation_budget="75%", gap=0.0, **ASK)
    poor: dict[str, Any] = {"activation_budget": "75.2%", "gap": 0.99, "time_limit_seconds": 0.01, **ASK}
    alone, with_known = poet_onnx.rewrite(path, **poor), poet_onnx.rewrite(path, known_plans=[good.plan], **poor)
    assert good.rewritten.energy_joules < alone.rewritten.energy_joules
    assert with_known.rewritten.energy_joules <= good.rewritten.energy_joules
    assert with_known.plan.certificate.bound_joules <= with_known.rewritten.energy_joules
    assert verify(path, with_known.model, feeds=1).passed


@pytest.mark.deep
def test_a_plan_that_breaks_the_limits_counts_for_nothing(model_path: Callable[..., Path]) -> None:
    path = model_path("transformer")
    wide = poet_onnx.rewrite(path, activation_budget="95%", **ASK)
    alone = poet_onnx.rewrite(path, activation_budget="85%", **ASK)
    with_known = poet_onnx.rewrite(path, activation_budget="85%", known_plans=[wide.plan], **ASK)
    assert wide.rewritten.energy_joules < alone.rewritten.energy_joules
    assert with_known.plan.steps == alone.plan.steps


def test_the_variant_of_a_known_plan_is_looked_at(
    in_parts: poet_onnx.RewriteResult, model_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("poet_onnx.rewriting.planning.could_save", lambda *_: False)
    path, limits = model_path("vgg16"), {"activation_budget": "90%", **ASK}
    alone = poet_onnx.rewrite(path, **limits)
    assert alone.plan.part_bytes is None
    with_known = poet_onnx.rewrite(path, known_plans=[in_parts.plan], **limits)
    assert with_known.plan.part_bytes == in_parts.plan.part_bytes
    assert with_known.rewritten.energy_joules <= in_parts.rewritten.energy_joules < alone.rewritten.energy_joules
    wide = poet_onnx.rewrite(path, known_plans=[in_parts.plan], activation_budget="100%", **ASK)
    assert wide.plan.part_bytes is None


def test_a_plan_for_a_variant_that_is_not_allowed_is_named(
    in_parts: poet_onnx.RewriteResult, model_path: Callable[..., Path]
) -> None:
    with pytest.raises(InputError, match=r"Known plan no\. 1: with these options"):
        poet_onnx.rewrite(model_path("vgg16"), activation_budget="90%", split=False, known_plans=[in_parts.plan], **ASK)


def test_a_plan_to_carry_out_and_known_plans(
    in_parts: poet_onnx.RewriteResult, model_path: Callable[..., Path]
) -> None:
    with pytest.raises(InputError, match="not both"):
        poet_onnx.rewrite(model_path("vgg16"), device="a72", plan=in_parts.plan, known_plans=[in_parts.plan])


@pytest.mark.deep
def test_a_file_of_a_known_plan(cli: Cli, model_path: Callable[..., Path], tmp_path: Path) -> None:
    path, tight, report = model_path("transformer"), tmp_path / "tight.json", tmp_path / "report.json"
    made = poet_onnx.rewrite(path, device="a72", activation_budget="70%")
    tight.write_text(to_json(made.plan, made.graph))
    done = cli(
        *("rewrite", path, tmp_path / "out.onnx", "--device", "a72", "--activation-budget", "71%"),
        *("--known-plan", tight, "--report-out", report),
    )
    assert done.code == 0, done
    assert Report.model_validate_json(report.read_text()).energy_joules <= made.rewritten.energy_joules
