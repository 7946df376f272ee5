"""Maximum pooling with a byte for each window, and its gradient: ONNX Runtime's numbers, and torch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper
from ops_models import FLOAT, make_model, poet_node
from torch.nn import functional

from poet_onnx.runtime import session_options

UINT8 = TensorProto.UINT8
RuntimeFailure = Exception  # ONNX Runtime's exceptions have no common base but this one
Array = np.ndarray[Any, np.dtype[Any]]
POOLS = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}

WINDOWS = [  # image, kernel, strides, dilations, begins
    ((8, 8), (2, 2), (2, 2), (1, 1), (0, 0)),
    ((9, 7), (3, 3), (1, 1), (1, 1), (1, 1)),
    ((11, 300), (3, 2), (2, 1), (1, 1), (1, 1)),
    ((10, 13), (2, 3), (3, 4), (2, 2), (1, 0)),
    ((1000,), (3,), (2,), (1,), (1,)),
    ((5, 6, 7), (3, 2, 3), (2, 1, 1), (1, 1, 2), (1, 1, 1)),
    ((14, 14), (15, 15), (1, 1), (1, 1), (7, 7)),
]


def run(node: onnx.NodeProto, arrays: dict[str, Array], made: list[tuple[str, int]]) -> list[Array]:
    """Run a node on two threads."""
    inputs = [(name, helper.np_dtype_to_tensor_dtype(array.dtype), list(array.shape)) for name, array in arrays.items()]
    model = make_model([node], inputs, [(name, kind, None) for name, kind in made])
    found: list[Array] = onnxruntime.InferenceSession(model, session_options(threads=2)).run(None, arrays)
    return found


def lists(kernel: Any, strides: Any, dilations: Any, begins: Any) -> dict[str, Any]:
    return {"kernel": kernel, "strides": strides, "dilations": dilations, "begins": begins}


def pooled(x: Array, pixels: tuple[int, ...], window: dict[str, Any]) -> list[Array]:
    node = poet_node("MaxPoolTaps", ["x"], ["y", "taps"], pixels=pixels, **window)
    return run(node, {"x": x}, [("y", FLOAT), ("taps", UINT8)])


@pytest.mark.parametrize(("image", "kernel", "strides", "dilations", "begins"), WINDOWS, ids=str)
def test_maxima_and_their_gradients_are_torchs(
    image: Any, kernel: Any, strides: Any, dilations: Any, begins: Any
) -> None:
    """Few different numbers, so that many windows have several maxima: the first counts."""
    random = np.random.default_rng(2)
    x = random.integers(-2, 3, (2, 3, *image)).astype(np.float32)
    leaf = torch.tensor(x, requires_grad=True)
    expected = POOLS[len(image)](leaf, kernel, strides, begins, dilations)
    window = lists(kernel, strides, dilations, begins)
    y, taps = pooled(x, tuple(expected.shape[2:]), window)
    np.testing.assert_array_equal(y, expected.detach().numpy())
    d_y = random.integers(-9, 10, y.shape).astype(np.float32)  # of which all sums are exact
    expected.backward(torch.tensor(d_y))
    node = poet_node("MaxPoolGradient", ["dy", "taps"], ["dx"], image=image, **window)
    (d_x,) = run(node, {"dy": d_y, "taps": taps}, [("dx", FLOAT)])
    assert leaf.grad is not None
    np.testing.assert_array_equal(d_x, leaf.grad.numpy())


def test_a_last_window_may_reach_behind_the_image() -> None:
    x = np.random.default_rng(0).standard_normal((1, 2, 6, 7), np.float32)
    expected = functional.max_pool2d(torch.tensor(x), 2, 3, 0, ceil_mode=True).numpy()
    y, _ = pooled(x, expected.shape[2:], lists([2, 2], [3, 3], [1, 1], [0, 0]))
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_number_that_is_none_stays(place: int) -> None:
    """So it is in torch; ONNX Runtime takes the largest of the others."""
    x = np.float32([[[[1, 5], [2, 3]]]])
    x.flat[place] = np.nan
    y, taps = pooled(x, (1, 1), lists([2, 2], [2, 2], [1, 1], [0, 0]))
    assert np.isnan(y).all()
    assert taps.item() == place


def test_the_smallest_numbers_have_a_place_too() -> None:
    x = np.full((1, 1, 2, 2), -np.inf, np.float32)
    window = lists([3, 3], [2, 2], [1, 1], [1, 1])
    y, taps = pooled(x, (1, 1), window)
    assert y.item() == -np.inf
    assert taps.item() == 4


def test_a_window_that_sees_nothing_has_no_gradient() -> None:
    x = np.ones((1, 1, 1, 1), np.float32)
    window = lists([1, 1], [1, 1], [1, 1], [1, 1])
    y, taps = pooled(x, (3, 3), window)
    assert np.isneginf(y).sum() == 8
    node = poet_node("MaxPoolGradient", ["dy", "taps"], ["dx"], image=[1, 1], **window)
    (d_x,) = run(node, {"dy": np.full((1, 1, 3, 3), 7, np.float32), "taps": taps}, [("dx", FLOAT)])
    assert d_x.item() == 7


@pytest.mark.parametrize(
    ("d_y", "taps", "message"),
    [
        (((1, 1, 2, 2), np.float64), ((1, 1, 2, 2), np.uint8), "element types 11 and 2 .* must be float, uint8 and"),
        (((1, 1, 2, 2), np.float32), ((1, 1, 2, 2), np.int64), "element types 1 and 7"),
        (((1, 1, 2, 2), np.float32), ((1, 1, 4, 1), np.uint8), r"shapes \[1,1,2,2\] and \[1,1,4,1\]"),
        (((2, 2), np.float32), ((2, 2), np.uint8), r"sizes of \[2,2\] are not those of 2 dimensions"),
        (((1, 1, 3, 2), np.float32), ((1, 1, 3, 2), np.uint8), "a tap of a window lies beside the image"),
    ],
)
def test_unfit_taps_are_refused(d_y: tuple[Any, Any], taps: tuple[Any, Any], message: str) -> None:
    window = lists([2, 2], [2, 2], [1, 1], [0, 0])
    node = poet_node("MaxPoolGradient", ["dy", "taps"], ["dx"], image=[4, 4], **window)
    with pytest.raises(RuntimeFailure, match=message):
        run(node, {"dy": np.ones(*d_y), "taps": np.zeros(*taps)}, [("dx", FLOAT)])


@pytest.mark.parametrize(("kernel", "message"), [([16, 16], "more than 255 taps"), ([2] * 4, "have 4 dimensions")])
def test_windows_that_a_byte_cannot_tell_of_are_refused(kernel: list[int], message: str) -> None:
    count = len(kernel)
    window = lists(kernel, [1] * count, [1] * count, [0] * count)
    with pytest.raises(RuntimeFailure, match=message):
        pooled(np.ones((1, 1, *[16] * count), np.float32), (1,) * count, window)
