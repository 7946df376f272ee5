"""Where a window of a convolution or pooling stands over an image."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from poet_onnx.graph.operators.shape_context import RuleError, ShapeContext
from poet_onnx.graph.operators.spec import Attribute, Call

Places = npt.NDArray[np.int64]

_LONG_ROW = 256
"""Windows (ops/kernels/window.cpp has the same)."""

WINDOW = (
    Attribute("kernel", "INTS", "Taps, rows first."),
    Attribute("strides", "INTS", "From one window to the next."),
    Attribute("dilations", "INTS", "From one tap to the next."),
    Attribute("begins", "INTS", "Padding before the image."),
)
"""Attributes of a node of ours that say how its window slides."""

PIXELS = Attribute("pixels", "INTS", "Windows.")
"""Of one that is told how many places its window has, too, rows first."""

STRIP = (
    Attribute("images", "INT", "Images whose windows are taken at a time."),
    Attribute("rows", "INT", "Rows of windows that are taken at a time where it is one image."),
)
"""Of one that takes a strip of its windows at a time."""


def rows_of(pixels: Sequence[int]) -> tuple[int, int]:
    """Return how many rows the windows over an image make, and how wide these are: those of a line are 1 wide.

    Long rows of an image are lines, so that a strip may have a part of one.
    """
    is_line = len(pixels) == 1 or (len(pixels) == 2 and pixels[-1] >= _LONG_ROW)
    width = 1 if is_line else pixels[-1]
    return math.prod(pixels) // max(width, 1), width


def strips(d_y: Sequence[int], images: int, rows: int) -> list[int]:
    """Return how many windows a kernel takes at a time, strip after strip: see ops/kernels/window.h.

    Args:
        d_y: shape of what is made of the images.
        images: the node's attribute.
        rows: likewise.
    """
    batch, (height, width) = d_y[0], rows_of(d_y[2:])
    if not math.prod(d_y):
        return []
    images = min(images, batch)
    rows = min(rows, height) if images == 1 else height
    together = [min(images, batch - first) for first in range(0, batch, images)]
    parts = [min(rows, height - first) for first in range(0, height, rows)]
    return [some * part * width for some in together for part in parts]


def strips_of(call: Call) -> list[int]:
    """Return the same of a call, whose first input is what is made of the images."""
    return strips(call.input(0).shape, call.integer("images", 1), call.integer("rows", 1))


def window_pixels(context: ShapeContext, image: Sequence[int], kernel: Sequence[int]) -> tuple[int, ...]:
    """Return how many places a node's window has over an image, in each dimension.

    Raises:
        RuleError: the window does not fit the image, or its attributes make no window.
    """
    rank = len(image)
    strides, dilations = context.numbers("strides", rank), context.numbers("dilations", rank)
    pads = context.numbers("pads", 2 * rank, 0)
    if len(kernel) != rank or min((*kernel, *strides, *dilations), default=1) < 1 or min(pads, default=0) < 0:
        raise RuleError(
            f"kernel {list(kernel)}, strides {list(strides)}, dilations {list(dilations)} and pads {list(pads)} "
            f"make no window over an image of {list(image)}"
        )
    automatic = context.attributes.get("auto_pad", "NOTSET")
    if follows_size(automatic):
        return tuple(math.ceil(size / stride) for size, stride in zip(image, strides, strict=True))
    if automatic not in ("NOTSET", "VALID", ""):
        raise RuleError(f"it has no padding of the kind {automatic!r}")
    pixels = []
    for axis, size in enumerate(image):
        padded = size + (pads[axis] + pads[rank + axis] if automatic != "VALID" else 0)
        beyond = padded - dilations[axis] * (kernel[axis] - 1) - 1
        if beyond < 0:
            raise RuleError(f"its kernel {list(kernel)} is larger than its padded image of {list(image)}")
        rounded = math.ceil if context.integer("ceil_mode", 0) else math.floor
        pixels.append(rounded(beyond / strides[axis]) + 1)
    return tuple(pixels)


def follows_size(automatic: object) -> bool:
    """Return whether an `auto_pad` says that the padding follows from the size of the image."""
    return automatic in ("SAME_UPPER", "SAME_LOWER")


def reach_of(places: int, taps: int, stride: int, dilation: int) -> int:
    """Return the pixels from the first tap of the first window to the last tap of the last one, along an axis."""
    return (places - 1) * stride + dilation * (taps - 1) + 1


def split_padding(automatic: str, total: int) -> tuple[int, int]:
    """Return the padding before and after an axis of `auto_pad`: with SAME_UPPER an odd one has more of it after."""
    less = total // 2
    return (less, total - less) if automatic == "SAME_UPPER" else (total - less, less)


def taps_within(starts: Places, taps: int, dilation: int, span: tuple[int, int]) -> Places:
    """Return how many taps each window of an axis has within a span.

    Args:
        starts: where the windows begin.
        taps: of each.
        dilation: from one tap to the next.
        span: the first element that counts, and the first one behind those.
    """
    reached = starts[:, None] + np.arange(taps) * dilation
    counts: Places = np.sum((reached >= span[0]) & (reached < span[1]), axis=1, dtype=np.int64)
    return counts
