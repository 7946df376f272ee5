"""Tables of what the paper does not report: order, transfers, storage, other graphs, plans that ran."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rows import (
    Row,
    by_budget,
    cases,
    change,
    cheaper,
    deadline,
    have,
    lateness,
    overhead,
    percents,
    read,
    read_fig3,
    savings,
    table,
    words,
)

from poet_onnx.choices import OURS, POET, POET_PAGING, POET_RECOMPUTE

IDLE_WATTS = {"a72": 2.7, "tx2": 0.229}
"""Drawn besides what the profiles count, as their sources say."""


def ordering(folder: Path) -> Iterator[str]:
    """How much of the memory does ordering save alone, without recompute or paging?"""
    seen = {}
    for path in sorted(folder.glob("*.csv")):
        for row in read(path):
            if "ordered_peak_bytes" in row:
                seen.setdefault(row["model"], (int(row["original_peak_bytes"]), int(row["ordered_peak_bytes"])))
    lines = [(model, f"{one:,}", f"{two:,}", change(two, one)) for model, (one, two) in seen.items()]
    yield from table(("model", "peak as generated [B]", "ordered [B]", "difference"), lines)


def orders(folder: Path) -> Iterator[str]:
    """How much of each gain is ordering alone? Energy above computing once, in each order."""
    rows = read(folder / "order.csv")
    methods, names = (list(dict.fromkeys(row[field] for row in rows)) for field in ("method", "order"))
    in_order = {name: cases(row for row in rows if row["order"] == name) for name in names}
    lines = []
    for key in in_order[names[0]]:
        for name in names:
            lines.append((key[0], key[2], name, *(words(in_order[name][key].get(method)) for method in methods)))
    yield from table(("model", "budget", "order", *methods), lines)


def longer(folder: Path) -> Iterator[str]:
    """What do recompute alone and Checkmate find with two minutes in the place of ten seconds?"""
    yield from by_budget(read(folder / "longer.csv"))


def own_program(folder: Path) -> Iterator[str]:
    """What are the plans of the paper's own program once transfers take time?"""
    groups: dict[tuple[str, str], list[dict[str, Row]]] = {}
    for case in cases(read(folder / "poet-paper.csv")).values():
        groups.setdefault((case[POET]["device"], deadline(case[POET])), []).append(case)
    lines = []
    for (device, factor), own in groups.items():
        late = [each for case in own for each in [times_late(case["poet-paper"])] if each > 1]
        found = (sum(have(case[name]) for case in own) for name in (POET, "poet-paper"))
        misses = f"{len(late)}, by up to {max(late):.2f}x" if late else "0"
        slowest = max(float(case["poet-paper"]["solve_seconds"]) for case in own)
        saved, _ = savings(own, ["poet-paper"])
        lines.append((device, factor, len(own), *found, misses, percents(saved), f"{slowest:.1f} s"))
    headings = ("device", "deadline", "cases", "plans of POET", "of its program", "that miss the deadline")
    yield from table((*headings, "POET takes less by", "its slowest solve"), lines)


def times_late(row: Row) -> float:
    """Return what a plan that breaks a limit takes of its deadline; 0 where there is neither."""
    both = row["closest_seconds"], row["deadline_seconds"]
    return float(both[0]) / float(both[1]) if all(both) else 0.0


def waits(folder: Path) -> Iterator[str]:
    """By how much does the paper's count of time fall short, for plans that page and compute nothing again?"""
    rows = [row for row in read_fig3(folder) if have(row) and row["recomputed_nodes"] == "0" != row["page_out_bytes"]]
    lines = []
    for model, device in dict.fromkeys((row["model"], row["device"]) for row in rows):
        own = [row for row in rows if (row["model"], row["device"]) == (model, device)]
        lines.append((model, device, len(own), percents([lateness(row) for row in own])))
    yield from table(("model", "device", "plans that only page", "their step takes longer than computing by"), lines)


def idle(folder: Path) -> Iterator[str]:
    """What does a step cost above computing once if a processor that waits draws its idle power, too?"""
    methods, lines = (POET, POET_RECOMPUTE, POET_PAGING, "capuchin"), []
    for (model, device, budget, _), case in cases(read_fig3(folder)).items():
        if device in IDLE_WATTS:
            watts = f"{IDLE_WATTS[device]} W"
            lines.append((model, device, watts, budget, *(_with_idle(case[method]) for method in methods)))
    yield from table(("model", "device", "idle", "budget", *methods), lines)


def _with_idle(row: Row) -> str:
    if not have(row):
        return "none"
    watts = IDLE_WATTS[row["device"]]
    one, other = (
        float(row[f"{of}joules"]) + watts * float(row[f"{at}seconds"])
        for of, at in (("energy_", ""), ("base_", "base_"))
    )
    return f"{overhead(row):.2f} -> {max(0.0, 100 * (one / other - 1)):.2f} %"


def branching(folder: Path) -> Iterator[str]:
    """What do the methods make of other graphs that branch?"""
    rows = read(folder / "branching.csv")
    lines = []
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == model]
        planned, failed = sum(map(have, own)), sum(row["status"] == "failed" for row in own)
        said = sum(bool(row["message"]) for row in own if not have(row) and row["status"] != "failed")
        every = list(cases(own).values())
        _, alone = savings(every, [name for name in every[0] if name not in OURS])
        less = cheaper(every)
        lines.append((model, len(own), planned, said, failed, alone, len(less), percents(less) if less else ""))
    headings = ("model", "cells", "plans", "no plan, with a reason", "failed", "only POET has one")
    yield from table((*headings, "a baseline spends less", "by"), lines)


def executed(folder: Path) -> Iterator[str]:
    """Do plans of all methods run, with the same bits and the predicted peak?"""
    lines = []
    for row in read(folder / "executed.csv"):
        peaks = (f"{int(row[name]):,}" for name in ("budget_bytes", "predicted_peak_bytes", "measured_peak_bytes"))
        moved = (row["recomputed_nodes"], f"{int(row['page_out_bytes']):,}")
        is_same = "yes" if row["bits_equal"] == row["order_exact"] == "True" else "no"
        lines.append((row["method"], row["model"], *peaks, *moved, is_same))
    headings = ("method", "model", "budget [B]", "predicted peak [B]", "measured peak [B]", "recomputed", "paged [B]")
    yield from table((*headings, "same bits, planned order"), lines)


def storage(folder: Path) -> Iterator[str]:
    """When to recompute, when to page: energy above computing once, by batch size and speed of the storage."""
    lines = []
    for (model, device, budget, _), case in cases(read(folder / "map.csv")).items():
        row = case[POET]
        does = (f"{int(row['page_out_bytes']):,}", row["recomputed_nodes"]) if have(row) else ("", "")
        methods = (POET, POET_RECOMPUTE, POET_PAGING)
        lines.append((model, budget, device.rsplit("-", 1)[-1], *(words(case[name]) for name in methods), *does))
    headings = ("model", "budget", "storage", "both", "recompute alone", "paging alone")
    yield from table((*headings, "both page [B]", "and recompute [nodes]"), lines)


def runs(folder: Path) -> Iterator[str]:
    """What was run, and how long did the methods take?"""
    lines, whole = [], 0.0
    for path in sorted(folder.glob("*.csv")):
        rows = read(path)
        if path.stem != "executed":
            seconds = sum(float(row["solve_seconds"]) for row in rows)
            limit = max(float(row["time_limit_seconds"]) for row in rows)
            counts = (len({row[field] for row in rows}) for field in ("model", "device", "budget", "method"))
            lines.append((path.stem, *counts, len(rows), f"{limit:.0f} s", f"{seconds:.0f} s"))
            whole += seconds
    headings = ("part", "models", "devices", "budgets", "methods", "cells", "limit of a cell", "all methods took")
    yield from table(
        headings, [*lines, ("whole", *[""] * 4, sum(int(line[5]) for line in lines), "", f"{whole:.0f} s")]
    )
