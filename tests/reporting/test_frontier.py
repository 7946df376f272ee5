"""Plans of a comparison join the page where they are of its model and device."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from compared_cells import result

from poet_onnx import InputError
from poet_onnx.comparison.table import csv_text
from poet_onnx.reporting.frontier import frontier_section, read_frontier


@pytest.fixture
def path(tmp_path: Path) -> Path:
    cells = [
        result("dtr", 2000, 2.8),
        result("poet", 1000, 2.4, 2.3),
        result("poet", 2000, 2.2, 2.2),
        result("dtr", 1000, None),
        result("poet", 3000, 2.0, 2.0, device="tx2"),
        result("poet", 3000, 2.0, 2.0, deadline="1.1x", deadline_seconds=1.1),
        result("poet", 3000, 2.0, 2.0, original_peak_bytes=4001),
    ]
    path = tmp_path / "compare.csv"
    path.write_text(csv_text(cells))
    return path


def test_plans_of_the_model_and_device_are_read_ours_first(path: Path) -> None:
    points = read_frontier(path, "a72", 4000)
    assert [(point.method, point.budget_bytes) for point in points] == [("poet", 2000), ("poet", 1000), ("dtr", 2000)]
    assert points[1].overhead == pytest.approx(0.2)
    assert points[1].gap == pytest.approx(1 - 2.3 / 2.4)
    assert points[2].gap is None


def test_the_section_has_a_row_for_each_and_a_bar_for_each_that_is_proven(path: Path) -> None:
    text = frontier_section(read_frontier(path, "a72", 4000), 1500)
    root = ElementTree.fromstring(text)
    rows = [["".join(cell.itertext()) for cell in row] for row in root.iter("tr")][1:]
    assert rows[1] == ["poet", "1000 B", "992 B", "2.4 J", "20.00 %", "at most 4.17 %", "1.5 s"]
    assert rows[2][5] == "not known"
    assert len(re.findall('class="bound"', text)) == 2
    assert len(re.findall("<circle", text)) == 3
    assert frontier_section((), None) == ""


def test_what_is_no_comparison_of_the_model_is_refused(path: Path, tmp_path: Path) -> None:
    for device, peak_bytes in (("m4", 4000), ("a72", 5)):
        with pytest.raises(InputError, match="has no plan for"):
            read_frontier(path, device, peak_bytes)
    path.write_text(path.read_text().replace("2.4", "much"))
    with pytest.raises(InputError, match="not what `poet-onnx compare` writes"):
        read_frontier(path, "a72", 4000)
    with pytest.raises(InputError, match="cannot be read"):
        read_frontier(tmp_path / "absent.csv", "a72", 4000)
