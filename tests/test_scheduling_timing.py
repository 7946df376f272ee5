"""Rows of time and memory on small graphs with slow transfers, and that these graphs show small faults in the rows."""

from __future__ import annotations

import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

from proofs.decisions import check_decisions
from proofs.faults import TOO_STRICT, TOO_SURE, TOO_WEAK, Fault, seeded
from proofs.finding import Finding
from proofs.rows import check_rows
from proofs.timed import check_search

SEEDS = (20, 21, 23, 32, 36, 113, 165, 208, 236, 905, 1651, *range(16))

SEARCHED = (145, 1119)
"""Graphs with a deadline for which models that leave plans out find none, or only dearer ones."""

REFUSED = {"all rows": 830, "rows by need": 798}
"""How many decisions that cannot be in time are refused at least: all that are now. What refuses more may raise it."""


@cache
def _sound(seed: int) -> tuple[Finding, ...]:
    return tuple(check_decisions(seed))


def _refused(findings: tuple[Finding, ...]) -> Counter[str]:
    return Counter(finding.group for finding in findings if finding.outcome.endswith(", refused"))


def _is_found(seed: int) -> bool:
    return any(finding.failed for finding in (*check_decisions(seed), *check_rows(seed)))


def _is_weaker(seed: int) -> bool:
    with_fault = _refused(tuple(check_decisions(seed)))
    return any(with_fault[group] < count for group, count in _refused(_sound(seed)).items())


def test_decisions_that_can_be_in_time_are_admitted_and_most_others_refused() -> None:
    findings = tuple(finding for seed in SEEDS for finding in _sound(seed))
    assert not [finding for finding in findings if finding.failed]
    refused = _refused(findings)
    assert {group: refused[group] >= least for group, least in REFUSED.items()} == dict.fromkeys(REFUSED, True)


@pytest.mark.parametrize("fault", TOO_STRICT, ids=lambda fault: fault.what)
def test_rows_that_leave_plans_out_are_found(fault: Fault) -> None:
    with seeded(fault):
        assert any(_is_found(seed) for seed in SEEDS)


@pytest.mark.parametrize("fault", TOO_WEAK, ids=lambda fault: fault.what)
def test_rows_that_let_late_plans_in_are_found(fault: Fault) -> None:
    for seed in SEEDS:
        _sound(seed)
    with seeded(fault):
        assert any(_is_weaker(seed) for seed in SEEDS)


@pytest.mark.parametrize("fault", TOO_SURE, ids=lambda fault: fault.what)
def test_what_is_no_proof_is_found(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without the rows that plans show to be missing, models that leave plans out are all that is left.
    monkeypatch.setattr("poet_onnx.scheduling.deadlines._missed", lambda model, x, timing: timing)
    assert not [finding for seed in SEARCHED for finding in check_search(seed, most_labels=10_000) if finding.failed]
    with seeded(fault):
        assert [finding for seed in SEARCHED for finding in check_search(seed, most_labels=10_000) if finding.failed]
