"""Budgets and deadlines: what people write, and what must be refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from poet_onnx.errors import InputError
from poet_onnx.quantities import Budget, Deadline, parse_budget, parse_deadline


@pytest.mark.parametrize(
    ("value", "expected_bytes"),
    [
        (1, 1),
        (268435456, 268435456),
        (np.int64(4096), 4096),
        ("4096", 4096),
        ("4096B", 4096),
        ("256MiB", 256 * 2**20),
        ("256 mib", 256 * 2**20),
        ("1.5GiB", 3 * 2**29),
        ("10MB", 10_000_000),
        ("2kB", 2000),
        ("64KiB", 65536),
        ("1e6", 1_000_000),
    ],
)
def test_bytes_are_read(value: Any, expected_bytes: int) -> None:
    assert parse_budget(value, name="--ram-budget") == Budget(expected_bytes)
    assert parse_budget(value, name="--ram-budget").in_bytes(10) == expected_bytes


@pytest.mark.parametrize(
    ("value", "share_of", "doubt"),
    [
        (75, "a peak", "not 75% or 75MiB"),
        ("75", "a peak", "not 75% or 75MiB"),
        ("256", "a peak", "not 256MiB"),
        ("75", None, "not 75MiB"),
        ("75B", "a peak", ""),
        ("75MiB", "a peak", ""),
        (2**20, "a peak", ""),
    ],
)
def test_a_small_number_without_a_unit_is_doubted(value: int | str, share_of: str | None, doubt: str) -> None:
    found = parse_budget(value, name="budget", share_of=share_of).doubt
    assert found.endswith(doubt)
    assert bool(found) == bool(doubt)


def test_a_share_without_a_percent_sign_is_told_how_to_write_one() -> None:
    with pytest.raises(InputError, match=r"budget '0\.75' is out of range: .* or a percentage such as 75%"):
        parse_budget("0.75", name="budget", share_of="a peak")


def test_a_percentage_is_a_share_of_a_peak_known_later() -> None:
    budget = parse_budget("75%", name="--activation-budget", share_of="the ordered transient peak")
    assert budget == Budget(share=0.75)
    assert budget.in_bytes(1001) == 750


@pytest.mark.parametrize(
    "value",
    [
        *(0, -1, 1.5, math.nan, math.inf, True, None, 2**60, b"1", [1]),
        *(
            "0",
            "-5MB",
            "nan",
            "inf",
            "",
            "MB",
            "5 apples",
            "5MBit",
            "0.2B",
            "99999999TB",
            "1,5GB",
            "75%",
            "0x10",
            "1_000",
        ),
    ],
)
def test_what_is_no_budget_is_refused_in_one_sentence(value: Any) -> None:
    with pytest.raises(InputError, match=r"^--ram-budget .*\.$") as caught:
        parse_budget(value, name="--ram-budget")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", ["0%", "-5%", "1001%", "%"])
def test_a_percentage_out_of_range_is_refused(value: str) -> None:
    with pytest.raises(InputError, match="--activation-budget"):
        parse_budget(value, name="--activation-budget", share_of="the ordered transient peak")


@pytest.mark.parametrize(
    ("value", "expected_seconds"),
    [("250ms", 0.25), ("0.25s", 0.25), ("0.25", 0.25), (0.25, 0.25), (2, 2.0), ("90us", 9e-5), ("2 min", 120.0)],
)
def test_times_are_read(value: Any, expected_seconds: float) -> None:
    assert parse_deadline(value, name="--deadline").in_seconds(99.0) == pytest.approx(expected_seconds)


def test_a_factor_is_one_of_a_time_known_later() -> None:
    assert parse_deadline("1.3x", name="--deadline") == Deadline(factor=1.3)
    assert parse_deadline("1.5X", name="--deadline").in_seconds(2.0) == 3.0


@pytest.mark.parametrize(
    "value",
    [0, -1.0, math.nan, math.inf, True, None, "0s", "-1s", "nan", "1h2", "x", "", "5 parsecs", "0x", "1e99s", "1e99x"],
)
def test_what_is_no_deadline_is_refused_in_one_sentence(value: Any) -> None:
    with pytest.raises(InputError, match=r"^--deadline .*\.$") as caught:
        parse_deadline(value, name="--deadline")
    assert "\n" not in str(caught.value)
