"""Which cases of a test run every time, and which only in `scripts/test --deep`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def sampled(cases: Iterable[Any], *usual: Any) -> list[Any]:
    """Return all cases for `pytest.mark.parametrize`, marked as deep but for the usual ones.

    Args:
        cases: the arguments of each case, in a tuple where there are several.
        usual: those of the cases that run every time.
    """
    every = list(cases)
    missing = [case for case in usual if case not in every]
    assert not missing, f"no such cases: {missing}"
    marks = {False: [pytest.mark.deep], True: []}
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=marks[case in usual]) for case in every]
