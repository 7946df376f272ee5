"""Transposed convolutions, folds, pooling, pixels of depth, and normalizations of instances, vectors and channels."""

from __future__ import annotations

import numpy as np
import torch
from gradient_case import Case
from torch.nn import functional

FLOAT_ONLY = "ONNX Runtime's kernel of the gradient takes float alone"


def _transposed(name: str, weight: tuple[int, ...], attributes: str, *, bias: bool = False, **options: int) -> Case:
    inputs = {"x": (2, 4, *(5, 6)[: len(weight) - 2]), "w": weight}
    if bias:
        inputs["b"] = (weight[1] * options.get("groups", 1),)
    function = (functional.conv_transpose1d, functional.conv_transpose2d)[len(weight) - 3]
    return Case(
        f"ConvTranspose {name}",
        f"y = ConvTranspose <{attributes}> (x, w{', b' if bias else ''})",
        inputs,
        lambda *arguments: function(*arguments, **options),
        single=FLOAT_ONLY,
    )


CASES = [
    _transposed("of one dimension", (4, 3, 3), "kernel_shape = [3]", bias=True),
    _transposed(
        "of one dimension with strides",
        (4, 3, 4),
        "strides = [2], pads = [1, 1]",
        stride=2,
        padding=1,
    ),
    _transposed("plain", (4, 3, 3, 3), "kernel_shape = [3, 3]"),
    _transposed(
        "with output_padding",
        (4, 3, 3, 3),
        "strides = [2, 2], pads = [1, 1, 1, 1], output_padding = [1, 1]",
        bias=True,
        stride=2,
        padding=1,
        output_padding=1,
    ),
    _transposed("in groups", (4, 3, 2, 2), "group = 2, strides = [2, 2]", bias=True, groups=2, stride=2),
    _transposed("with dilations", (4, 3, 3, 3), "dilations = [2, 2], pads = [1, 1, 1, 1]", dilation=2, padding=1),
    _transposed("depthwise", (4, 1, 3, 3), "group = 4, strides = [3, 3]", groups=4, stride=3),
    *(
        Case(
            f"InstanceNormalization of shape {shape}",
            "y = InstanceNormalization <epsilon = 0.001> (x, s, b)",
            {"x": shape, "s": (3,), "b": (3,)},
            lambda x, s, b: functional.instance_norm(x, None, None, s, b, eps=0.001),
            single=FLOAT_ONLY,
            error=5e-6,
        )
        for shape in ((2, 3, 9), (2, 3, 4, 5), (1, 3, 2, 3, 4))
    ),
    Case(
        "InstanceNormalization whose scale is fixed",
        "y = InstanceNormalization(x, s, b)",
        {"x": (2, 3, 9)},
        lambda x, s, b: functional.instance_norm(x, None, None, s, b),
        {"s": np.array([1.0, 2.0, -1.0]), "b": np.zeros(3)},
        single=FLOAT_ONLY,
        error=5e-6,
    ),
    *(
        Case(
            f"LpNormalization of order {order} along axis {axis}",
            f"y = LpNormalization <p = {order}, axis = {axis}> (x)",
            {"x": (2, 3, 4)},
            lambda x, order=order, axis=axis: functional.normalize(x, order, axis),
        )
        for order in (1, 2)
        for axis in (-1, 1)
    ),
    Case(
        "LpNormalization of a row of zeros",
        "y = LpNormalization(x)",
        {"x": np.array([[3.0, 4.0], [0.0, 0.0]])},
        lambda x: torch.cat((functional.normalize(x[:1], 2, 1), 0 * x[1:])),
    ),
    *(
        Case(
            f"LRN of {size} channels",
            f"y = LRN <size = {size}, alpha = 0.4, beta = {beta}, bias = {bias}> (x)",
            {"x": (2, 6, 3, 4)},
            lambda x, size=size, beta=beta, bias=bias: functional.local_response_norm(x, size, 0.4, beta, bias),
            single="ONNX Runtime's kernel takes float alone",
        )
        for size, beta, bias in ((1, 0.5, 1.0), (3, 0.75, 2.0), (5, 0.75, 1.0))
    ),
    *(
        Case(
            f"Col2Im {name}",
            f"y = Col2Im <{attributes}> (x, image, block)",
            {"x": (2, 3 * block[0] * block[1], columns)},
            lambda x, _, block, options=options: functional.fold(x, (5, 6), tuple(block.tolist()), **options),
            {"image": np.array([5, 6]), "block": np.array(block)},
            single="ONNX Runtime's kernel takes float alone",
            opset=18,
        )
        for name, attributes, block, columns, options in (
            ("plain", "pads = [0, 0, 0, 0]", (2, 2), 20, {}),
            (
                "with strides and padding",
                "strides = [2, 1], pads = [1, 1, 1, 1]",
                (3, 2),
                21,
                {"stride": (2, 1), "padding": 1},
            ),
            ("with dilations", "dilations = [2, 1]", (2, 3), 12, {"dilation": (2, 1)}),
        )
    ),
    *(
        Case(
            f"GlobalMaxPool of shape {shape}",
            "y = GlobalMaxPool(x)",
            {"x": shape},
            lambda x: x.flatten(2).amax(2).reshape(*x.shape[:2], *(1,) * (x.dim() - 2)),
            single="the kernel takes float alone",
        )
        for shape in ((2, 3, 7), (2, 3, 4, 5))
    ),
    *(
        Case(
            f"LpPool of order {order} {how}",
            f"y = LpPool <p = {order}, kernel_shape = [3, 3], strides = [{stride}, {stride}], pads = [{pads}]> (x)",
            {"x": (2, 3, 7, 7)},
            lambda x, order=order, stride=stride, pad=pad: (
                (functional.avg_pool2d(x.abs() ** order, 3, stride, padding=pad) * 9) ** (1 / order)
            ),
            single=FLOAT_ONLY,
        )
        for order in (1, 2, 3)
        for how, stride, pad, pads in (("without padding", 2, 0, "0, 0, 0, 0"), ("with padding", 1, 1, "1, 1, 1, 1"))
    ),
    Case(
        "MaxPool of one dimension",
        "y = MaxPool <kernel_shape = [3], strides = [2], pads = [1, 1]> (x)",
        {"x": (2, 3, 9)},
        lambda x: functional.max_pool1d(x, 3, 2, 1),
        single=FLOAT_ONLY,
    ),
    Case(
        "MaxPool with dilations",
        "y = MaxPool <kernel_shape = [2, 2], dilations = [2, 2]> (x)",
        {"x": (2, 3, 7, 7)},
        lambda x: functional.max_pool2d(x, 2, 1, dilation=2),
        single=FLOAT_ONLY,
    ),
    Case(
        "MaxPool with ceil_mode",
        "y = MaxPool <kernel_shape = [2, 2], strides = [2, 2], ceil_mode = 1> (x)",
        {"x": (2, 3, 7, 7)},
        lambda x: functional.max_pool2d(x, 2, 2, ceil_mode=True),
        single=FLOAT_ONLY,
    ),
    *(
        Case(
            f"AveragePool of {len(size)} dimensions with ceil_mode that counts a padding of {pad}",
            f"y = AveragePool <kernel_shape = {[3] * len(size)}, strides = {[2] * len(size)},"
            f" pads = {[pad] * 2 * len(size)}, ceil_mode = 1, count_include_pad = 1> (x)",
            {"x": (2, 3, *size)},
            lambda x, average=average, pad=pad: average(x, 3, 2, pad, ceil_mode=True),
            single=FLOAT_ONLY,
        )
        for average, size in (
            (functional.avg_pool1d, (8,)),
            (functional.avg_pool2d, (6, 8)),
            (functional.avg_pool3d, (4, 6, 5)),
        )
        for pad in (0, 1)
    ),
    Case(
        "MaxPool of three dimensions",
        "y = MaxPool <kernel_shape = [2, 2, 2], strides = [2, 2, 2]> (x)",
        {"x": (2, 3, 4, 4, 4)},
        lambda x: functional.max_pool3d(x, 2, 2),
        single=FLOAT_ONLY,
    ),
    Case(
        "SpaceToDepth",
        "y = SpaceToDepth <blocksize = 2> (x)",
        {"x": (2, 3, 4, 6)},
        lambda x: x.reshape(2, 3, 2, 2, 3, 2).permute(0, 3, 5, 1, 2, 4).reshape(2, 12, 2, 3),
    ),
    Case(
        "DepthToSpace, depth first",
        "y = DepthToSpace <blocksize = 2> (x)",
        {"x": (2, 12, 2, 3)},
        lambda x: x.reshape(2, 2, 2, 3, 2, 3).permute(0, 3, 4, 1, 5, 2).reshape(2, 3, 4, 6),
    ),
    Case(
        "DepthToSpace, columns first",
        'y = DepthToSpace <blocksize = 2, mode = "CRD"> (x)',
        {"x": (2, 12, 2, 3)},
        lambda x: functional.pixel_shuffle(x, 2),
    ),
]
