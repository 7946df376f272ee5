"""Bars: what they say in a wide, a narrow, a file's and an ASCII terminal."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from poet_onnx.cli.bars import Bars

KIB = 1024


def lines(bars: Bars, width: int, encoding: str = "utf-8") -> list[str]:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    Console(file=file, width=width, markup=False, highlight=False).print(bars)
    file.seek(0)
    return file.read().splitlines()


def test_bars_are_as_long_as_their_bytes_and_the_budget_crosses_them() -> None:
    rows = [("given", 80 * KIB), ("rewritten", 20 * KIB), ("tiny", 1), ("nothing", 0)]
    heading, given, rewritten, tiny, nothing = lines(Bars("RAM", rows, 40 * KIB), 120)
    assert heading == "RAM; the budget │ is 40.00 KiB"
    assert {line.index("│") for line in (given, rewritten, tiny, nothing)} == {given.index("█") + 20}
    assert given.count("█") == 39
    assert rewritten.count("█") == 10
    assert "▏" in tiny
    assert not set("▏█") & set(nothing)
    assert [line.split()[-2] for line in (given, rewritten, tiny, nothing)] == ["80.00", "20.00", "1", "0"]


def test_a_budget_above_all_bars_is_beside_them_and_one_far_above_is_only_said() -> None:
    rows = [("a", 10 * KIB), ("b", 5 * KIB)]
    _, longest, _ = lines(Bars("RAM", rows, 16 * KIB), 120)
    assert longest.count("█") == 25
    assert longest.rstrip().endswith("│  10.00 KiB")
    heading, longest, _ = lines(Bars("RAM", rows, 100 * KIB, "that of a72"), 120)
    assert heading == "RAM; that of a72 is 100.00 KiB"
    assert (longest.count("█"), longest.count("│")) == (40, 0)


@pytest.mark.parametrize("width", [20, 30, 40, 80, 120])
@pytest.mark.parametrize(("encoding", "block"), [("utf-8", "█"), ("ascii", "#")])
def test_nothing_is_wider_than_the_terminal_and_every_figure_stays(width: int, encoding: str, block: str) -> None:
    wide = "短い名前" if encoding == "utf-8" else "short"
    rows = [("a/very/long/name/of/a/tensor/that/ends/in/weight", 3 * KIB), (wide, 1000)]
    shown = lines(Bars("RAM", rows, 2 * KIB), width, encoding)[-2:]
    assert [line.endswith(end) for line, end in zip(shown, ("3.00 KiB", "1000 B"), strict=True)] == [True, True]
    assert max(map(cell_len, shown)) <= width
    assert (block in shown[0]) == (width >= 40)
    assert "weight" in shown[0]


def test_names_from_a_file_command_no_terminal() -> None:
    assert "\x1b" not in "".join(lines(Bars("RAM", [("\x1b[2J", 1)]), 120))
