"""A comparison as a page: what stands on it is what the cells have, and it loads nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from cli_runs import Cli
from compared_cells import result

from poet_onnx.comparison.cell import CellResult
from poet_onnx.reporting.compared import compared_page
from poet_onnx.reporting.figures import bytes_text, percent_text, scaled_text


def cells() -> list[CellResult]:
    return [
        result("dtr", 2000, 2.8),
        result("poet", 1000, 2.4, 2.3),
        result("poet", 2000, 2.2, 2.2),
        result("dtr", 1000, None),
        result("poet", 3000, 2.0, 2.0, device="tx2"),
        result("poet", 3000, 2.1, 2.0, deadline="1.1x", deadline_seconds=1.1, model="<net> & co"),
    ]


def rows_of(page: str) -> list[list[list[str]]]:
    """Return the texts of the rows of each section's table."""
    sections = re.findall(r"<section>.*?</section>", page, re.DOTALL)
    return [
        [["".join(cell.itertext()) for cell in row] for row in ElementTree.fromstring(section).iter("tr")][1:]
        for section in sections
    ]


def test_every_cell_has_its_figures_on_the_page() -> None:
    found = [result.row() for result in cells()]
    page = compared_page(found)
    shown = {(row[0], row[1], row[3]): row for rows in rows_of(page) for row in rows}
    assert len(shown) == len(found)
    for row in found:
        budget = f"{row['budget']} ({bytes_text(row['budget_bytes'])})"
        energy = "" if row["energy_joules"] is None else scaled_text(row["energy_joules"], "J")
        own = shown[row["method"], budget, energy]
        if row["energy_joules"] is None:
            assert own[2:] == ["no plan", ""]
            continue
        assert own[4] == percent_text(row["energy_joules"] / row["base_joules"] - 1)
        assert own[6:8] == [scaled_text(row["seconds"], "s"), bytes_text(row["transient_peak_bytes"])]
    assert "5 of 6 cells have a plan, by 2 methods." in page
    assert "&lt;net&gt; &amp; co on a72, deadline 1.1x" in page
    assert "<net>" not in page


def test_every_plan_is_a_point_of_each_drawing_and_a_lower_figure_is_lower() -> None:
    page = compared_page([result.row() for result in cells()])
    drawings = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(drawings) == 3 * 3
    assert sum(drawing.count("<circle") for drawing in drawings) == 3 * 5
    energy = next(each for each in drawings if "Energy" in each and each.count("<circle") == 3)
    heights = {title: float(place) for place, title in re.findall(r'cy="([\d.]+)"[^>]*><title>(\w+, \d+): ', energy)}
    assert heights["poet, 2000"] > heights["poet, 1000"] > heights["dtr, 2000"], "the y of a drawing grows downwards"


def test_the_page_loads_nothing() -> None:
    page = compared_page([result.row() for result in cells()])
    assert "<script" not in page
    assert not re.search(r"https?://|url\(|@import|\ssrc=|\shref=", page)
    assert "default-src 'none'" in page
    assert compared_page([]).count("<section") == 0


@pytest.mark.deep
def test_the_command_writes_the_page(cli: Cli, model_path: Any, tmp_path: Path) -> None:
    asked = ("--device", "a72", "--budgets", "90%", "--methods", "poet,chen-sqrt", "--time-limit", "5")
    done = cli("compare", model_path("mlp-mse"), *asked, "-o", tmp_path / "out")
    assert done.code == 0, done
    assert "compare.html" in done.out
    ((first, second),) = rows_of((tmp_path / "out" / "compare.html").read_text(encoding="utf-8"))
    assert {first[0], second[0]} == {"poet", "chen-sqrt"}
