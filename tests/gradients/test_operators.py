"""Operators one by one: the gradients that our training graphs compute are those of torch."""

from __future__ import annotations

import numpy as np
import pytest
from gradient_case import DOUBLE_ERROR, SINGLE_ERROR, Case, gradients
from gradient_cases import CASES


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_gradients_are_those_of_torch(case: Case) -> None:
    expected, found = gradients(case)
    limit = case.error or (SINGLE_ERROR if case.single else DOUBLE_ERROR)
    for name, gradient in found.items():
        exact = expected.get(name, np.zeros_like(gradient))  # torch gives none where nothing depends on an input
        assert gradient.shape == exact.shape
        error = float(np.linalg.norm(gradient - exact)) / max(float(np.linalg.norm(exact)), 1e-3)
        assert error <= limit, f"{name}: relative error {error:.1e}"


def test_every_case_has_a_name_of_its_own() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
