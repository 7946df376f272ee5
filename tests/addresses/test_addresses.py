"""Addresses of whole plans on real training graphs, and what is said of wrong ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from random_plans import file_order_plan, random_plan
from real_problems import prepare

from poet_onnx.addresses import LARGE_BYTES, PAGE_BYTES, SLOT_BYTES, false_addresses, plan_blocks, plan_region
from poet_onnx.addresses.region import OUTSIDE, Region
from poet_onnx.plan import Action
from poet_onnx.plan.problem import ScheduleProblem
from poet_onnx.simulate.blocks import BlockKind

MODELS = ["densenet", "transformer", "resnet18", "unet"]


def areas(region: Region) -> list[tuple[int, int, int, int]]:
    """Return (born, dies, start, end) of all that is in a region."""
    found = []
    for index, step in enumerate(region.steps):
        found.append((index, index, step.workspace_offset, step.workspace_offset + step.workspace_bytes))
        found += [(index, b.dies, b.offset, b.offset + b.size_bytes) for b in step.blocks if b.offset != OUTSIDE]
    return found


@pytest.fixture(params=MODELS)
def problem(request: pytest.FixtureRequest, model_path: Callable[..., Path]) -> ScheduleProblem:
    return prepare(model_path(request.param))[1]


@pytest.mark.parametrize("target", ["training", "stock"])
@pytest.mark.parametrize("seed", range(2))
def test_nothing_that_lives_at_once_shares_a_byte(problem: ScheduleProblem, seed: int, target: str) -> None:
    steps = random_plan(problem, seed, recomputes=12, transfers=10).steps
    region = plan_region(problem, steps, target)
    found = areas(region)
    assert max(end for _, _, _, end in found) <= region.region_bytes
    for place, (born, dies, start, end) in enumerate(found):
        for other_born, other_dies, other_start, other_end in found[:place]:
            if born <= other_dies and other_born <= dies:
                assert end <= other_start or other_end <= start
    assert list(false_addresses(problem, steps, region)) == []


@pytest.mark.parametrize("seed", range(2))
def test_every_block_of_the_plan_has_an_address(problem: ScheduleProblem, seed: int) -> None:
    steps = random_plan(problem, seed, recomputes=12, transfers=10).steps
    region = plan_region(problem, steps, "training")
    blocks = plan_blocks(problem, steps)
    paged = {step.subject for step in steps if step.action is Action.PAGE_OUT_START}
    for index, step in enumerate(region.steps):
        born = [block for block in blocks if block.born == index]
        listed = [block for block in born if block.kind is not BlockKind.WORKSPACE]
        assert [(b.size_bytes, b.dies) for b in step.blocks] == [(b.size_bytes, b.dies) for b in listed]
        assert step.workspace_bytes >= sum(block.size_bytes for block in born if block.kind is BlockKind.WORKSPACE)
        for block, address in zip(listed, step.blocks, strict=True):
            assert (address.offset == OUTSIDE) == block.leaves
            assert block.leaves or address.offset % SLOT_BYTES == 0
            if block.kind is BlockKind.VALUE and block.name in paged and block.size_bytes >= LARGE_BYTES:
                assert block.leaves or address.offset % PAGE_BYTES == 0


def test_the_order_of_the_file_needs_hardly_more_than_its_peak(problem: ScheduleProblem) -> None:
    plan = file_order_plan(problem)
    region = plan_region(problem, plan.steps, "training")
    blocks = [block for block in plan_blocks(problem, plan.steps) if not block.leaves]
    peak = max(
        sum(block.size_bytes for block in blocks if block.born <= index <= block.dies)
        for index in range(len(plan.steps))
    )
    most_at_once = max(sum(b.born <= index <= b.dies for b in blocks) for index in range(len(plan.steps)))
    assert peak <= region.region_bytes <= 1.01 * (peak + SLOT_BYTES * most_at_once) + 512


def test_wrong_addresses_are_named(model_path: Callable[..., Path]) -> None:
    _, problem = prepare(model_path("mlp-mse"))
    steps = file_order_plan(problem).steps
    region = plan_region(problem, steps, "training")

    def said(changed: Region) -> str:
        return " ".join(false_addresses(problem, steps, changed))

    assert said(region) == ""
    assert "for 1 steps, but its plan has" in said(replace(region, steps=region.steps[:1]))
    assert "beyond the region" in said(replace(region, region_bytes=64))
    index, step = next((i, step) for i, step in enumerate(region.steps) if any(b.offset >= 0 for b in step.blocks))
    others = [*region.steps[:index], step._replace(blocks=step.blocks[1:]), *region.steps[index + 1 :]]
    assert f"other blocks in step {index}" in said(replace(region, steps=tuple(others)))
    low = tuple(s._replace(blocks=tuple(b._replace(offset=min(b.offset, 0)) for b in s.blocks)) for s in region.steps)
    assert "two blocks at 0 bytes" in said(replace(region, steps=low))
