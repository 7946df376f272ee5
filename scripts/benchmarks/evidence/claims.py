#!/usr/bin/env python3
"""Hold the paper's claims against the CSV files of evidence.py; docs/evidence.md has what this prints.

python scripts/benchmarks/evidence/claims.py scripts/results/evidence
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from poet_onnx.choices import OURS

Row: TypeAlias = dict[str, str]

DTR = ("dtr", "dtr-eq", "dtr-local")
_GAP = 0.01
"""To which the energy of POET is proven, as it was asked."""


def read(path: Path) -> list[Row]:
    """Return the rows of a comparison; none where the file is missing."""
    if not path.exists():
        return []
    return list(csv.DictReader(line for line in path.read_text(encoding="utf-8").splitlines() if line[:1] != "#"))


def read_fig3(folder: Path) -> list[Row]:
    """Return the rows of all models."""
    return [row for path in sorted(folder.glob("fig3-*.csv")) for row in read(path)]


def joules(row: Row) -> float:
    """Return the energy of a step, infinite where there is no plan."""
    return float(row["energy_joules"] or "inf")


def overhead(row: Row) -> float:
    """Return the energy above that of computing once, in percent."""
    return max(0.0, 100 * (joules(row) / float(row["base_joules"]) - 1))


def cases(rows: Iterable[Row]) -> dict[tuple[str, str, str, str], dict[str, Row]]:
    """Return the rows of each model, device, budget and deadline by method."""
    found: dict[tuple[str, str, str, str], dict[str, Row]] = {}
    for row in rows:
        case = (row["model"], row["device"], row["budget"], row["deadline_seconds"])
        found.setdefault(case, {})[row["method"]] = row
    return found


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
    low, high = min(values), max(values)
    return f"{low:.1f} %" if f"{low:.1f}" == f"{high:.1f}" else f"{low:.1f} to {high:.1f} %"


def _least(case: dict[str, Row], methods: Iterable[str]) -> float:
    return min((joules(case[method]) for method in methods if method in case), default=float("inf"))


def least_energy(folder: Path) -> Iterator[str]:
    """Is POET's energy the least of all, everywhere? (Fig. 3)."""
    yield from table(
        ("model", "device", "cases", "with a plan of POET", "of these, no baseline has one", "a baseline spends less"),
        _least_rows(cases(read_fig3(folder))),
    )


def _least_rows(every: dict[tuple[str, str, str, str], dict[str, Row]]) -> Iterator[Sequence[object]]:
    for model, device in dict.fromkeys(key[:2] for key in every):
        own = [case for key, case in every.items() if key[:2] == (model, device) and "poet" in case]
        planned = [case for case in own if joules(case["poet"]) < float("inf")]
        baselines = [_least(case, set(case) - set(OURS)) for case in planned]
        alone = sum(least == float("inf") for least in baselines)
        less = sum(joules(case["poet"]) > least * (1 + 1e-9) for case, least in zip(planned, baselines, strict=True))
        yield model, device, len(own), len(planned), alone, less


def against_dtr(folder: Path) -> Iterator[str]:
    """How much less energy than DTR does POET take? (Fig. 3: up to 35 % on ResNet-18, TX2)."""
    every = cases(read_fig3(folder))
    rows = []
    for model, device in dict.fromkeys(key[:2] for key in every):
        own = [case for key, case in every.items() if key[:2] == (model, device)]
        both = [(joules(case["poet"]), _least(case, DTR)) for case in own if "poet" in case]
        saved = [100 * (1 - ours / theirs) for ours, theirs in both if ours < float("inf") and theirs < float("inf")]
        alone = sum(ours < float("inf") and theirs == float("inf") for ours, theirs in both)
        rows.append((model, device, percents(saved), alone))
    yield from table(("model", "device", "POET takes less by", "budgets that DTR has no plan for"), rows)


def overheads(folder: Path) -> Iterator[str]:
    """What do Capuchin and POET spend above computing once? (Fig. 5: 73 to 141 % and under 1 %)."""
    yield from _by_budget(read(folder / "fig5.csv"))


def deadlines(folder: Path) -> Iterator[str]:
    """What do recompute alone and paging alone spend above computing once? (Fig. 4: POET up to 40 % less energy)."""
    rows = read(folder / "fig4.csv")
    methods = list(dict.fromkeys(row["method"] for row in rows))
    lines = []
    for (model, device, budget, _), case in cases(rows).items():
        first = next(iter(case.values()))
        limit = first["deadline_seconds"]
        factor = f"{float(limit) / float(first['base_seconds']):.3g}x" if limit else "none"
        others = [joules(case[method]) for method in methods[1:] if case[method]["energy_joules"]]
        saved = [100 * (1 - joules(case["poet"]) / other) for other in others if case["poet"]["energy_joules"]]
        most = f"{max(saved):.1f} %" if saved else ""
        lines.append((model, device, budget, factor, *(_words(case[method]) for method in methods), most))
    yield from table(("model", "device", "budget", "deadline", *methods, "POET takes less by up to"), lines)


def _words(row: Row | None) -> str:
    if row is None:
        return ""
    return f"{overhead(row):.2f} %" if row["energy_joules"] else "none"


def _by_budget(rows: Sequence[Row]) -> Iterator[str]:
    methods = list(dict.fromkeys(row["method"] for row in rows))
    lines = [
        (model, device, budget, *(_words(case.get(method)) for method in methods))
        for (model, device, budget, _), case in cases(rows).items()
    ]
    yield from table(("model", "device", "budget", *methods), lines)


def against_pofo(folder: Path) -> Iterator[str]:
    """Has POET a plan with less memory and less time than one of POFO? (Table 3: -8.3 % and -13 %)."""
    rows = [row for row in read(folder / "table3.csv") if row["energy_joules"]]
    ours = [row for row in rows if row["method"] == "poet"]
    lines = []
    for row in (row for row in rows if row["method"] == "pofo" and not row["deadline_seconds"]):
        peak, seconds = float(row["transient_peak_bytes"]), float(row["seconds"])
        better = [own for own in ours if float(own["seconds"]) <= seconds]
        lowest = min(better, key=lambda own: float(own["transient_peak_bytes"]), default=None)
        theirs = (row["budget"], f"{peak:,.0f}", f"{1e3 * seconds:.1f} ms")
        if lowest is None:
            lines.append((*theirs, "none as fast", "", ""))
            continue
        least, time = float(lowest["transient_peak_bytes"]), float(lowest["seconds"])
        own_peak, own_time = f"{least:,.0f} ({change(least, peak)})", f"{1e3 * time:.1f} ms ({change(time, seconds)})"
        lines.append((*theirs, own_peak, own_time, change(joules(lowest), joules(row))))
    headings = ("budget of POFO", "its peak [B]", "its step", "POET's least peak as fast [B]", "its step", "energy")
    yield from table(headings, lines)


def ordering(folder: Path) -> Iterator[str]:
    """How much of the memory does ordering save alone, without recompute or paging?"""
    seen = {}
    for path in sorted(folder.glob("*.csv")):
        for row in read(path):
            seen.setdefault(row["model"], (int(row["original_peak_bytes"]), int(row["ordered_peak_bytes"])))
    lines = [(model, f"{one:,}", f"{two:,}", change(two, one)) for model, (one, two) in seen.items()]
    yield from table(("model", "peak as generated [B]", "ordered [B]", "difference"), lines)


def solves(folder: Path) -> Iterator[str]:
    """How long does POET take, and how often is it proven to be within 1 % of the least energy? (6.1: 10 minutes)."""
    lines = []
    rows = [row for row in read_fig3(folder) if row["method"] == "poet"]
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == model]
        proven = sum(row["status"] in ("optimal", "not_needed") for row in own)
        refuted = sum(row["status"] == "infeasible" for row in own)
        slowest = max(float(row["solve_seconds"]) for row in own)
        lines.append((model, len(own), proven, refuted, f"{slowest:.0f} s"))
    yield from table(("model", "cases", "proven within 1 %", "proven to have no plan", "slowest"), lines)


def awareness(folder: Path) -> Iterator[str]:
    """Does a method's plan for a branching graph change with the budget, the costs, the power? (Table 1)."""
    every = cases(read(folder / "table1.csv"))
    budgets = list(dict.fromkeys(key[2] for key in every))
    methods = list(dict.fromkeys(method for case in every.values() for method in case))

    def plan(method: str, device: str, budget: str) -> tuple[str, ...] | None:
        row = next((case[method] for key, case in every.items() if key[1:3] == (device, budget) and method in case), {})
        moved = ("recomputed_nodes", "recomputed_flops", "page_out_bytes", "page_in_bytes")
        return tuple(row[name] for name in moved) if row.get("energy_joules") else None

    def differs(method: str, other: str) -> str:
        pairs = [(plan(method, "a72", budget), plan(method, other, budget)) for budget in budgets]
        known = [one != two for one, two in pairs if one is not None and two is not None]
        return "no plan" if not known else "yes" if any(known) else "no"

    lines = []
    for method in methods:
        plans = [plan(method, "a72", budget) for budget in budgets]
        found = sum(each is not None for each in plans)
        by_budget = "no plan" if found < len(plans) else "yes" if len(set(plans)) > 1 else "no"
        frugal, slow = differs(method, "a72-frugal-storage"), differs(method, "a72-slow-elementwise")
        lines.append((method, f"{found} of {len(budgets)}", by_budget, slow, frugal))
    headings = ("method", "plans of a U-Net", "changes with the budget", "with compute costs", "with storage power")
    yield from table(headings, lines)


def ranking(folder: Path) -> Iterator[str]:
    """When to recompute, when to page: energy above computing once, by batch size and speed of the storage."""
    yield from _by_budget(read(folder / "map.csv"))


CLAIMS: dict[str, Callable[[Path], Iterator[str]]] = {
    "least energy": least_energy,
    "DTR": against_dtr,
    "deadlines": deadlines,
    "Capuchin": overheads,
    "awareness": awareness,
    "POFO": against_pofo,
    "solves": solves,
    "ordering": ordering,
    "map": ranking,
}


def main(arguments: Sequence[str]) -> int:
    """Print every table."""
    (folder,) = arguments
    for name, claim in CLAIMS.items():
        print(f"{name}\n\n" + "\n".join(claim(Path(folder))) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
