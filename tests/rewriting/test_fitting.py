"""No plan's page file is larger than the device's storage, and planning again ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from real_problems import real_problem

import poet_onnx
from poet_onnx.costing.device import DeviceProfile, load_device
from poet_onnx.passes.paging import page_file_bytes
from poet_onnx.plan.limits import Limits
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.plan.serialization import to_json
from poet_onnx.rewriting.fitting import ATTEMPTS, FittingPlan, PageFileError, _closest, _time_limit
from poet_onnx.rewriting.process import LaidOutPlan
from poet_onnx.scheduling import schedule

BLOCK_BYTES = 4096


def device(capacity_bytes: int) -> DeviceProfile:
    """Return a board whose storage has some room."""
    board = load_device("a72")
    assert board.storage is not None
    storage = board.storage.model_copy(update={"capacity_bytes": capacity_bytes})
    return board.model_copy(update={"storage": storage})


@pytest.fixture
def options(model_path: Callable[..., Path]) -> dict[str, Any]:
    """Return a model and a budget to which the best plan keeps by paging."""
    return {"model_or_path": model_path("vgg16"), "activation_budget": "90%"}


def rewritten(options: dict[str, Any], **more: Any) -> Any:
    """Rewrite the model of the options."""
    named = {name: value for name, value in options.items() if name != "model_or_path"}
    return poet_onnx.rewrite(options["model_or_path"], **named, **more)


@pytest.mark.deep
def test_a_plan_whose_page_file_has_no_room_gives_way_to_one_that_pages_nothing(options: dict[str, Any]) -> None:
    options["split"] = False
    roomy = rewritten(options, device=device(2**40))
    needed = page_file_bytes(roomy.graph, roomy.plan.steps)
    assert needed % BLOCK_BYTES == 0
    assert needed > 0
    exact = rewritten(options, device=device(needed))
    assert exact.plan.steps == roomy.plan.steps
    tight = rewritten(options, device=device(needed - 1))
    assert page_file_bytes(tight.graph, tight.plan.steps) == 0
    assert tight.rewritten.recomputed_nodes > roomy.rewritten.recomputed_nodes
    assert tight.rewritten.transient_peak_bytes <= (tight.plan.limits.budget_bytes or 0)
    assert not tight.plan.certificate.covers.paging
    assert tight.plan.certificate.covers.in_order


def test_what_needs_more_room_is_refused_with_what_to_try(options: dict[str, Any]) -> None:
    options |= {"recompute": False, "split": False}
    result = rewritten(options, device=device(2**40))
    needed = page_file_bytes(result.graph, result.plan.steps)
    message = rf"page file of {needed:,} bytes.*holds {BLOCK_BYTES:,} bytes.*give at least .* or storage with more room"
    with pytest.raises(PageFileError, match=message) as refused:
        rewritten(options, device=device(BLOCK_BYTES))
    assert PageFileError.exit_code == 3
    options["activation_budget"] = refused.value.smallest_budget_bytes
    fits = rewritten(options, device=device(BLOCK_BYTES))
    assert page_file_bytes(fits.graph, fits.plan.steps) <= BLOCK_BYTES


@pytest.mark.deep
def test_gradients_in_parts_are_tried_where_there_is_no_room_for_pages(model_path: Callable[..., Path]) -> None:
    result = poet_onnx.rewrite(
        model_path("vgg16"), device=device(BLOCK_BYTES), activation_budget="90%", recompute=False
    )
    assert result.plan.part_bytes is not None
    assert page_file_bytes(result.graph, result.plan.steps) <= BLOCK_BYTES


def test_a_plan_made_for_more_room_is_refused(options: dict[str, Any], tmp_path: Path) -> None:
    result = rewritten(options, device=device(2**40))
    file = tmp_path / "plan.json"
    file.write_text(to_json(result.plan, result.graph))
    with pytest.raises(PageFileError, match="plan again for that storage"):
        poet_onnx.rewrite(options["model_or_path"], device=device(BLOCK_BYTES), plan=file)


def test_planning_again_ends(model_path: Callable[..., Path]) -> None:
    problem = real_problem(model_path("mlp-mse"), "a72")
    ordered = schedule(problem)
    budgets = []

    def attempt(problem: ScheduleProblem, limits: Limits) -> FittingPlan:
        budgets.append(limits.budget_bytes)
        return FittingPlan(ordered, cast(LaidOutPlan, None))

    _closest(problem, Limits(ordered.prediction.transient_peak_bytes), attempt, lambda _: 8.0)
    assert len(budgets) == ATTEMPTS


def test_planning_again_takes_as_long_once_more_and_quick_plans_after_that() -> None:
    found = [_time_limit(8.0, spent_seconds) for spent_seconds in (0.0, 5.0, 7.0, 12.0, 15.0, 16.0, 60.0)]
    assert found == [8.0, 3.0, 2.0, 2.0, 2.0, 0.0, 0.0]
