"""Plans for several budgets: what a file says of the others, and what they are called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from poet_onnx.description.family import FAMILY_KEY, PlanFamily, budget_name, plan_files
from poet_onnx.errors import InputError

FAMILY = PlanFamily((64 << 20, 96 << 20, 200_000_001), 200_000_001, "f" * 64)


@pytest.mark.parametrize(
    ("size_bytes", "name"),
    [
        (64 << 20, "64MiB"),
        (2 << 30, "2GiB"),
        (1536 << 20, "1536MiB"),
        (46130 << 10, "46130KiB"),
        (70_000_001, "70000001B"),
    ],
)
def test_names_of_budgets_are_exact(size_bytes: int, name: str) -> None:
    assert budget_name(size_bytes) == name


def test_the_largest_has_the_name_that_was_asked_for() -> None:
    path = Path("some", "net.poet.onnx")
    assert [each.name for each in plan_files(path, FAMILY.budgets_bytes[::-1]).values()] == [
        "net.poet.64MiB.onnx",
        "net.poet.96MiB.onnx",
        "net.poet.onnx",
    ]
    assert FAMILY.path_of(path, 64 << 20) == Path("some", "net.poet.64MiB.onnx")
    assert FAMILY.is_largest


def test_it_reads_back_and_what_is_damaged_is_refused() -> None:
    assert PlanFamily.of_metadata({FAMILY_KEY: FAMILY.to_json()}) == FAMILY
    assert PlanFamily.of_metadata({}) is None
    whole = json.loads(FAMILY.to_json())
    wrong: list[Any] = [
        "{",
        "[]",
        json.dumps(whole | {"budgets_bytes": [2, 1]}),
        json.dumps(whole | {"budgets_bytes": [True, 2], "budget_bytes": 2}),
        json.dumps(whole | {"budget_bytes": 5}),
        json.dumps(whole | {"budgets_bytes": 3}),
        json.dumps(whole | {"fingerprint": 7}),
        json.dumps(whole | {"format": 0}),
        json.dumps({key: value for key, value in whole.items() if key != "fingerprint"}),
    ]
    for text in wrong:
        with pytest.raises(InputError, match="name no plans: rewrite the original again"):
            PlanFamily.of_metadata({FAMILY_KEY: text})


def test_the_largest_budget_within_a_limit() -> None:
    small, middle, large = FAMILY.budgets_bytes
    assert [FAMILY.within(limit) for limit in (small, middle - 1, middle, large, 2**60)] == [
        small,
        small,
        middle,
        large,
        large,
    ]
    with pytest.raises(InputError, match=f"keeps to {small - 1:,} bytes: the smallest is for {small:,}"):
        FAMILY.within(small - 1)
