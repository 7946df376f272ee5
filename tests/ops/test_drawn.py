"""Numbers that are drawn from the number of the run are those of Philox, in every part of a tensor."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto
from ops_models import make_model, poet_node
from philox_numbers import philox

from poet_onnx.runtime import session_options

RuntimeFailure = Exception  # ONNX Runtime's exceptions have no common base but this one
NUMBERS: dict[str, dict[str, float]] = {
    "CountedUniform": {"low": 0.0, "high": 1.0},
    "CountedNormal": {"mean": 0.0, "scale": 1.0},
}


def session_of(operator: str, shape: tuple[int, ...], seed: int = 0, **numbers: float) -> onnxruntime.InferenceSession:
    node = poet_node(operator, ["runs"], ["y"], seed=seed, shape=shape, **(NUMBERS[operator] | numbers))
    model = make_model([node], [("runs", TensorProto.INT64, [1])], [("y", TensorProto.FLOAT, list(shape))])
    return onnxruntime.InferenceSession(model, session_options(threads=2))


def drawn(operator: str, shape: tuple[int, ...], runs: int = 0, **settings: Any) -> np.ndarray:
    (found,) = session_of(operator, shape, **settings).run(None, {"runs": np.int64([runs])})
    return np.asarray(found)


def test_the_first_numbers_are_those_that_are_published() -> None:
    """The first of the known answers of Random123 (github.com/DEShawResearch/random123, tests/kat_vectors)."""
    known = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert philox(0, 0, 0) == known
    assert drawn("CountedUniform", (4,)).tolist() == [(number >> 8) / 2**24 for number in known]


@pytest.mark.parametrize("runs", [0, 1, 2**31, 2**32 + 5, 2**63 - 1])
@pytest.mark.parametrize("seed", [7, 2**24 - 1, 2**40 + 3])
def test_numbers_follow_from_place_run_and_seed(runs: int, seed: int) -> None:
    found = drawn("CountedUniform", (3, 5, 6007), runs, seed=seed).reshape(-1)
    for block in (0, 1, 20_000, len(found) // 4):  # the last one is cut off
        numbers = [(number >> 8) / 2**24 for number in philox(block, runs, seed)]
        assert found[4 * block : 4 * block + 4].tolist() == numbers[: len(found) - 4 * block]


def test_normal_numbers_are_made_of_two_each() -> None:
    found = drawn("CountedNormal", (2, 4), 3, seed=11, mean=-2.0, scale=0.5)
    for row in range(2):
        for place, (share, turn) in enumerate(np.array(philox(row, 3, 11), np.float64).reshape(2, 2)):
            radius, angle = np.sqrt(-2 * np.log((share + 1) / 2**32)), 2 * np.pi * turn / 2**32
            pair = -2.0 + 0.5 * radius * np.array([np.cos(angle), np.sin(angle)])
            np.testing.assert_allclose(found[row, 2 * place : 2 * place + 2], pair, rtol=1e-6)


@pytest.mark.parametrize("operator", NUMBERS)
def test_they_have_the_moments_of_their_distribution(operator: str) -> None:
    count = 1_000_000
    found = drawn(operator, (count,), 5, seed=1).astype(np.float64)
    exact = (0.0, 1.0, 0.0, 3.0) if operator == "CountedNormal" else (0.5, 1 / 12, 0.0, 1.8)
    width = np.sqrt(exact[1])
    normed = (found - exact[0]) / width
    assert abs(normed.mean()) < 5 / np.sqrt(count)
    assert normed.var() == pytest.approx(1, abs=0.01)
    assert (normed**3).mean() == pytest.approx(exact[2], abs=0.02)
    assert (normed**4).mean() == pytest.approx(exact[3], abs=0.05)
    assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 5 / np.sqrt(count)


@pytest.mark.parametrize("operator", NUMBERS)
def test_one_place_has_other_numbers_in_each_run(operator: str) -> None:
    """ONNX Runtime's dropout, whose seed grows by one, draws nearly the same first number in neighbouring runs."""
    session = session_of(operator, (6,), seed=3)
    numbers = np.array([session.run(None, {"runs": np.int64([run])})[0] for run in range(2000)])
    again = session.run(None, {"runs": np.int64([1000])})[0]
    assert np.array_equal(again, numbers[1000])
    for place in range(numbers.shape[1]):
        assert abs(np.corrcoef(numbers[:-1, place], numbers[1:, place])[0, 1]) < 0.12


def test_evenly_drawn_numbers_stay_below_their_end() -> None:
    found = drawn("CountedUniform", (100_000,), low=1.0, high=float(np.nextafter(np.float32(1), np.float32(2))))
    assert set(found.tolist()) == {1.0}
    assert drawn("CountedUniform", (3, 0)).shape == (3, 0)


def test_a_run_that_is_no_number_is_refused() -> None:
    node = poet_node("CountedNormal", ["runs"], ["y"], seed=0, shape=(2,), **NUMBERS["CountedNormal"])
    model = make_model([node], [("runs", TensorProto.FLOAT, [1])], [("y", TensorProto.FLOAT, [2])])
    session = onnxruntime.InferenceSession(model, session_options())
    with pytest.raises(RuntimeFailure, match="input 0"):
        session.run(None, {"runs": np.float32([1])})
