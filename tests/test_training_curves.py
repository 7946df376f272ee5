"""What scripts/training_curves.py takes for agreement; tests/test_training_stock.py shows that runtimes do agree."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))
import training_curves

WAYS = ("generated", "rewritten", "lowered", "lowered, rewritten")
FALLING = [2.0 - 0.01 * step for step in range(100)]
OTHER = [*FALLING[:-1], FALLING[-1] * (1 + 2**-23)]
APART = [1.002 * loss for loss in FALLING]


def judge(*losses: list[float]) -> list[str]:
    return training_curves.judge(dict(zip(WAYS, losses, strict=True)))


def test_curves_that_agree_and_fall_pass() -> None:
    near = [loss * 1.0009 for loss in FALLING]
    assert judge(FALLING, FALLING, near, near) == []


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        ((FALLING, OTHER, FALLING, FALLING), "on the training build"),
        ((FALLING, FALLING, FALLING, OTHER), "on the stock runtime"),
        (
            (FALLING, FALLING, APART, APART),
            "differ by 2.0e-03",
        ),
        (([2.0] * 100,) * 4, "does not fall"),
    ],
    ids=["training bits", "stock bits", "runtimes", "flat"],
)
def test_curves_that_do_not_are_named(losses: tuple[list[float], ...], message: str) -> None:
    (problem,) = judge(*losses)
    assert message in problem


@pytest.mark.parametrize("task", training_curves.TASKS, ids=lambda task: task.name)
def test_data_are_the_same_every_time(task: training_curves.Task) -> None:
    streams = [task.batches(task.batch) for _ in range(2)]
    for _ in range(3):
        first, second = (next(stream) for stream in streams)
        assert first.keys() == second.keys()
        assert all(first[name].tobytes() == second[name].tobytes() for name in first)


def test_results_are_written_and_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    names = ["training build, as generated", "training build, rewritten", "lowered", "stock runtime, rewritten"]
    found = dict.fromkeys(names, FALLING)
    training_curves.write(tmp_path / "curve.csv", "command", found)
    training_curves.draw(tmp_path / "curve.svg", training_curves.TASKS[0], found)
    with (tmp_path / "curve.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    assert rows[:2] == [["# command"], ["step", *found]]
    assert len(rows) == 102
    assert "<svg" in (tmp_path / "curve.svg").read_text(encoding="utf-8")
