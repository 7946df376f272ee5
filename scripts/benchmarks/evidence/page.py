#!/usr/bin/env python3
"""Write the tables of docs/evidence.md anew from the CSV files of evidence.py.

python scripts/benchmarks/evidence/page.py scripts/results/evidence docs/evidence.md
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import claims
import findings
from rows import (
    Row,
    baselines,
    cases,
    cheaper,
    deadline,
    have,
    overhead,
    percents,
    read,
    read_fig3,
    savings,
    table,
)

from poet_onnx.choices import POET, POET_PAGING, POET_RECOMPUTE

NEARLY = 0.8
"""A figure counts as nearly reproduced from this share of the claimed one on."""


def summary(folder: Path) -> Iterator[str]:
    """Which claims hold, and by how much?"""
    yield from table(("claim", "the paper", "here", "verdict"), _verdicts(folder))


def _verdicts(folder: Path) -> Iterator[tuple[str, str, str, str]]:
    fig3, fig5 = read_fig3(folder), read(folder / "fig5.csv")
    every = list(cases(fig3).values())
    least = sum(have(case[POET]) and not cheaper([case]) for case in every)
    alone = sum(savings([case], baselines(case))[1] for case in every)
    here = f"{least} of {len(every)} cases; in {alone} of them no baseline has a plan"
    yield "POET spends the least on every model and device", "Fig. 3", here, _holds(least == len(every))
    saved, alone = savings(_of(fig3, "resnet18", "tx2"), claims.DTR)
    here = f"up to {max(saved):.1f} %; {alone} of {alone + len(saved)} budgets POET alone reaches"
    yield "less energy than DTR, ResNet-18 on TX2", "up to 35 %", here, _verdict(max(saved), 35)
    theirs, ours = ([overhead(case[name]) for case in _of(fig5, "resnet18", "a72")] for name in ("capuchin", POET))
    yield "Capuchin above full memory, ResNet-18 on A72", "73 to 141 %", percents(theirs), _verdict(max(theirs), 73)
    small = sum(each < 1 for each in ours)
    here = f"{percents(ours)}; under 1 % for {small} of {len(ours)} budgets"
    yield "POET above full memory, ResNet-18 on A72", "under 1 %", here, _holds(small == len(ours), "for large budgets")
    fig4 = read(folder / "fig4.csv")
    for name, rows in (
        ("VGG-16", [*_of(fig4), *_of(fig3, "vgg16")]),
        ("BERT, not in the paper", _of(fig3, "bert-2")),
    ):
        most = max(each for method in (POET_PAGING, POET_RECOMPUTE) for each in savings(rows, [method])[0])
        yield f"both means against one alone, {name}", "up to 40 %", f"up to {most:.1f} %", _verdict(most, 40)
    tight = [case for case in _of(fig4) if deadline(case[POET]) == "1x"]
    alone = sum(have(case[POET]) and not have(case[POET_RECOMPUTE]) for case in tight)
    here = f"none in {alone} of {len(tight)} cases at 1x"
    yield "recompute alone has no plan at the tightest deadline", "Fig. 4", here, _holds(alone == len(tight))
    for field, name, claimed in (("transient_peak_bytes", "peak", 8.3), ("seconds", "time", 13)):
        changes = [100 * (1 - float(own[field]) / float(other[field])) for other, own in claims.pofo_pairs(folder)]
        yield (
            f"POFO, ResNet-18 on TX2: {name}",
            f"-{claimed} %",
            f"-{max(changes):.1f} %",
            _verdict(max(changes), claimed),
        )
    aware = [method for method, (_, *changes) in claims.reactions(folder).items() if all(changes)]
    here = f"true of {', '.join(aware)}"
    yield "only POET looks at graph, compute, memory and power", "Table 1", here, _holds(aware == [POET])
    own = [row for row in read(folder / "poet-paper.csv") if row["method"] == "poet-paper" and row["deadline_seconds"]]
    late = [each for each in map(findings.times_late, own) if each > 1]
    here = f"{len(late)} of {len(own)} plans of that program miss it, by up to {max(late):.2f}x"
    yield "plans meet the deadline", "Alg. 1", here, "refuted" if late else "reproduced"
    poet = [row for row in fig3 if row["method"] == POET]
    proven = sum(row["status"] in claims.PROVEN for row in poet)
    slowest = max(float(row["solve_seconds"]) for row in poet)
    here = f"{proven} of {len(poet)} proven within 1 %, in {slowest:.0f} s at most"
    yield "solves in ten minutes, but not BERT on M4 and TX2", "6.1", here, _holds(all(map(have, poet)))
    yield "ResNet-18 and BERT train on 32 and 256 KB", "1", "their parameters alone are larger", "not decidable"


def _of(rows: Sequence[Row], model: str = "", device: str = "") -> list[dict[str, Row]]:
    """Return the cases of a model and a device, or of all."""
    return list(
        cases(
            row
            for row in rows
            if row["model"] == (model or row["model"]) and row["device"] == (device or row["device"])
        ).values()
    )


def _holds(is_so: bool, otherwise: str = "in part") -> str:
    return "reproduced" if is_so else f"reproduced {otherwise}"


def _verdict(found: float, claimed: float) -> str:
    """Return what to say of a gain in percent, beside the claimed one."""
    if found >= claimed:
        return "reproduced"
    if found >= NEARLY * claimed:
        return "nearly reproduced"
    return "direction reproduced, size refuted" if found > 0 else "refuted"


TABLES: dict[str, Callable[[Path], Iterator[str]]] = {
    each.__name__.replace("_", " "): each
    for each in (
        *(summary, claims.least_energy, claims.rivals, claims.ablations, claims.deadlines, claims.overheads),
        *(claims.awareness, claims.against_pofo, claims.solves),
        *(findings.ordering, findings.orders, findings.longer, findings.own_program, findings.waits, findings.idle),
        *(findings.storage, findings.branching, findings.executed, findings.runs),
    )
}


def filled(page: str, folder: Path) -> str:
    """Return a page with its tables made anew: each follows a comment that names it."""

    def made(found: re.Match[str]) -> str:
        return found[1] + "".join(f"{line}\n" for line in TABLES[found[2]](folder))

    return re.sub(r"(<!-- table: (.+) -->\n\n)(?:\|.*\n)*", made, page)


def main(arguments: Sequence[str]) -> int:
    """Fill the page."""
    folder, page = map(Path, arguments)
    page.write_text(filled(page.read_text(encoding="utf-8"), folder), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
