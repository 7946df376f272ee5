"""Convolutions and their gradients: multiply-adds, the columns that the kernels unfold, and what fits together.

An image is [N, C, pixels...], the weight of a convolution [Cout, Cin/group, kernel...] and that of a transposed one
[Cin, Cout/group, kernel...].
"""

from __future__ import annotations

import math

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.graph.operators.fitting import expect, expect_one_dtype, said
from poet_onnx.graph.operators.rules import nothing, product, product_and_bias, times_tensors, together
from poet_onnx.graph.operators.sgemm import COLUMN_ALIGNMENT, FLOPS_PER_THREAD, MOST_THREADS
from poet_onnx.graph.operators.shape_context import RuleError, ShapeContext, TensorType
from poet_onnx.graph.operators.spec import (
    BUFFER,
    MICROSOFT_DOMAIN,
    Attribute,
    Call,
    OpSpec,
    Schema,
    Work,
    elements,
    family,
)
from poet_onnx.graph.operators.windows import PIXELS, STRIP, WINDOW, follows_size, strips_of, window_pixels
from poet_onnx.graph.training_graph import Tensor

_CONV_BUFFER_BYTES = 128 * 128 * 4  # MLAS_CONV_WORKING_BUFFER_SIZE_PER_THREAD floats
_GROUP = 8  # kGroup in ops/kernels/vector_loops.h: floats that are summed apart
_CACHE_LINE = 16  # floats
_SLIDING = ("kernel", "strides")  # 1 where a window is a pixel


def _conv_grad_shape(context: ShapeContext) -> list[TensorType]:
    data, weight = context.type(1), context.type(2)
    return [data, weight, TensorType(weight.dtype, weight.shape[:1])]


def _conv_transpose_grad_shape(context: ShapeContext) -> list[TensorType]:
    data, weight = context.type(1), context.type(2)
    return [data, weight, TensorType(weight.dtype, (weight.shape[1] * context.integer("group", 1),))]


def _weight_gradient_shape(context: ShapeContext, groups: int) -> list[TensorType]:
    d_y, image = context.type(0), context.type(1)
    kernel = (int(size) for size in context.attributes["kernel"])
    return [TensorType(d_y.dtype, (d_y.shape[1], image.shape[1] // groups, *kernel))]


def _grouped_shape(context: ShapeContext) -> list[TensorType]:
    return _weight_gradient_shape(context, context.integer("group", 1))


def _depthwise_shape(context: ShapeContext) -> list[TensorType]:
    return _weight_gradient_shape(context, context.type(1).shape[1])


def _depthwise_data_shape(context: ShapeContext) -> list[TensorType]:
    d_y = context.type(0)
    return [TensorType(d_y.dtype, (*d_y.shape[:2], *(int(size) for size in context.attributes["image"])))]


def _conv_grad_fits(context: ShapeContext) -> None:
    image, weight = context.type(1), context.type(2)
    groups = context.integer("group", 1)
    if len(image.shape) < 3 or len(weight.shape) != len(image.shape):
        raise RuleError(f"{said(context, 1)} and {said(context, 2)} are no image and no filters over it")
    if groups < 1 or weight.shape[0] % groups or image.shape[1] != weight.shape[1] * groups:
        raise RuleError(f"{said(context, 1)} and {said(context, 2)} do not make {groups} groups")
    kernel = weight.shape[2:]
    if context.numbers("kernel_shape", len(kernel), None) not in ((), kernel):
        raise RuleError(f"its kernel_shape is not that of {said(context, 2)}".rstrip(","))
    expect(context, 0, (image.shape[0], weight.shape[0], *window_pixels(context, image.shape[2:], kernel)))
    expect_one_dtype(context, 0, 1, 2)


def _conv_flops(call: Call) -> int:
    # Every output element is a dot product over Cin/group x kernel.
    return 2 * elements(call.output(0)) * math.prod(call.input(1).shape[1:])


def _conv_transpose_flops(call: Call) -> int:
    # Every input element is spread over Cout/group x kernel outputs; so is dY of a convolution over dX.
    return 2 * elements(call.input(0)) * math.prod(call.input(1).shape[1:])


def _depthwise_flops(call: Call) -> int:
    # Every element of dY meets one pixel under each tap of its filter.
    return 2 * elements(call.input(0)) * math.prod(call.output(0).shape[1:])


def _data_gradient_shape(context: ShapeContext) -> list[TensorType]:
    d_y, weight = context.type(0), context.type(1)
    image = (int(size) for size in context.attributes["image"])
    return [TensorType(d_y.dtype, (d_y.shape[0], weight.shape[1] * context.integer("group", 1), *image))]


def _conv_grad_work(call: Call) -> Work:
    """Return the work of (dY, X, W) -> (dX, dW, dB): dX and dW each repeat the forward products.

    Each of them also writes and reads every image's columns, Cin x kernel x output pixels.
    """
    d_y, weight = call.input(0), call.input(2)
    taps, products = math.prod(weight.shape[1:]), sum(1 for tensor in call.outputs[:2] if tensor)
    bias = elements(d_y) if len(call.outputs) > 2 and call.outputs[2] else 0
    columns = call.integer("group", 1) * taps * math.prod(d_y.shape[2:]) * d_y.shape[0]
    moved_bytes = call.read_bytes + call.written_bytes + 2 * 4 * columns * products
    return Work(2 * elements(d_y) * taps * products + bias, 0, moved_bytes)


def _conv_transpose_grad_flops(call: Call) -> int:
    forward = 2 * elements(call.input(1)) * math.prod(call.input(2).shape[1:])
    return forward * sum(1 for tensor in call.outputs[:2] if tensor)


def _conv_workspace(call: Call) -> int:
    # MlasConvPrepare: a pointwise product needs nothing; few output pixels: all columns; else one block per thread.
    # A thread of onnxruntime 1.31 works at whole images or groups, one of onnxruntime-training 1.19.2 at parts; one of
    # 1.23 to 1.26 has room for the columns of an image, or for what becomes of it.
    x, weight, y = call.input(0), call.input(1), call.output(0)
    groups = call.integer("group", 1)
    kernel, pixels = weight.shape[2:], math.prod(y.shape[2:])
    filters, depth = weight.shape[0] // groups, math.prod(weight.shape[1:])
    if pixels == 0 or y.shape[0] == 0:
        return 0
    if len(kernel) > 3:
        return 4 * depth * pixels
    if _multiplies_input_directly(call, x, weight):
        return 0
    if filters > pixels:
        return 4 * depth * pixels
    products = y.shape[0] * groups
    whole = min(products, call.threads) if products > 1 else 1
    buffers_bytes = _CONV_BUFFER_BYTES * max(whole, _conv_threads(filters * pixels * depth, pixels, call.threads))
    if call.whole_columns and products > 1:
        return max(buffers_bytes, 4 * max(depth, filters) * pixels * whole)
    return buffers_bytes


def _multiplies_input_directly(call: Call, x: Tensor, weight: Tensor) -> bool:
    kernel, image = weight.shape[2:], x.shape[2:]
    strides, dilations = call.integers("strides"), call.integers("dilations")
    if any(stride != 1 for stride in strides) or not _is_unpadded(call, kernel):
        return False
    if math.prod(kernel) == 1:
        return True
    if len(kernel) > 2 or any(dilation != 1 for dilation in dilations) or weight.shape[1] != 1:
        return False
    kernel_2d, image_2d = ((1, *kernel), (1, *image)) if len(kernel) == 1 else (kernel, image)
    return kernel_2d[1] == image_2d[1] or (kernel_2d[0] == image_2d[0] and kernel_2d[1] == 1)


def _is_unpadded(call: Call, kernel: tuple[int, ...]) -> bool:
    automatic = call.attributes.get("auto_pad", "NOTSET")
    if follows_size(automatic):
        # With stride 1 the padding is dilation x (kernel - 1).
        return all(size == 1 for size in kernel)
    return automatic == "VALID" or not any(call.integers("pads"))


def _conv_threads(multiply_adds: int, pixels: int, threads: int) -> int:
    most = min(threads, MOST_THREADS)
    wanted = min(multiply_adds // FLOPS_PER_THREAD + 1, most)
    if wanted <= 1:
        return 1
    stride = math.ceil(math.ceil(pixels / wanted) / COLUMN_ALIGNMENT) * COLUMN_ALIGNMENT
    if stride >= pixels:
        return 1
    return wanted - 1 if stride * (wanted - 1) >= pixels else wanted


def _conv_grad_buffers(call: Call) -> tuple[int, int]:
    # The columns of one image and one group, and a vector of ones for the bias, whether they are needed or not.
    pixels = math.prod(call.input(0).shape[2:])
    return 4 * math.prod(call.input(2).shape[1:]) * pixels, 4 * pixels


def _conv_transpose_workspace(call: Call) -> int:
    return 4 * math.prod(call.input(1).shape[1:]) * math.prod(call.input(0).shape[2:])


def _byte_columns(call: Call) -> int:
    return math.prod(call.input(1).shape[1:]) * math.prod(call.output(0).shape[2:])


def _weight_gradient_work(call: Call) -> Work:
    """Return the work of (dY, X) -> dW: each element of dY meets what its filter's taps see.

    Besides it copies columns, and dY of several images: parts of a gradient unfold the image again, each of them.
    """
    d_y, weight = call.input(0), call.output(0)
    turned_bytes, columns_bytes, product_bytes = _weight_gradient_rooms(call)
    times = len(strips_of(call))
    blocks = call.integer("group", 1) * -(-math.prod(weight.shape[1:]) // call.integer("columns", 1))
    copied_bytes = blocks * times * (turned_bytes + columns_bytes)
    added_bytes = max(0, times - 1) * weight.size_bytes
    moved_bytes = call.read_bytes + call.written_bytes + 2 * (copied_bytes + blocks * product_bytes + added_bytes)
    return Work(2 * elements(d_y) * math.prod(weight.shape[1:]), copied_bytes // 4, moved_bytes)


def _weight_gradient_rooms(call: Call) -> tuple[int, int, int]:
    """Return the bytes of a strip of dY, of its columns, and of some columns of dW: see ops/kernels/conv_weight.cpp."""
    weight = call.output(0)
    depth = math.prod(weight.shape[1:])
    filters, columns = weight.shape[0] // call.integer("group", 1), min(call.integer("columns", 1), depth)
    windows = max(strips_of(call), default=0)
    are_images, is_direct = _copies_nothing(call, windows, call.input(1))
    product = filters * columns if columns < depth and windows else 0
    return 4 * filters * windows * (not are_images), 4 * columns * windows * (not is_direct), 4 * product


def _copies_nothing(call: Call, windows: int, image: Tensor) -> tuple[bool, bool]:
    """Return whether strips are images, and whether their columns then are the image as well."""
    pixels = call.input(0).shape[2:]
    slides = any((*call.integers("begins"), *(size - 1 for name in _SLIDING for size in call.integers(name))))
    are_images = windows == math.prod(pixels)
    return are_images, are_images and not slides and image.shape[2:] == pixels


def _data_gradient_work(call: Call) -> Work:
    """Return the work of (dY, W) -> dX: what ConvTranspose does, and the copies of dY where it has some."""
    turned_bytes, columns_bytes = _data_gradient_rooms(call)
    copied_bytes = len(strips_of(call)) * (turned_bytes + call.integer("group", 1) * columns_bytes)
    moved_bytes = call.read_bytes + call.written_bytes + 2 * copied_bytes
    return Work(_conv_transpose_flops(call), copied_bytes // 4, moved_bytes)


def _data_gradient_rooms(call: Call) -> tuple[int, int]:
    """Return the bytes of a strip of dY and of its columns: see ops/kernels/conv_data.cpp."""
    d_y = call.input(0)
    windows = max(strips_of(call), default=0)
    are_images, is_direct = _copies_nothing(call, windows, call.output(0))
    turned = 0 if are_images else d_y.shape[1] * windows
    return 4 * turned, 0 if is_direct else 4 * math.prod(call.input(1).shape[1:]) * windows


def _depthwise_rooms(call: Call) -> int:
    """Return the bytes of a padded channel and of sums, for each thread: see ops/kernels/depthwise.cpp."""
    gradient, image = call.input(0).shape, call.input(1).shape
    if not math.prod(gradient[2:]):
        return 0
    sides = []
    for axis in (0, 1):
        taps, stride, dilation, begin = (
            call.integers(name)[axis] for name in ("kernel", "strides", "dilations", "begins")
        )
        reach = (gradient[2 + axis] - 1) * stride + (taps - 1) * dilation + 1
        side = max(begin + image[2 + axis], reach)
        sides.append(math.ceil(side / stride) * stride if axis else side)
    sums = math.prod(call.integers("kernel")) * gradient[1] // image[1]
    floats = (2 + _GROUP) * sums + math.prod(sides) + _GROUP
    return min(call.threads, image[1]) * 4 * _CACHE_LINE * math.ceil(floats / _CACHE_LINE)


SPECS = [
    OpSpec("Conv", work=product_and_bias(_conv_flops), workspace=_conv_workspace),
    OpSpec("FusedConv", MICROSOFT_DOMAIN, work=product(_conv_flops), workspace=_conv_workspace),
    OpSpec("ConvTranspose", work=product_and_bias(_conv_transpose_flops), workspace=_conv_transpose_workspace),
    OpSpec(
        "ConvGrad",
        MICROSOFT_DOMAIN,
        shape=_conv_grad_shape,
        check=_conv_grad_fits,
        work=_conv_grad_work,
        workspace=together(_conv_grad_buffers),
        allocation_order=(1, BUFFER, BUFFER, 2, 0),  # conv_grad.cc
        buffers=_conv_grad_buffers,
    ),
    OpSpec(
        "ConvTransposeGrad",
        MICROSOFT_DOMAIN,
        shape=_conv_transpose_grad_shape,
        work=product(_conv_transpose_grad_flops),
        cpu_kernel=False,
    ),
    OpSpec(
        "ConvDataGradient",
        POET_DOMAIN,
        shape=_data_gradient_shape,
        work=_data_gradient_work,
        workspace=together(_data_gradient_rooms),
        schema=Schema(
            "ConvDataGradient(dY, W) -> dX: the images' gradient of a convolution.",
            (("dX", "tensor(float)"),),
            (
                Attribute("image", "INTS", "Rows and columns of dX."),
                *WINDOW,
                PIXELS,
                Attribute("group", "INT", "Groups of channels and filters."),
                *STRIP,
            ),
        ),
    ),
    OpSpec(
        "ConvWeightGradient",
        POET_DOMAIN,
        shape=_grouped_shape,
        work=_weight_gradient_work,
        workspace=together(_weight_gradient_rooms),
        schema=Schema(
            "ConvWeightGradient(dY, X) -> dW: the filters' gradient of a convolution of images.",
            (("dW", "tensor(float)"),),
            (
                *WINDOW,
                PIXELS,
                Attribute("group", "INT", "Groups of channels and filters."),
                *STRIP,
                Attribute("columns", "INT", "Rows of a group's columns that are made at once."),
            ),
        ),
    ),
    OpSpec(
        "DepthwiseWeightGradient",
        POET_DOMAIN,
        shape=_depthwise_shape,
        work=product(_depthwise_flops),
        workspace=_depthwise_rooms,
        schema=Schema(
            "DepthwiseWeightGradient(dY, X) -> dW: the weight's gradient of a convolution with filters for every "
            "channel.",
            (("dW", "tensor(float)"),),
            WINDOW,
        ),
    ),
    OpSpec(
        "DepthwiseDataGradient",
        POET_DOMAIN,
        shape=_depthwise_data_shape,
        work=product(_conv_transpose_flops),
        workspace=nothing,
        schema=Schema(
            "DepthwiseDataGradient(dY, W) -> dX: the input's gradient of a convolution with one filter for every "
            "channel.",
            (("dX", "tensor(float)"),),
            (Attribute("image", "INTS", "Rows and columns of dX."), *WINDOW),
        ),
    ),
    OpSpec("ConvInteger", workspace=_byte_columns),
    OpSpec("DeformConv", estimate=times_tensors(4)),
    *family("QLinearConv ConvTransposeWithDynamicPads", MICROSOFT_DOMAIN, estimate=times_tensors(4)),
    OpSpec("Col2Im", workspace=nothing),
]
"""Convolutions."""
