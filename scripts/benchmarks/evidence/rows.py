"""The rows of evidence.py's CSV files, and Markdown tables of them."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from poet_onnx.choices import OURS, POET

Row: TypeAlias = dict[str, str]
Case: TypeAlias = tuple[str, str, str, str]
"""Model, device, budget and deadline."""


def read(path: Path) -> list[Row]:
    """Return the rows of a CSV file."""
    return list(csv.DictReader(line for line in path.read_text(encoding="utf-8").splitlines() if line[:1] != "#"))


def read_fig3(folder: Path) -> list[Row]:
    """Return the rows of all models of Fig. 3."""
    return [row for path in sorted(folder.glob("fig3-*.csv")) for row in read(path)]


def cases(rows: Iterable[Row]) -> dict[Case, dict[str, Row]]:
    """Return the rows of each model, device, budget and deadline by method."""
    found: dict[Case, dict[str, Row]] = {}
    for row in rows:
        case = (row["model"], row["device"], row["budget"], row["deadline_seconds"])
        found.setdefault(case, {})[row["method"]] = row
    return found


def have(*rows: Row) -> bool:
    """Return whether all rows have a plan."""
    return all(row["energy_joules"] for row in rows)


def joules(row: Row) -> float:
    """Return the energy of a step, infinite where there is no plan."""
    return float(row["energy_joules"] or "inf")


def least(case: dict[str, Row], methods: Iterable[str]) -> tuple[float, str]:
    """Return the least energy of some methods, and whose it is; infinite where none has a plan."""
    return min(((joules(case[method]), method) for method in methods if method in case), default=(math.inf, ""))


def baselines(case: dict[str, Row]) -> list[str]:
    """Return the methods of a case that are not this product's."""
    return [method for method in case if method not in OURS]


def overhead(row: Row, field: str = "energy_joules") -> float:
    """Return the energy, or its bound, above that of computing once, in percent."""
    return max(0.0, 100 * (float(row[field]) / float(row["base_joules"]) - 1))


def lateness(row: Row) -> float:
    """Return by how much a step takes longer than computing once, in percent."""
    return 100 * (float(row["seconds"]) / float(row["base_seconds"]) - 1)


def deadline(row: Row) -> str:
    """Return the deadline in units of the time of computing once."""
    limit = row["deadline_seconds"]
    return f"{float(limit) / float(row['base_seconds']):.3g}x" if limit else "none"


def savings(every: Iterable[dict[str, Row]], methods: Sequence[str]) -> tuple[list[float], int]:
    """Return by how many percent POET takes less than the best of some methods, and how often it alone has a plan."""
    both = [(joules(case[POET]), least(case, methods)[0]) for case in every if have(case[POET])]
    saved = [100 * (1 - ours / theirs) for ours, theirs in both if theirs < math.inf]
    return saved, len(both) - len(saved)


def cheaper(every: Iterable[dict[str, Row]]) -> list[float]:
    """Return by how many percent a baseline takes less than POET, wherever one does."""
    return [-each for case in every for each in savings([case], baselines(case))[0] if each < -1e-7]


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Yield a Markdown table."""
    yield "| " + " | ".join(headings) + " |"
    yield "|---" * len(headings) + "|"
    for row in rows:
        yield "| " + " | ".join(map(str, row)) + " |"


def change(one: float, other: float) -> str:
    """Return by how many percent one figure differs from another."""
    return f"{100 * one / other - 100:+.1f} %"


def percents(values: Sequence[float]) -> str:
    """Return the range of some percentages."""
    if not values:
        return "no plan"
    low, high = (f"{round(each(values), 1) + 0.0:.1f}" for each in (min, max))  # no -0.0
    return f"{low} %" if low == high else f"{low} to {high} %"


def words(row: Row | None) -> str:
    """Return the energy of a cell above computing once."""
    if row is None:
        return ""
    return f"{overhead(row):.2f} %" if have(row) else "none"


def by_budget(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a table of methods by budgets: the energy above computing once."""
    methods = list(dict.fromkeys(row["method"] for row in rows))
    lines = [
        (model, device, budget, *(words(case.get(method)) for method in methods))
        for (model, device, budget, _), case in cases(rows).items()
    ]
    yield from table(("model", "device", "budget", *methods), lines)
