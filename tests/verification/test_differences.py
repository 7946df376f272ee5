"""What counts as a difference between two arrays, and how large it is."""

from __future__ import annotations

import numpy as np
import pytest

from poet_onnx.verification.compare import difference


@pytest.mark.parametrize(
    ("original", "rewritten", "ulp"),
    [(1.0, np.nextafter(np.float32(1), np.float32(2)), 1), (0.0, -0.0, 0), (1.0, -1.0, 2 * 0x3F800000)],
)
def test_a_difference_counts_units_in_the_last_place(original: float, rewritten: float, ulp: int) -> None:
    first = np.full((2, 3), original, np.float32)
    second = first.copy()
    second[1, 2] = rewritten
    found = difference("t", 4, first, second)
    assert found is not None
    assert (found.element, found.ulp, found.differing_elements, found.step) == ((1, 2), ulp, 1, 4)
    assert str(found).startswith("'t[1, 2]' is ")


def test_equal_nans_are_equal_and_other_nans_are_not() -> None:
    bits = np.array([0x7FC00000, 0x7FC00001], np.uint32)
    nans = bits.view(np.float32)
    assert difference("t", 0, nans, nans.copy()) is None
    found = difference("t", 0, nans[:1], nans[1:])
    assert found is not None
    assert found.ulp is None


@pytest.mark.parametrize(
    "other", [np.zeros((3,), np.float32), np.zeros((2, 2), np.int32), np.zeros((1, 4), np.float32)]
)
def test_another_shape_or_type_is_a_difference(other: np.ndarray) -> None:
    found = difference("t", 0, np.zeros((2, 2), np.float32), other)
    assert found is not None
    assert found.original == "float32[2, 2]"


def test_empty_arrays_and_scalars_are_compared() -> None:
    assert difference("t", 0, np.zeros((0, 3)), np.zeros((0, 3))) is None
    found = difference("t", 0, np.array(True), np.array(False))
    assert found is not None
    assert (found.element, found.original, found.rewritten) == ((), "True", "False")
