"""The pictures and the tables of a comparison, of made-up cells."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poet_onnx.comparison.cell import Cell, CellResult, Outcome
from poet_onnx.comparison.plots import draw_all, pareto_front
from poet_onnx.comparison.table import budgets_of_ours_alone, markdown_text

FIGURES = st.tuples(*[st.integers(1, 6)] * 3)


def filled(
    method: str = "poet",
    budget: int = 50,
    figures: tuple[int, int, int] | None = (1, 1, 1),
    deadline: float | None = None,
) -> CellResult:
    """Return a cell with a peak, a time and an energy, or without a plan."""
    cell = Cell(
        model="net",
        device="a72",
        method=method,
        budget=f"{budget}%",
        budget_bytes=budget << 20,
        deadline="none" if deadline is None else f"{deadline}x",
        deadline_seconds=deadline,
        order="best",
        part_bytes=None,
        time_limit_seconds=1.0,
        base_joules=1.0,
        base_seconds=1.0,
        original_peak_bytes=1 << 30,
        ordered_peak_bytes=100 << 20,
        fingerprint="",
    )
    if figures is None:
        return CellResult(cell=cell, outcome=Outcome(status="no_plan", message="None."))
    peak, seconds, joules = figures
    outcome = Outcome(
        status="feasible", transient_peak_bytes=peak << 20, seconds=float(seconds), energy_joules=float(joules)
    )
    return CellResult(cell=cell, outcome=outcome)


@given(st.lists(FIGURES, max_size=12))
def test_the_front_is_what_nothing_beats(points: list[tuple[int, int, int]]) -> None:
    cells = [filled(figures=point) for point in points]
    front = pareto_front(cells)
    for cell, mine in zip(cells, points, strict=True):
        beaten = any(other != mine and all(map(int.__le__, other, mine)) for other in points)
        assert (cell in front) != beaten


def test_budgets_that_no_baseline_reaches_are_marked() -> None:
    cells = [filled("poet", 50), filled("poet", 20), filled("dtr", 50), filled("dtr", 20, None)]
    assert budgets_of_ours_alone(cells) == ["20%"]
    assert "No baseline has a plan for 20%." in markdown_text(cells)
    assert budgets_of_ours_alone([filled("poet", 20)]) == []


def test_the_table_marks_the_least_energy() -> None:
    text = markdown_text([filled("poet", figures=(1, 1, 1)), filled("dtr", figures=(1, 1, 2)), filled("x", 50, None)])
    assert "| poet | **0.00 %** |" in text
    assert "| dtr | 100.00 % |" in text
    assert "| x | no plan |" in text


@pytest.mark.deep
def test_pictures_are_the_same_every_time(tmp_path: Path) -> None:
    cells = [filled(name, budget, (budget, 1, 2), time) for name in "ab" for budget in (20, 50) for time in (1.0, 2.0)]
    cells += [filled("c", 50, None, 1.0)]
    files = []
    for folder in (tmp_path / "one", tmp_path / "two"):
        folder.mkdir()
        files.append(draw_all(cells, folder))
    names = [{path.name for path in each} for each in files]
    assert names == [{"energy.svg", "overhead.svg", "pareto.svg", "deadlines.svg"}] * 2
    for one, two in zip(*files, strict=True):
        assert one.read_bytes() == two.read_bytes()
        texts = {
            "".join(node.itertext()).strip() for node in ElementTree.parse(one).iter() if node.tag.endswith("text")
        }
        assert {"a", "b"} <= texts
        assert "c" not in texts


def test_without_a_plan_there_is_no_picture(tmp_path: Path) -> None:
    assert draw_all([filled(figures=None)], tmp_path) == ()
    assert list(tmp_path.iterdir()) == []


def test_overheads_grow_with_energy() -> None:
    overheads = [filled(figures=(1, 1, joules)).overhead for joules in range(1, 5)]
    assert all(one is not None and other is not None and one < other for one, other in pairwise(overheads))
    assert math.isclose(overheads[0] or 0.0, 0.0)
