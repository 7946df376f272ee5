"""The work of the command that compares methods."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rich.table import Table

from poet_onnx.cli import terminal
from poet_onnx.cli.tables import plain_table
from poet_onnx.comparison.compare import Comparison
from poet_onnx.comparison.compare import compare as compare_methods
from poet_onnx.comparison.running import SweepProgress
from poet_onnx.files.atomic import write_text
from poet_onnx.reporting.compared import compared_page
from poet_onnx.reporting.figures import bytes_text, percent_text, scaled_text

_BAR_LETTERS = 30


def compare(
    *,
    model: Path,
    output: Path,
    as_json: bool,
    **options: Any,
) -> None:
    """Plan the training graph MODEL with every method, and write the results to the folder OUTPUT."""
    with terminal.ProgressLine(f"ordering {model}") as line:
        found = compare_methods(
            model,
            output=output,
            progress=lambda progress: line.say(_bar(progress)),
            **options,
        )
    page = output / "compare.html"
    files = [*found.save(output, command=["poet-onnx", *sys.argv[1:]]), page]
    write_text(page, compared_page([result.row() for result in found.results]))
    if as_json:
        terminal.show_json(json.dumps([result.row() for result in found.results], indent=2))
    else:
        terminal.show(_table(found))
        terminal.show(f"wrote {', '.join(map(str, files))}")
    if not found.is_whole:
        terminal.show("not all cells are filled; the same command goes on from here", stderr=True)
        raise KeyboardInterrupt


def _bar(progress: SweepProgress) -> str:
    full = _BAR_LETTERS * progress.done // progress.cells
    bar = "█" * full + "░" * (_BAR_LETTERS - full)
    latest = f"{progress.latest.cell}: {progress.latest.outcome.status}"
    return f"{bar} {progress.done} of {progress.cells} ({latest}; Ctrl-C keeps what there is)"


def _table(found: Comparison) -> Table:
    """Return a row for each cell."""
    rows = []
    for result in found.results:
        cell, outcome = result.cell, result.outcome
        limits = cell.budget if cell.deadline_seconds is None else f"{cell.budget}, {cell.deadline}"
        figures = [""] * 5
        if result.overhead is not None:
            figures = [
                percent_text(max(0.0, result.overhead)),
                scaled_text(outcome.seconds or 0.0, "s"),
                bytes_text(outcome.transient_peak_bytes or 0),
                bytes_text(outcome.page_out_bytes or 0),
                str(outcome.recomputed_nodes),
            ]
        rows.append([cell.method, cell.device, limits, outcome.status, *figures, f"{outcome.solve_seconds:.1f} s"])
    headings = ["method", "device", "limits", "status", "energy +", "step", "peak", "written", "again", "solved in"]
    return plain_table(headings, rows)
