"""Operators that no rule knows are planned with care, marked, and settled by measuring them."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import helper
from small_models import export_small

from poet_onnx import rewrite
from poet_onnx.cli.tables import inspection_parts, report_lines
from poet_onnx.costing.device import load_device
from poet_onnx.errors import InfeasibleError
from poet_onnx.graph.extract import extract, load_model
from poet_onnx.passes.normalize import normalize
from poet_onnx.profiler import measure
from poet_onnx.reporting.inspection import inspect
from poet_onnx.reporting.report import Report
from poet_onnx.verification import verify


@pytest.fixture(scope="module")
def unusual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a training graph whose input goes through noise, a test for NaN and an Einsum."""
    nodes = [
        helper.make_node("RandomUniformLike", ["x"], ["noise"]),
        helper.make_node("Bernoulli", ["noise"], ["coins"]),
        helper.make_node("IsNaN", ["x"], ["missing"]),
        helper.make_node("Where", ["missing", "noise", "x"], ["whole"]),
        helper.make_node("Einsum", ["whole", "table"], ["mixed"], "mix", equation="bi,ij->bj"),
        helper.make_node("Mul", ["mixed", "coins"], ["kept"]),
        helper.make_node("Gemm", ["kept", "w1", "b1"], ["hidden"]),
        helper.make_node("Relu", ["hidden"], ["active"]),
        helper.make_node("Gemm", ["active", "w2", "b2"], ["scores"]),
    ]
    shapes = {"table": (24, 24), "w1": (24, 32), "b1": (32,), "w2": (32, 5), "b2": (5,)}
    folder = tmp_path_factory.mktemp("unusual")
    return export_small(folder, nodes, shapes, x=(16, 24), classes=5, frozen=["table"])


def report_of(path: Path, **options: object) -> Report:
    result = rewrite(path, device="a72", time_limit_seconds=10, **options)  # type: ignore[arg-type]
    return Report.of_rewrite(result, model="model", output=None)


def test_a_plan_with_an_estimate_says_so_and_verifies(unusual: Path, tmp_path: Path) -> None:
    result = rewrite(unusual, device="a72", time_limit_seconds=10)
    result.save(tmp_path / "out.onnx")
    report = Report.of_rewrite(result, model="model", output=None)
    assert report.estimated_workspace_nodes == ("mix",)
    assert any("1 node " in line and "'mix'" in line and "profile" in line for line in report_lines(report))
    assert verify(unusual, tmp_path / "out.onnx", feeds=2).problems == ()
    inspection = inspect(unusual, device="a72")
    assert inspection.estimated_workspace_nodes == ("mix",)
    assert any(isinstance(part, str) and "'mix'" in part for part in inspection_parts(inspection))


def test_a_budget_that_an_estimate_exceeds_is_refused_with_what_settles_it(unusual: Path) -> None:
    with pytest.raises(
        InfeasibleError, match="estimate, settled by `poet-onnx profile`, of what the kernels of 1 node allocate"
    ):
        rewrite(unusual, device="a72", activation_budget="90%", time_limit_seconds=10)


@pytest.mark.deep
def test_a_profile_settles_what_was_estimated(unusual: Path) -> None:
    measured = measure(unusual, load_device("a72"), repetitions=2, warmup=1)
    report = report_of(unusual, costs=measured)
    assert report.estimated_workspace_nodes == ()
    assert not any("estimated" in line for line in report_lines(report))


def test_random_operators_have_seeds_and_run_once(unusual: Path) -> None:
    model = load_model(unusual)
    normalize()(model)
    drawing = [node for node in model.graph if node.op_type.startswith("Random")]
    assert len(drawing) == 2
    assert len({node.attributes["seed"].as_float() for node in drawing}) == 2
    names = {node.name for node in drawing}
    assert not any(node.recomputable for node in extract(model).nodes if node.name in names)
