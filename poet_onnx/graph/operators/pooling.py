"""Pooling and its gradients."""

from __future__ import annotations

import math

import onnx_ir as ir

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.graph.operators.fitting import expect
from poet_onnx.graph.operators.rules import nothing, per_input, per_output
from poet_onnx.graph.operators.shape_context import RuleError, ShapeContext, TensorType
from poet_onnx.graph.operators.spec import (
    MICROSOFT_DOMAIN,
    Attribute,
    Call,
    OpSpec,
    Schema,
    Work,
    elements,
    family,
)
from poet_onnx.graph.operators.windows import PIXELS, WINDOW, window_pixels


def _gradient_shape(context: ShapeContext) -> list[TensorType]:
    """The kernels take the output's shape from the model; MaxPoolGrad also knows the MaxPool that made its indices."""
    if context.declared[0] is not None:
        return [TensorType(context.type(0).dtype, context.declared[0].shape)]
    sources = context.source_types(1) if context.has(1) else ()
    if not sources or sources[0] is None:
        raise RuleError("only the model's value_info can tell, and it does not")
    return [TensorType(context.type(0).dtype, sources[0].shape)]


def _sizes(context: ShapeContext, name: str) -> tuple[int, ...]:
    return (*context.type(0).shape[:2], *(int(size) for size in context.attributes[name]))


def _kernel_shape(context: ShapeContext) -> list[TensorType]:
    return [TensorType(context.type(0).dtype, _sizes(context, "image"))]


def _pooled(context: ShapeContext) -> list[TensorType]:
    made = _sizes(context, "pixels")
    return [TensorType(context.type(0).dtype, made), TensorType(ir.DataType.UINT8, made)]


def _pool_fits(context: ShapeContext) -> None:
    """MaxPoolTaps(x): there is a size for each dimension of the image."""
    if len(_sizes(context, "pixels")) != len(context.type(0).shape):
        raise RuleError(f"it pools no image of shape {list(context.type(0).shape)}")


def _taps_fit(context: ShapeContext) -> None:
    """MaxPoolGradient(dY, taps): both are alike, and have as many dimensions as the image."""
    expect(context, 1, context.type(0).shape)
    if len(_sizes(context, "image")) != len(context.type(0).shape):
        raise RuleError(f"it makes no image of windows of shape {list(context.type(0).shape)}")


def _max_gradient_fits(context: ShapeContext) -> None:
    """MaxPoolGrad(dY, indices): what is declared of dX must be what was pooled."""
    pooled, whole = context.type(0), context.declared[0]
    expect(context, 1, pooled.shape)
    maker, sources = context.source_op(1), context.source_types(1)
    if maker not in ("", "MaxPool"):
        raise RuleError(f"its indices are made by {maker}, not by a MaxPool")
    read = sources[0] if sources else None
    if read is not None and whole is not None and whole.shape != read.shape:
        raise RuleError(
            f"its output is declared as {list(whole.shape)}, and the MaxPool that made its indices "
            f"read {list(read.shape)}"
        )


def _average_gradient_fits(context: ShapeContext) -> None:
    """AveragePoolGrad(dY): what is declared of dX must pool to dY."""
    if context.declared[0] is None:
        return
    whole = context.declared[0].shape
    if len(whole) < 3 or "kernel_shape" not in context.attributes:
        raise RuleError(f"it pools no image of shape {list(whole)}")
    pixels = window_pixels(context, whole[2:], context.numbers("kernel_shape", len(whole) - 2))
    if context.integer("ceil_mode", 0) and context.type(0).shape != (*whole[:2], *pixels):
        # Some versions of the kernels leave out a last window that would lie in the padding alone.
        strides, begins = context.numbers("strides", len(pixels)), context.numbers("pads", 2 * len(pixels), 0)
        starts = [(count - 1) * stride - begin for count, stride, begin in zip(pixels, strides, begins, strict=False)]
        pixels = tuple(count - (start >= size) for count, start, size in zip(pixels, starts, whole[2:], strict=True))
    expect(context, 0, (*whole[:2], *pixels))


def _window_work(call: Call) -> Work:
    """Return the work of pooling: one operation for each tap of each window."""
    return _work_of_taps(call, max(map(elements, call.outputs), default=0))


def _taps_work(call: Call) -> Work:
    return _work_of_taps(call, elements(call.output(0)), "kernel")


def _window_gradient_work(call: Call) -> Work:
    return _work_of_taps(call, elements(call.input(0)))


def _work_of_taps(call: Call, windows: int, kernel: str = "kernel_shape") -> Work:
    taps = math.prod(call.integers(kernel))
    return Work(0, windows * taps, call.read_bytes + call.written_bytes)


SPECS = [
    *family("MaxPool AveragePool LpPool", work=_window_work, workspace=nothing),
    *family("GlobalAveragePool GlobalMaxPool", work=per_input(1), workspace=nothing),
    *family("GlobalLpPool MaxUnpool", workspace=nothing),
    OpSpec(
        "MaxPoolGrad",
        MICROSOFT_DOMAIN,
        shape=_gradient_shape,
        check=_max_gradient_fits,
        work=per_output(1),
        workspace=nothing,
    ),
    OpSpec(
        "MaxPoolTaps",
        POET_DOMAIN,
        shape=_pooled,
        check=_pool_fits,
        work=_taps_work,
        workspace=nothing,
        schema=Schema(
            "MaxPoolTaps(x) -> y, taps: the maximum of each window, and which of its taps sees it first.",
            (("y", "tensor(float)"), ("taps", "tensor(uint8)")),
            (*WINDOW, PIXELS),
        ),
    ),
    OpSpec(
        "MaxPoolGradient",
        POET_DOMAIN,
        shape=_kernel_shape,
        check=_taps_fit,
        work=per_output(1),
        workspace=nothing,
        schema=Schema(
            "MaxPoolGradient(dY, taps) -> dX: zeros to which every element of dY is added where its window's tap is.",
            (("dX", "tensor(float)"),),
            (*WINDOW, Attribute("image", "INTS", "Sizes of each of its images.")),
        ),
    ),
    OpSpec(
        "AveragePoolGrad",
        MICROSOFT_DOMAIN,
        shape=_gradient_shape,
        check=_average_gradient_fits,
        work=_window_gradient_work,
        workspace=nothing,
    ),
]
"""Pooling."""
