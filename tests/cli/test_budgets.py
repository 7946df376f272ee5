"""The command line: budgets and deadlines that are none, too small or ambiguous."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cli_runs import Cli, assert_one_sentence, refuse


@pytest.mark.parametrize(
    "budget", ["0", "-1", "0%", "-5%", "abc", "", "12XB", "nan%", "inf", "1e400", "MiB", "10 %%", "0MiB", "9999999TiB"]
)
@pytest.mark.parametrize("option", ["--activation-budget", "--ram-budget"])
def test_zero_and_absurd_budgets(cli: Cli, model: Path, option: str, budget: str) -> None:
    refuse(cli, model, 2, (budget,), "--device", "a72", option, budget)


@pytest.mark.parametrize(("option", "budget"), [("--activation-budget", "1000"), ("--ram-budget", "64KiB")])
def test_a_budget_that_is_too_small_names_the_smallest_that_works(
    cli: Cli, model: Path, option: str, budget: str
) -> None:
    before = list(model.parent.iterdir())
    result = cli("rewrite", model, "--device", "a72", option, budget)
    assert_one_sentence(result, 3, "smallest")
    assert list(model.parent.iterdir()) == before
    smallest = re.search(r"works is ([\d,]+) bytes", result.err)
    assert smallest is not None, result
    fits = cli("rewrite", model, "--device", "a72", option, smallest[1].replace(",", ""), "--time-limit", "5")
    assert fits.code == 0, fits


@pytest.mark.parametrize(
    ("option", "value", "part"),
    [
        ("--activation-budget", "75", "The activation budget 75 without a unit means bytes, not 75% or 75MiB: no plan"),
        ("--ram-budget", "256", "The RAM budget 256 without a unit means bytes, not 256MiB: no plan"),
    ],
)
def test_a_budget_without_a_unit(cli: Cli, model: Path, option: str, value: str, part: str) -> None:
    refuse(cli, model, 3, (part, "the smallest found that works is"), "--device", "a72", option, value)


def test_both_budgets(cli: Cli, model: Path) -> None:
    arguments = ["--ram-budget", "1GiB", "--activation-budget", "50%"]
    refuse(cli, model, 2, ("--ram-budget", "--activation-budget"), "--device", "a72", *arguments)


@pytest.mark.parametrize("deadline", ["0", "-1s", "0.5x", "soon", "nan", "infms"])
def test_a_deadline_that_is_none_or_cannot_be_met(cli: Cli, model: Path, deadline: str) -> None:
    result = cli("rewrite", model, "--device", "a72", "--deadline", deadline)
    assert_one_sentence(result, 3 if deadline == "0.5x" else 2)


def test_a_deadline_shorter_than_computing_names_the_shortest(cli: Cli, model: Path) -> None:
    result = cli("rewrite", model, "--device", "a72", "--deadline", "1us")
    assert_one_sentence(result, 3, "deadline", "at least")
