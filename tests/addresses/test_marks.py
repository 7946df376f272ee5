"""Marks: where a run tells its step, and that with them nothing of a step comes from malloc."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir
import pytest
from folders import SUPPORT
from stock_environment import NEEDS_STOCK, STOCK_PYTHON
from training_batches import train

import poet_onnx
from poet_onnx.addresses.marks import marks
from poet_onnx.addresses.region import OUTSIDE, Address, StepAddresses


def step(*blocks: Address, workspace: int = 0) -> StepAddresses:
    return StepAddresses(0, workspace, blocks)


def block(size_bytes: int, dies: int) -> Address:
    return Address(0, size_bytes, dies)


def leaving(size_bytes: int, dies: int) -> Address:
    return Address(OUTSIDE, size_bytes, dies)


MARKED = {
    "nothing but planned blocks": ([step(block(64, 2)), step(block(64, 2)), step(block(8, 2))], {}),
    "a workspace that has room for the next block": ([step(block(64, 1), workspace=64), step(block(64, 1))], {1: 1}),
    "a workspace that is smaller": ([step(block(64, 1), workspace=32), step(block(64, 1))], {}),
    "another workspace behind it": ([step(workspace=32), step(block(64, 1), workspace=8)], {1: 1, 2: 2}),
    "a workspace at the end": ([step(block(64, 0), workspace=64)], {1: 1}),
    "a block that dies meanwhile": ([step(block(8, 1)), step(block(64, 2), workspace=64), step(block(64, 2))], {}),
    "a block that is born meanwhile": ([step(block(64, 0), workspace=64), step(block(64, 1))], {1: 1}),
    "an output that may be bound": ([step(leaving(4, 2)), step(block(4, 2)), step(block(4, 2))], {1: 1}),
    "steps that ask for nothing": ([step(workspace=64), step(), step(), step(block(8, 3))], {1: 3}),
    "one that may ask for nothing": ([step(workspace=8), step(leaving(64, 2)), step(block(8, 2))], {1: 1, 2: 2}),
    "one that dies where nothing is asked for": ([step(block(8, 1), workspace=8), step(), step(block(64, 2))], {1: 2}),
}


@pytest.mark.parametrize("case", MARKED)
def test_steps_are_told_where_requests_do_not_tell(case: str) -> None:
    steps, expected = MARKED[case]
    assert marks(steps) == expected


@pytest.mark.parametrize(
    ("target", "threads", "names"),
    [
        pytest.param("training", 1, ["mobilenet"], marks=pytest.mark.deep),
        pytest.param("stock", 2, ["transformer"], marks=NEEDS_STOCK),
        pytest.param("training", 1, ["transformer"], marks=pytest.mark.deep),
        pytest.param("stock", 2, ["mobilenet"], marks=[pytest.mark.deep, NEEDS_STOCK]),
        pytest.param("training", 2, ["gpt", "vit", "densenet", "bert-2"], marks=pytest.mark.deep),
        pytest.param("stock", 1, ["gpt", "vit", "resnet18", "bert-2"], marks=[pytest.mark.deep, NEEDS_STOCK]),
    ],
)
def test_nothing_of_a_step_comes_from_malloc(
    model_path: Callable[..., Path], tmp_path: Path, target: str, threads: int, names: list[str]
) -> None:
    options = {"device": "tx2", "activation_budget": "60%", "gap": 0.5, "time_limit_seconds": 5}
    paths = []
    for name in names:
        result = poet_onnx.rewrite(model_path(name), target=target, threads=threads, **options)
        assert any(node.op_type == "Mark" for node in result.model.graph)
        paths.append(str(tmp_path / f"{name}.onnx"))
        result.save(paths[-1])
    python = STOCK_PYTHON if target == "stock" else sys.executable
    command = [python, str(SUPPORT / "arena_runs.py"), str(threads), *paths]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_a_session_says_once_what_its_steps_take_outside_of_the_plan(
    model_path: Callable[..., Path], tmp_path: Path
) -> None:
    path = model_path("mlp-mse")
    result = poet_onnx.rewrite(path, device="a72", target="training")
    arena = result.model.graph[0]
    result.save(tmp_path / "right.onnx")
    layout = list(arena.attributes["layout"].as_ints())
    at = 0
    while at < len(layout):  # every block at the start of the region
        count = layout[at + 2]
        for index in range(count):
            layout[at + 3 + 3 * index] = min(layout[at + 3 + 3 * index], 0)
        at += 3 + 3 * count
    arena.attributes["layout"] = ir.AttrInt64s("layout", layout)
    result.save(tmp_path / "wrong.onnx")
    checkpoint = path.with_name("checkpoint")
    right, wrong = (poet_onnx.TrainingSession(tmp_path / f"{name}.onnx", checkpoint) for name in ("right", "wrong"))
    losses = train(right, 3)
    with pytest.warns(poet_onnx.PoetWarning, match=r"took \d+ bytes outside of the plan's memory.*rewrite") as warned:
        assert train(wrong, 3) == losses
    assert len(warned) == 1
    assert warned[0].filename.endswith("training_batches.py")
