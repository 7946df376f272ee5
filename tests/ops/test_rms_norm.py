"""Normalization by the root mean square and its gradients, beside torch in float64.

The stock runtime runs these tests, too (test_ops.py).
"""

from __future__ import annotations

import numpy as np
import pytest
from single_nodes import Array, distance, run_node

RuntimeFailure = Exception  # ONNX Runtime's exceptions have no common base but this one
EPSILON, ERROR = 1e-5, 1e-6
SHAPES = [(7,), (4, 2), (3, 33), (2, 5, 64), (5, 1000), (2, 300, 6), (1, 2, 3, 4099)]


def arrays(shape: tuple[int, ...]) -> tuple[Array, Array, Array]:
    """Return dY, X and the scale."""
    random = np.random.default_rng(len(shape))
    d_y, x = (random.standard_normal(shape).astype(np.float32) for _ in range(2))
    return d_y, x * 3 + 1, random.standard_normal(shape[-1]).astype(np.float32)


def expected(d_y: Array, x: Array, scale: Array) -> tuple[Array, Array, Array, Array]:
    """Return Y, the inverse, dX and dScale in float64."""
    d_y, x, scale = (array.astype(np.float64) for array in (d_y, x, scale))
    inverse = 1 / np.sqrt((x**2).mean(-1, keepdims=True) + EPSILON)
    n, g = x * inverse, d_y * scale
    d_x = inverse * (g - n * (g * n).mean(-1, keepdims=True))
    return n * scale, inverse, d_x, (d_y * n).reshape(-1, x.shape[-1]).sum(0)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_values_and_gradients_are_those_of_float64(shape: tuple[int, ...]) -> None:
    d_y, x, scale = arrays(shape)
    y, inverse = run_node("RmsNormalize", [x, scale], 2, epsilon=EPSILON)
    (d_x,) = run_node("RmsNormalizeGradient", [d_y, x, scale, inverse])
    (d_scale,) = run_node("RmsNormalizeScaleGradient", [d_y, x, inverse])
    found = (y, inverse, d_x, d_scale)
    assert [distance(*pair) <= ERROR for pair in zip(found, expected(d_y, x, scale), strict=True)] == [True] * 4


def test_a_row_of_zeros_has_the_inverse_of_epsilons_root() -> None:
    y, inverse = run_node("RmsNormalize", [np.zeros((2, 8), np.float32), np.ones(8, np.float32)], 2, epsilon=EPSILON)
    assert not y.any()
    np.testing.assert_allclose(inverse, EPSILON**-0.5, rtol=ERROR)


def test_no_rows_are_borne() -> None:
    x, scale = np.zeros((0, 8), np.float32), np.ones(8, np.float32)
    y, inverse = run_node("RmsNormalize", [x, scale], 2, epsilon=EPSILON)
    assert (y.shape, inverse.shape) == ((0, 8), (0, 1))
    assert not run_node("RmsNormalizeScaleGradient", [x, x, inverse])[0].any()


@pytest.mark.parametrize(
    ("op_type", "given", "attributes", "message"),
    [
        ("RmsNormalize", [(2, 8), (7,)], {"epsilon": 0.1}, "input 1 .* must be 8 floats"),
        ("RmsNormalize", [(2, 8), (8,)], {}, "float attribute 'epsilon' is missing"),
        ("RmsNormalize", [(2, 0), (0,)], {"epsilon": 0.1}, "must be rows of floats"),
        ("RmsNormalize", [(), ()], {"epsilon": 0.1}, "must be rows of floats"),
        ("RmsNormalizeScaleGradient", [(2, 8), (2, 7), (2, 1)], {}, "input 1 .* must be 16 floats"),
        ("RmsNormalizeScaleGradient", [(2, 8), (2, 8), (3, 1)], {}, "input 2 .* must be 2 floats"),
    ],
)
def test_what_does_not_fit_is_refused(
    op_type: str, given: list[tuple[int, ...]], attributes: dict[str, object], message: str
) -> None:
    with pytest.raises(RuntimeFailure, match=message):
        run_node(
            op_type, [np.ones(shape, np.float32) for shape in given], 1 + (op_type == "RmsNormalize"), **attributes
        )


def test_only_floats_are_normalized() -> None:
    with pytest.raises(RuntimeFailure, match="element type 11"):
        run_node("RmsNormalize", [np.ones((2, 8)), np.ones(8, np.float32)], 2, epsilon=EPSILON)
