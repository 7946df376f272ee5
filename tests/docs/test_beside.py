"""The page beside other tools: its blocks run, and its table counts their lines."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from fenced_blocks import Fenced, fenced_blocks
from folders import ROOT

PAGE = ROOT / "docs" / "beside.md"
EACH = """import os, sys
for folder, text in zip(sys.argv[1::2], sys.argv[2::2]):
    os.chdir(folder)
    exec(compile(text, folder, "exec"), {"__name__": "__main__"})
"""
"""Runs programs, each in its folder."""

WAYS = ("here", "torch", "keras", "trainer")


def blocks(*marks: str) -> list[Fenced]:
    """Return the blocks of some ways, in the order of the page."""
    return [block for block in fenced_blocks(PAGE) if block.mark in marks]


def lines(block: Fenced) -> int:
    """Return how many lines of a block hold code that is no import."""
    imported = {
        line
        for node in ast.walk(ast.parse(block.text))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for line in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    numbered = enumerate(block.text.splitlines(), 1)
    return sum(bool(text.strip()) for number, text in numbered if number not in imported)


def test_the_table_counts_the_lines() -> None:
    table = re.findall(r"^\| \[(.*)\]\(#.*\) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", PAGE.read_text("utf-8"), re.M)
    counted = {(block.section, block.mark): lines(block) for block in blocks(*WAYS)}
    assert {(task, way): int(count) for task, *row in table for way, count in zip(WAYS, row, strict=True)} == counted
    assert len(table) == 6


@pytest.mark.deep
@pytest.mark.parametrize("ways", [("here", "torch"), ("trainer",)])
def test_the_blocks_run(ways: tuple[str, ...], tmp_path: Path) -> None:
    """Run each way in a folder of its own; one process imports torch for all of them."""
    programs: list[str] = []
    for way in ways:
        (tmp_path / way).mkdir()
        programs += str(tmp_path / way), "\n".join(block.text for block in blocks("all", way))
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", EACH, *programs], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    for way in ways:
        assert len((tmp_path / way / "log.csv").read_text("utf-8").splitlines()) > 3
        batch = onnx.load(tmp_path / way / "trained.onnx").graph.input[0].type.tensor_type.shape.dim[0]
        assert batch.dim_param
