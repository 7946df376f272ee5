"""What training_curves.py takes for agreement; tests/training/test_stock.py shows that runtimes do agree."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
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


def test_losses_are_written(tmp_path: Path) -> None:
    training_curves.write(tmp_path / "curve.csv", "command", dict.fromkeys(WAYS, FALLING))
    with (tmp_path / "curve.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    assert rows[:2] == [["# command"], ["step", *WAYS]]
    assert [row[0] for row in rows[2:]] == [str(step) for step in range(1, 101)]
    assert [float(row[3]) for row in rows[2:]] == pytest.approx(FALLING, rel=1e-8)


def test_curves_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra [plots] is not installed")
    found = dict.fromkeys(("training build, as generated", "stock runtime, rewritten"), FALLING)
    training_curves.draw(tmp_path / "curve.svg", training_curves.TASKS[0], found)
    assert "<svg" in (tmp_path / "curve.svg").read_text(encoding="utf-8")
