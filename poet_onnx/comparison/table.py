"""The cells of a comparison as CSV for programs and as Markdown for people."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Iterator, Sequence

from poet_onnx.choices import OURS
from poet_onnx.comparison.cell import CellResult

COLUMNS = (
    "model",
    "method",
    "device",
    "budget",
    "budget_bytes",
    "budget_kind",
    "deadline_seconds",
    "part_bytes",
    "order",
    "status",
    "energy_joules",
    "bound_joules",
    "seconds",
    "transient_peak_bytes",
    "page_out_bytes",
    "page_in_bytes",
    "recomputed_nodes",
    "recomputed_flops",
    "closest_peak_bytes",
    "closest_seconds",
    "solve_seconds",
    "base_joules",
    "base_seconds",
    "original_peak_bytes",
    "ordered_peak_bytes",
    "time_limit_seconds",
    "message",
)
"""Columns of compare.csv; a cell is empty where there is no figure."""

_SAME = 1e-9
_ENDINGS = {"infeasible": "none exists", "no_plan": "no plan", "failed": "failed", "interrupted": "interrupted"}


def csv_text(results: Sequence[CellResult]) -> str:
    """Return the cells as CSV, the names of the columns first, for whatever reads tables."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for result in results:
        row = result.row()
        writer.writerow([_field(row[column]) for column in COLUMNS])
    return file.getvalue()


def _field(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.9g}"
    return "" if value is None else str(value)


def markdown_text(results: Sequence[CellResult], command: Sequence[str] = ()) -> str:
    """Return a table for each model, device and deadline: methods by budgets, the energy above computing once.

    Args:
        results: the cells.
        command: that made them, if it is to be told.
    """
    parts = [f"```sh\n{shlex.join(command)}\n```\n"] if command else []
    for (model, device, deadline), cells in groups(results).items():
        first = cells[0].cell
        until = "" if first.deadline_seconds is None else f", within {first.deadline_seconds:.4g} s ({deadline})"
        parts.append(f"## {model} on {device}{until}\n")
        parts.append(
            f"Computing once takes {first.base_joules:.4g} J and {first.base_seconds:.4g} s. The transient peak is "
            f"{first.original_peak_bytes:,} bytes in the order of the file and {first.ordered_peak_bytes:,} after "
            "ordering. Every method gets that order.\n"
        )
        parts.append("\n".join(_table(cells)) + "\n")
        only = budgets_of_ours_alone(cells)
        if only:
            parts.append(f"No baseline has a plan for {', '.join(only)}.\n")
    notes = [f"- {result.cell}: {result.outcome.message}" for result in results if result.outcome.message]
    if notes:
        parts.append("## Cells without a plan\n\n" + "\n".join(notes) + "\n")
    return "# Comparison\n\n" + "\n".join(parts)


def groups(results: Sequence[CellResult]) -> dict[tuple[str, str, str], list[CellResult]]:
    """Return the cells by model, device and deadline."""
    found: dict[tuple[str, str, str], list[CellResult]] = {}
    for result in results:
        cell = result.cell
        found.setdefault((cell.model, cell.device, cell.deadline), []).append(result)
    return found


def budgets_of_ours_alone(cells: Sequence[CellResult]) -> list[str]:
    """Return the budgets for which only our methods have a plan; none where no baseline was tried."""
    ours = {result.cell.budget for result in cells if result.planned and is_ours(result)}
    tried = {result.cell.budget for result in cells if not is_ours(result)}
    theirs = {result.cell.budget for result in cells if result.planned and not is_ours(result)}
    return [
        budget for budget in dict.fromkeys(result.cell.budget for result in cells) if budget in ours & tried - theirs
    ]


def is_ours(result: CellResult) -> bool:
    """Return whether a cell is of our method or a part of it."""
    return result.cell.method in OURS


def _table(cells: Sequence[CellResult]) -> Iterator[str]:
    """Yield the rows of a group: energy above computing once in percent, the least of each budget in bold."""
    budgets = {result.cell.budget: result.cell.budget_bytes for result in cells}
    least = {
        budget: min((r.overhead for r in cells if r.cell.budget == budget and r.overhead is not None), default=0.0)
        for budget in budgets
    }
    yield "| method | " + " | ".join(f"{budget} ({size:,} B)" for budget, size in budgets.items()) + " |"
    yield "|---" * (1 + len(budgets)) + "|"
    for method in dict.fromkeys(result.cell.method for result in cells):
        own = {result.cell.budget: result for result in cells if result.cell.method == method}
        words = [_words(own[budget], least[budget]) if budget in own else "" for budget in budgets]
        yield f"| {method} | " + " | ".join(words) + " |"


def _words(result: CellResult, least: float) -> str:
    if result.overhead is None:
        return _ENDINGS[result.outcome.status]
    text = f"{max(0.0, 100 * result.overhead):.2f} %"
    return f"**{text}**" if result.overhead <= least + _SAME else text
