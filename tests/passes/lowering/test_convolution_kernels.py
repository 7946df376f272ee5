"""Gradients of convolutions by the operator library: ONNX Runtime's bits, and torch's numbers in any strips."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from ops_models import FLOAT, make_model, poet_node

from poet_onnx.runtime import session_options


@pytest.mark.parametrize("kernel", [(3, 3), (5, 2), (1, 4)])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize(("begin", "dilation"), [(0, 1), (2, 1), (1, 2)])
def test_an_inputs_gradient_has_the_bits_of_the_runtimes(
    kernel: tuple[int, int], stride: int, begin: int, dilation: int
) -> None:
    channels, pixels = 5, (7, 11)
    image = [(p - 1) * stride + (k - 1) * dilation + 1 - begin for p, k in zip(pixels, kernel, strict=True)]
    window = {"kernel": kernel, "strides": [stride] * 2, "dilations": [dilation] * 2, "begins": [begin] * 2}
    given = (2, channels, *pixels), (channels, 1, *kernel), image
    expected, found = images_gradients("DepthwiseDataGradient", *given, **window)
    assert found.tobytes() == expected.tobytes()


def images_gradients(
    op_type: str, d_y: tuple[int, ...], weight: tuple[int, ...], image: Sequence[int], **attributes: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Return images' gradients of ONNX Runtime's ConvTranspose, and of an operator of ours."""
    begins, strides, dilations = (attributes[name] for name in ("begins", "strides", "dilations"))
    groups = attributes.get("group", weight[0])
    reached = [
        (p - 1) * s + (k - 1) * d + 1 - b
        for p, s, k, d, b in zip(d_y[2:], strides, weight[2:], dilations, begins, strict=True)
    ]
    around = {
        "pads": [*begins, *(max(0, reach - size) for reach, size in zip(reached, image, strict=True))],
        "output_padding": [max(0, size - reach) for reach, size in zip(reached, image, strict=True)],
    }
    nodes = [
        onnx.helper.make_node(
            "ConvTranspose", ["dy", "w"], ["runtime"], group=groups, strides=strides, dilations=dilations, **around
        ),
        poet_node(op_type, ["dy", "w"], ["dx"], image=image, **attributes),
    ]
    shapes = {"dy": d_y, "w": weight}
    named = [(name, FLOAT, shape) for name, shape in shapes.items()]
    made = [(name, FLOAT, (d_y[0], weight[1] * groups, *image)) for name in ("runtime", "dx")]
    running = onnxruntime.InferenceSession(make_model(nodes, named, made), session_options())
    random = np.random.default_rng(5)
    feeds = {name: random.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    expected, found = running.run(None, feeds)
    return expected, found


@pytest.mark.parametrize("images", [1, 2, 5])
@pytest.mark.parametrize(
    ("weight", "image", "sliding"),
    [
        ((4, 3, 3, 3), (5, 4), {"group": 2, "begin": 1}),
        ((4, 6, 3, 3), (9, 8), {"stride": 2, "begin": 1}),
        ((9, 2, 1, 1), (9, 7), {"group": 3, "stride": 2}),
        ((9, 2, 1, 1), (9, 7), {"group": 3}),
        ((8, 8, 5, 5), (8, 11), {"stride": 2, "dilation": 2, "begin": 4}),
        ((257, 33, 3, 3), (4, 4), {"begin": 1}),
        ((200, 300, 3, 3), (2, 2), {"begin": 1}),
    ],
)
def test_images_gradients_have_the_bits_of_the_runtimes(
    images: int, weight: tuple[int, ...], image: tuple[int, int], sliding: dict[str, int]
) -> None:
    """However many images are taken together: also where some are left, and where windows do not reach the end.

    An image that is cut into rows of windows has other bits where two strips add to a pixel.
    """
    stride, dilation, begin = sliding.get("stride", 1), sliding.get("dilation", 1), sliding.get("begin", 0)
    pixels = [
        (size + 2 * begin - dilation * (taps - 1) - 1) // stride + 1
        for size, taps in zip(image, weight[2:], strict=True)
    ]
    window = {"kernel": weight[2:], "strides": [stride] * 2, "dilations": [dilation] * 2, "begins": [begin] * 2}
    more = {"pixels": pixels, "group": sliding.get("group", 1), "images": images}
    given = (3, weight[0], *pixels), weight, image
    expected, found = images_gradients("ConvDataGradient", *given, **window, **more, rows=pixels[0])
    assert found.tobytes() == expected.tobytes()
    for rows in (1, 2):
        expected, found = images_gradients("ConvDataGradient", *given, **window, **more, rows=rows)
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * float(np.abs(expected).max()))


@pytest.mark.parametrize("strip", [(1, 1), (1, 2), (1, 99), (2, 3), (3, 9)])
@pytest.mark.parametrize("columns", [1, 16, 100])
@pytest.mark.parametrize(
    ("image", "weight", "sliding"),
    [
        ((9, 8), (6, 4, 3, 2), {"stride": 2, "begin": 1}),
        ((9, 8), (4, 2, 3, 3), {"dilation": 2, "begin": 2}),
        ((9, 8), (4, 4, 3, 1), {"begin": 1}),
        ((9, 8), (5, 4, 1, 1), {}),
        ((9, 8), (6, 2, 1, 1), {}),
        ((9, 8), (8, 4, 1, 1), {"stride": 2}),
        ((3, 301), (6, 2, 2, 5), {"stride": 1, "begin": 2}),
        ((1, 520), (6, 4, 1, 6), {"stride": 2, "dilation": 3}),
        ((19,), (6, 4, 3), {"begin": 1}),
        ((19,), (6, 2, 4), {"stride": 3, "dilation": 2}),
        ((6, 5, 7), (5, 4, 3, 2, 3), {"begin": 1}),
        ((6, 5, 7), (4, 2, 2, 3, 2), {"stride": 2, "begin": 1}),
        ((6, 5, 7), (4, 4, 2, 1, 1), {"dilation": 2}),
    ],
)
def test_gradients_are_torchs(
    strip: tuple[int, int], columns: int, image: tuple[int, ...], weight: tuple[int, ...], sliding: dict[str, int]
) -> None:
    """Of lines, images and volumes, whichever windows and columns are taken at a time."""
    stride, dilation, begin = sliding.get("stride", 1), sliding.get("dilation", 1), sliding.get("begin", 0)
    check_gradients(strip, columns, image, weight, stride=stride, dilation=dilation, begin=begin)


def test_a_line_has_more_windows_than_an_image_has_rows() -> None:
    check_gradients((1, 30_000), 100, (80_000,), (2, 4, 5), stride=1, dilation=1, begin=2)


def check_gradients(
    strip: tuple[int, int],
    columns: int,
    image: tuple[int, ...],
    weight: tuple[int, ...],
    *,
    stride: int,
    dilation: int,
    begin: int,
) -> None:
    """Compare the gradients of three images of four channels with torch's."""
    rank, group = len(image), 4 // weight[1]
    random = torch.Generator().manual_seed(3)
    x = torch.randn(3, 4, *image, generator=random)
    w = torch.randn(weight, generator=random)
    wide = [x.double().requires_grad_(), w.double().requires_grad_()]
    convolve = (torch.nn.functional.conv1d, torch.nn.functional.conv2d, torch.nn.functional.conv3d)[rank - 1]
    y = convolve(*wide, None, stride, begin, dilation, group)
    d_y = torch.randn(y.shape, generator=random)
    expected = torch.autograd.grad(y, wide, d_y.double())
    window = {
        "kernel": weight[2:],
        "strides": [stride] * rank,
        "dilations": [dilation] * rank,
        "begins": [begin] * rank,
    }
    more = {"pixels": y.shape[2:], "group": group, "images": strip[0], "rows": strip[1]}
    nodes = [
        poet_node("ConvDataGradient", ["dy", "w"], ["dx"], image=image, **window, **more),
        poet_node("ConvWeightGradient", ["dy", "x"], ["dw"], **window, **more, columns=columns),
    ]
    given = {"dy": d_y.numpy(), "w": w.numpy(), "x": x.numpy()}
    named = [(name, FLOAT, list(array.shape)) for name, array in given.items()]
    made = [("dx", FLOAT, x.shape), ("dw", FLOAT, weight)]
    running = onnxruntime.InferenceSession(make_model(nodes, named, made), session_options())
    for found, right in zip(running.run(None, given), expected, strict=True):
        np.testing.assert_allclose(found, right.numpy(), rtol=0, atol=2e-6 * float(right.abs().max()))
