#!/usr/bin/env python3
"""Hold the scheduler against exhaustive search and the simulator on thousands of random graphs.

python scripts/scheduling_proofs.py -o scripts/results/scheduling_proofs.csv
equality: energy and bound are those of exhaustive search within the class; how much cheaper a plan outside it can be.
validity: every plan, and every plan offered on the way to it, passes the simulator and keeps budget and deadline.
admitted: what the rows of the model admit, walks from one assignment to another, the simulator accepts.
rows: no row of the model, those of time included, leaves out a plan that keeps the budget and the deadline.
search: exhaustive search over plans with the places of their transfers finds none that a bound or a proof denies.
monotone: over grids of budgets and deadlines, more of either never costs more; with --models on these as well.
The exit code is 1 if there is a counterexample; each is printed with what makes it again. Proofs that are not asked for
keep their rows in the table.
"""

from __future__ import annotations

import argparse
import csv
import shlex
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from proofs.admitted import check_admitted
from proofs.equality import check_equality
from proofs.finding import Finding
from proofs.monotone import check_model, check_monotone
from proofs.rows import check_rows
from proofs.timed import check_search
from proofs.validity import check_validity

PROOFS: dict[str, tuple[Callable[[int], list[Finding]], int]] = {
    "equality": (check_equality, 500),
    "validity": (check_validity, 1000),
    "admitted": (check_admitted, 1000),
    "rows": (check_rows, 1000),
    "search": (check_search, 400),
    "monotone": (check_monotone, 30),
}
"""What checks one seed, and how many seeds there are."""

MODEL = "*/training_model.onnx"

DEVICES = ("a72", "tx2")
"""On which models are planned."""

COLUMNS = ("proof", "group", "outcome", "cases", "mean", "largest")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the proofs, write the table, print a summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("proofs", nargs="*", metavar="PROOF", help=f"of {', '.join(PROOFS)} (default: all)")
    parser.add_argument("--share", type=float, default=1.0, help="of the seeds to check (default %(default)s)")
    parser.add_argument("--processes", type=int, default=2, help="side by side (default %(default)s)")
    parser.add_argument("--models", type=Path, metavar="DIR", help="of DIR/NAME/training_model.onnx")
    parser.add_argument("-o", "--output", type=Path, default=Path("scheduling_proofs.csv"), metavar="CSV")
    options = parser.parse_args(arguments)
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not set(options.proofs) <= PROOFS.keys():
        parser.error(f"a PROOF is one of {', '.join(PROOFS)}")
    chosen = options.proofs or list(PROOFS)
    failed = 0
    table = _kept_rows(options.output, chosen)
    for proof in chosen:
        check, seeds = PROOFS[proof]
        with ProcessPoolExecutor(options.processes) as pool:
            checked = pool.map(check, range(max(1, round(seeds * options.share))), chunksize=4)
            findings = [finding for found in checked for finding in _told(found)]
            if proof == "monotone" and options.models:
                cases = [(path, device) for path in sorted(options.models.glob(MODEL)) for device in DEVICES]
                checked = pool.map(check_model, *zip(*cases, strict=True))
                findings += [finding for found in checked for finding in _told(found)]
        failed += sum(finding.failed for finding in findings)
        table += _rows(findings)
        print(f"{proof}: {len(findings)} cases, {sum(finding.failed for finding in findings)} counterexamples")
        _write(options.output, table, shlex.join(["python", "scripts/scheduling_proofs.py", *given]))
    print("\n".join(" | ".join(row) for row in table))
    return 1 if failed else 0


def _told(found: list[Finding]) -> Iterator[Finding]:
    for finding in found:
        if finding.failed:
            print(f"{finding.outcome}: {finding.case}", flush=True)
        yield finding


def _rows(findings: Sequence[Finding]) -> list[list[str]]:
    """Return a row for each group and outcome: how many, and the mean and largest amount."""
    amounts: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for finding in findings:
        amounts[finding.proof, finding.group, finding.outcome].append(finding.amount)
    return [
        [*key, str(len(found)), f"{sum(found) / len(found):.4g}", f"{max(found, key=abs):.4g}"]
        for key, found in sorted(amounts.items())
    ]


def _kept_rows(table: Path, chosen: Sequence[str]) -> list[list[str]]:
    if not table.exists():
        return []
    with table.open(encoding="utf-8", newline="") as file:
        return [row for row in list(csv.reader(file))[2:] if row[0] not in chosen]


def _write(table: Path, rows: list[list[str]], command: str) -> None:
    table.parent.mkdir(parents=True, exist_ok=True)
    order = list(PROOFS)
    with table.open("w", encoding="utf-8", newline="") as file:
        file.write(f"# {command}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(sorted(rows, key=lambda row: order.index(row[0])))


if __name__ == "__main__":
    sys.exit(main())
