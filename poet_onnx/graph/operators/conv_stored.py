"""Convolutions whose filters live in a store, of which some at a time are in memory (ops/kernels/filter_panels.h)."""

from __future__ import annotations

import math

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.graph.operators.fitting import expect, expect_count, said
from poet_onnx.graph.operators.linear import (
    PANELS,
    compared_rows,
    gradient_specs,
    matrix_of,
    most_rows,
    piece_rows,
    read_once,
    sizes,
)
from poet_onnx.graph.operators.rules import FLOAT
from poet_onnx.graph.operators.shape_context import RuleError, ShapeContext, TensorType
from poet_onnx.graph.operators.spec import Attribute, Call, OpSpec, Schema, Work
from poet_onnx.graph.operators.updates import flag
from poet_onnx.graph.operators.windows import PIXELS, STRIP, WINDOW, strips_of

BACKWARD = "ConvStoredBackward"
"""What the names of operators begin with that use gradients of filters up; the optimizer follows."""

PANEL_FILTERS = 128
"""As many terms as ONNX Runtime adds up in a block: panels of a multiple of them have the bits of whole products."""

_COMPARED_BYTES, _COMPARED_PANELS = 4 << 20, 2
_ELEMENT_BYTES = 4
_WINDOWS = (*WINDOW, PIXELS)


def compared_filters(filters: int, depth: int, panel: int) -> int:
    """Return how many filters are compared where it trains: all, or two panels of large ones and what is left."""
    return compared_rows(filters, depth, panel, most_bytes=_COMPARED_BYTES, panels=_COMPARED_PANELS)


def comparing_bytes(call: Call) -> int:
    """Return about what comparing a convolution by panels with a whole one takes."""
    filters, depth, _ = sizes(call)
    panel = call.integer("panel_rows", 1)
    compared = compared_filters(filters, depth, panel)
    x = call.input(1 if call.op_type.startswith(BACKWARD) else 0)
    made = x.shape[0] * compared * math.prod(call.integers("pixels"))
    return _ELEMENT_BYTES * compared * depth + 3 * x.size_bytes + 3 * _ELEMENT_BYTES * made + room_for_gradients(call)


def _made(context: ShapeContext) -> tuple[int, ...]:
    filters, _ = matrix_of(context.attributes["matrix"])
    return (context.type(0).shape[0], filters, *(int(size) for size in context.attributes["pixels"]))


def _convolved(context: ShapeContext) -> list[TensorType]:
    return [TensorType(FLOAT, _made(context))]


def _gradients(context: ShapeContext) -> list[TensorType]:
    return [context.type(1), *flag(context)]


def _expect_images(context: ShapeContext, index: int) -> None:
    shape = context.type(index).shape
    _, depth = matrix_of(context.attributes["matrix"])
    if len(shape) != 4 or shape[1] * math.prod(context.attributes["kernel"]) != depth:
        raise RuleError(f"{said(context, index)} is no image under filters of {depth} numbers")


def _convolution_fits(context: ShapeContext) -> None:
    _expect_images(context, 0)
    expect_count(context, 1, 1)
    if context.integer("biased", 0):
        expect(context, 2, _made(context)[1:2])


def _gradients_fit(context: ShapeContext) -> None:
    _expect_images(context, 1)
    expect(context, 0, _made(context))
    expect_count(context, 3, 1)


def room(call: Call) -> int:
    """Return the bytes of a panel of filters, and of the columns of all images."""
    filters, depth, _ = sizes(call)
    return _ELEMENT_BYTES * depth * (most_rows(filters, call.integer("panel_rows", 1)) + _windows(call))


def room_for_gradients(call: Call) -> int:
    """Return the same with what gradients need: as many columns, a piece of the filters' gradient, a panel's dY.

    It is the dY of several images, or of a strip that is not all of one.
    """
    filters, depth, _ = sizes(call)
    panel = call.integer("panel_rows", 1)
    windows, rows = _windows(call), piece_rows(filters, depth, panel)
    most = max(strips_of(call), default=0)
    turned = windows if call.input(0).shape[0] > 1 else most * (most < windows)
    return room(call) + _ELEMENT_BYTES * (depth * (windows + rows) + most_rows(filters, panel) * turned)


def _windows(call: Call) -> int:
    """Return the windows of all images."""
    return call.input(0).shape[0] * math.prod(call.integers("pixels"))


def _multiplied(call: Call) -> Work:
    filters, depth, _ = sizes(call)
    moved = call.read_bytes + call.written_bytes + _columns_bytes(call) + _ELEMENT_BYTES * filters * depth
    return Work(2 * filters * depth * _windows(call), 0, moved)


def _multiplied_for_both(call: Call) -> Work:
    """Return a product's work with the columns of images and those of their gradient."""
    product = _multiplied(call)
    return Work(product.matmul_flops, 0, product.moved_bytes + _columns_bytes(call))


def _columns_bytes(call: Call) -> int:
    """Return what writing and reading the columns of all images moves."""
    _, depth, _ = sizes(call)
    return 2 * _ELEMENT_BYTES * depth * _windows(call)


SPECS = [
    OpSpec(
        "ConvStored",
        POET_DOMAIN,
        shape=_convolved,
        check=_convolution_fits,
        work=_multiplied,
        storage=read_once,
        workspace=room,
        schema=Schema(
            "ConvStored(x, handle, bias?, after...) -> y: a convolution with filters in the store, and the bias.",
            (("y", "tensor(float)"),),
            (*PANELS, *_WINDOWS, Attribute("biased", "INT", "Whether there is a bias.")),
        ),
    ),
    *gradient_specs(
        BACKWARD,
        "filters",
        shape=_gradients,
        check=_gradients_fit,
        product=_multiplied_for_both,
        workspace=room_for_gradients,
        attributes=(*PANELS, *_WINDOWS, *STRIP),
    ),
    OpSpec(
        "CompareConvolution",
        POET_DOMAIN,
        planned=True,
        schema=Schema(
            "CompareConvolution(any) -> same: whether a convolution by panels has the bits of the whole one.",
            (("same", "tensor(bool)"),),
            (
                *PANELS,
                *_WINDOWS,
                Attribute("product", "INT", "The convolution, the gradient of its images or that of its filters."),
                Attribute("image", "INTS", "Shape of the images."),
                Attribute("ends", "INTS", "Padding behind the image."),
                *STRIP,
                Attribute("biased", "INT", "Whether a bias is added."),
            ),
        ),
        shape=flag,
    ),
]
"""Convolutions with stored filters, their gradients, and a comparison with whole ones."""
