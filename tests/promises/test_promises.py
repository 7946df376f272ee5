"""The promises, all at once, on the models and devices that the README names: same bits, exact order, memory, bound."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from deep import sampled

from poet_onnx import rewrite, verify
from poet_onnx.errors import InfeasibleError
from poet_onnx.ops.schemas import register_schemas

SHARES = [("resnet18", 0.75), ("resnet18", 0.3), ("vgg16", 0.92), ("vgg16", 0.3), ("bert-2", 0.2), ("bert-2", 0.1)]
CASES = sampled(
    [(name, share, device) for name, share in SHARES for device in ("a72", "tx2")],
    ("bert-2", 0.2, "a72"),
)


@pytest.mark.parametrize(("name", "share", "device"), CASES)
def test_every_promise_holds(
    model_path: Callable[..., Path], tmp_path: Path, name: str, share: float, device: str
) -> None:
    path = model_path(name)
    # Where gradients in parts need nothing recomputed or paged, and so are the cheapest, whole ones do.
    result = rewrite(path, device=device, activation_budget=f"{100 * share}%", split=share < 0.5)
    plan = result.plan
    assert plan.certificate.status == "optimal"
    assert plan.certificate.gap <= 0.01
    assert plan.certificate.bound_joules <= plan.certificate.objective_joules
    assert plan.prediction.recomputed_nodes + plan.prediction.page_out_bytes > 0
    out = tmp_path / "out.onnx"
    result.save(out)
    register_schemas()
    onnx.checker.check_model(onnx.load(out))
    report = verify(path, out, feeds=2, optimized=True)
    assert report.passed, report.problems
    assert report.bits_equal
    assert report.order_exact
    assert plan.limits.budget_bytes == int(share * result.ordered.transient_peak_bytes)
    assert report.measured_transient_peak_bytes <= plan.limits.budget_bytes
    predicted = report.predicted_transient_peak_bytes
    assert abs(report.measured_transient_peak_bytes - predicted) <= 0.002 * predicted
    assert report.optimized is not None
    assert report.optimized.bits_equal
    assert not report.optimized.lost_nodes


@pytest.mark.deep
@pytest.mark.parametrize("name", ["resnet18", "vgg16", "bert-2"])
def test_less_than_the_smallest_budget_is_refused_and_the_smallest_works(
    model_path: Callable[..., Path], name: str
) -> None:
    path = model_path(name)
    with pytest.raises(InfeasibleError) as refused:
        rewrite(path, device="tx2", activation_budget="1%")
    smallest = refused.value.smallest_budget_bytes
    assert smallest is not None
    assert f"{smallest:,}" in str(refused.value)
    result = rewrite(path, device="tx2", activation_budget=smallest, gap=0.05)
    assert result.rewritten.transient_peak_bytes <= smallest
    with pytest.raises(InfeasibleError):
        rewrite(path, device="tx2", activation_budget=int(0.99 * smallest))


BRANCHING = [
    ("unet", 1, "80%"),
    ("densenet", 1, "70%"),
    ("mobilenet", 1, "60%"),
    ("transformer", 1, "60%"),
    ("unet", 2, "75%"),
    ("resnet18", 4, "50%"),
    ("bert-2", 4, "40%"),
]


@pytest.mark.parametrize(("name", "batch", "budget"), sampled(BRANCHING, BRANCHING[0]))
def test_branches_masks_and_batches(model_path: Callable[..., Path], name: str, batch: int, budget: str) -> None:
    path = model_path(name, batch=batch)
    result = rewrite(path, device="tx2", activation_budget=budget)
    report = verify(path, result.model, feeds=2)
    assert report.passed, report.problems
    assert report.measured_transient_peak_bytes <= (result.plan.limits.budget_bytes or 0)
