"""Tables for the claims of the paper, from the CSV files of evidence.py."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from rows import (
    Row,
    baselines,
    by_budget,
    cases,
    change,
    deadline,
    have,
    joules,
    least,
    overhead,
    percents,
    read,
    read_fig3,
    savings,
    table,
    words,
)

from poet_onnx.choices import POET, POET_PAGING, POET_RECOMPUTE

DTR = ("dtr", "dtr-eq", "dtr-local")
RIVALS = {"DTR": DTR, "Checkmate": ("checkmate",), "Capuchin": ("capuchin",), "POFO": ("pofo",)}
ABLATIONS = {"paging alone": (POET_PAGING,), "recompute alone": (POET_RECOMPUTE,)}

CHANGES = {"compute costs": "a72-slow-elementwise", "storage power": "a72-frugal-storage"}
"""What differs from an A72 in the profiles of Table 1."""

PROVEN = ("optimal", "not_needed")


def least_energy(folder: Path) -> Iterator[str]:
    """Is POET's energy the least of all, everywhere, and how far is it from its bound? (Fig. 3)."""
    lines = []
    for (model, device, budget, _), case in cases(read_fig3(folder)).items():
        energy, method = least(case, baselines(case))
        best = (words(case[method]), method) if energy < math.inf else ("**only POET has a plan**", "")
        bound = f"{overhead(case[POET], 'bound_joules'):.2f} %" if case[POET]["bound_joules"] else ""
        lines.append((model, device, budget, words(case[POET]), bound, *best))
    yield from table(("model", "device", "budget", "POET", "its bound", "best baseline", "which"), lines)


def rivals(folder: Path) -> Iterator[str]:
    """How much less energy than others does POET take? (Fig. 3: up to 35 % less than DTR on ResNet-18, TX2)."""
    yield from _saved(read_fig3(folder), RIVALS)


def ablations(folder: Path) -> Iterator[str]:
    """How much less energy do both means take than one? (Fig. 4: up to 40 % on VGG-16)."""
    yield from _saved(read_fig3(folder), ABLATIONS)


def _saved(rows: Sequence[Row], others: dict[str, tuple[str, ...]]) -> Iterator[str]:
    """Yield by model and device how much less than others POET takes, and for how many budgets they have no plan."""
    lines = []
    for model, device in dict.fromkeys((row["model"], row["device"]) for row in rows):
        own = cases(row for row in rows if (row["model"], row["device"]) == (model, device)).values()
        found = [savings(own, methods) for methods in others.values()]
        lines.append((model, device, *(part for saved, alone in found for part in (percents(saved), alone))))
    headings = [heading for name in others for heading in (f"less than {name} by", "it has none")]
    yield from table(("model", "device", *headings), lines)


def overheads(folder: Path) -> Iterator[str]:
    """What do Capuchin and POET spend above computing once? (Fig. 5: 73 to 141 % and under 1 %)."""
    yield from by_budget(read(folder / "fig5.csv"))


def deadlines(folder: Path) -> Iterator[str]:
    """What do recompute alone and paging alone spend above computing once? (Fig. 4: POET up to 40 % less energy)."""
    methods, lines = (POET, POET_RECOMPUTE, POET_PAGING), []
    for (model, device, budget, _), case in cases(read(folder / "fig4.csv")).items():
        saved = [each for method in methods[1:] for each in savings([case], [method])[0]]
        most = percents([max(saved)]) if saved else ""
        lines.append((model, device, budget, deadline(case[POET]), *(words(case[method]) for method in methods), most))
    yield from table(("model", "device", "budget", "deadline", *methods, "POET takes less by up to"), lines)


def against_pofo(folder: Path) -> Iterator[str]:
    """Has POET a plan with less memory and less time than one of POFO? (Table 3: -8.3 % and -13 %)."""
    lines = []
    for theirs, ours in pofo_pairs(folder):
        (peak, time), (own_peak, own_time) = (
            (float(row["transient_peak_bytes"]), 1e3 * float(row["seconds"])) for row in (theirs, ours)
        )
        own = (f"{own_peak:,.0f} ({change(own_peak, peak)})", f"{own_time:.1f} ms ({change(own_time, time)})")
        energy = change(joules(ours), joules(theirs))
        lines.append((theirs["budget"], f"{peak:,.0f}", f"{time:.1f} ms", *own, energy))
    headings = ("budget of POFO", "its peak [B]", "its step", "POET's least peak as fast [B]", "its step", "energy")
    yield from table(headings, lines)


def pofo_pairs(folder: Path) -> Iterator[tuple[Row, Row]]:
    """Yield POFO's plans without a deadline, each with POET's plan of least peak that is as fast."""
    rows = [row for row in read(folder / "table3.csv") if have(row)]
    for theirs in (row for row in rows if row["method"] == "pofo" and not row["deadline_seconds"]):
        fast = [row for row in rows if row["method"] == POET and float(row["seconds"]) <= float(theirs["seconds"])]
        if fast:
            yield theirs, min(fast, key=lambda row: float(row["transient_peak_bytes"]))


def solves(folder: Path) -> Iterator[str]:
    """How long does POET take, and how often is it proven to be within 1 % of its bound? (6.1: 10 minutes)."""
    lines = []
    rows = [row for row in read_fig3(folder) if row["method"] == POET]
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == model]
        gaps = [overhead(row) - overhead(row, "bound_joules") for row in own if have(row) and row["bound_joules"]]
        proven = sum(row["status"] in PROVEN for row in own)
        slowest = max(float(row["solve_seconds"]) for row in own)
        lines.append((model, len(own), sum(map(have, own)), proven, f"{max(gaps):.1f} %", f"{slowest:.0f} s"))
    yield from table(("model", "cases", "plans", "proven within 1 %", "farthest from its bound", "slowest"), lines)


def awareness(folder: Path) -> Iterator[str]:
    """Does a method's plan for a branching graph change with the budget, the costs, the power? (Table 1)."""
    lines = []
    for method, (plans, *changes) in reactions(folder).items():
        said = ("no plan" if each is None else "yes" if each else "no" for each in changes)
        lines.append((method, plans, *said))
    yield from table(("method", "plans of a U-Net", "changes with the budget", *(f"with {c}" for c in CHANGES)), lines)


def reactions(folder: Path) -> dict[str, tuple[int, bool | None, bool | None, bool | None]]:
    """Return for each method its plans on an A72, and what its plan changes with: budget, compute, power."""
    rows = read(folder / "table1.csv")
    plans: dict[tuple[str, str], list[tuple[str, ...] | None]] = {}
    for row in rows:
        moved = ("recomputed_nodes", "recomputed_flops", "page_out_bytes", "page_in_bytes")
        plan = tuple(row[name] for name in moved) if have(row) else None
        plans.setdefault((row["method"], row["device"]), []).append(plan)
    found = {}
    for method in dict.fromkeys(row["method"] for row in rows):
        own = plans[method, "a72"]
        with_budget = None if None in own else len(set(own)) > 1
        changed = [_differ(own, plans[method, device]) for device in CHANGES.values()]
        found[method] = (sum(plan is not None for plan in own), with_budget, *changed)
    return found


def _differ(one: Sequence[object], other: Sequence[object]) -> bool | None:
    """Return whether plans differ where both are there; None where no budget has both."""
    known = [mine != theirs for mine, theirs in zip(one, other, strict=True) if None not in (mine, theirs)]
    return any(known) if known else None
