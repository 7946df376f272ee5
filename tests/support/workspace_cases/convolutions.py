"""Convolutions."""

from __future__ import annotations

from typing import Any

from workspace_case import MS, Case

X = (2, 6, 9, 8)
WINDOW = {"kernel": [3, 5], "strides": [2, 1], "dilations": [1, 1], "begins": [1, 2], "pixels": [5, 8]}
LONG = {"kernel": [2, 5], "strides": [1, 1], "dilations": [1, 1], "begins": [0, 2], "pixels": [1, 256]}
POINT = {"kernel": [1, 1], "strides": [1, 1], "dilations": [1, 1], "begins": [0, 0], "pixels": [5, 8]}


def conv_shapes(
    n: int, cin: int, cout: int, size: int, k: int, *, stride: int = 1, pad: int = 0, dilation: int = 1, group: int = 1
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """Return the shapes of X, W and Y and the attributes of a square convolution."""
    out = (size + 2 * pad - ((k - 1) * dilation + 1)) // stride + 1
    attributes = {"kernel_shape": [k, k], "strides": [stride] * 2, "pads": [pad] * 4}
    attributes |= {"dilations": [dilation] * 2, "group": group}
    return (n, cin, size, size), (cout, cin // group, k, k), (n, cout, out, out), attributes


def conv_cases() -> list[Case]:
    sweep = [
        ((1, 16, 16, 12, 3), {"pad": 1}),
        ((2, 16, 16, 12, 3), {"pad": 1}),
        ((1, 16, 160, 12, 3), {"pad": 1}),
        ((2, 64, 200, 12, 3), {"pad": 1, "group": 2}),
        ((1, 32, 32, 12, 3), {"pad": 1, "group": 32}),
        ((2, 32, 64, 2, 1), {"group": 32}),
        ((1, 160, 16, 32, 3), {"pad": 1, "group": 2}),
        ((2, 256, 256, 4, 3), {"pad": 1}),
        ((2, 256, 512, 4, 3), {"pad": 1, "stride": 2}),
        ((1, 16, 16, 12, 1), {}),
        ((1, 16, 16, 12, 1), {"stride": 2}),
        ((3, 160, 160, 32, 1), {"stride": 2}),
        ((1, 160, 40, 32, 1), {"pad": 1}),
        ((1, 32, 16, 32, 3), {"dilation": 2}),
        ((1, 3, 64, 32, 7), {"stride": 2, "pad": 3}),
        ((3, 2, 3, 8, 8), {}),
        ((3, 4, 4, 8, 8), {"group": 4}),
        ((1, 1, 3, 8, 8), {}),
        ((1, 1, 70, 8, 3), {"pad": 1}),
        ((1, 64, 64, 32, 3), {"pad": 1}),
        ((1, 64, 64, 7, 3), {"pad": 1}),
        ((1, 64, 64, 8, 3), {"pad": 1}),
    ]
    cases = []
    for arguments, options in sweep:
        x, w, y, attributes = conv_shapes(*arguments, **options)
        cases += [Case("Conv", (x, w), (y,), attributes, threads=threads) for threads in (1, 2)]
        cases.append(Case("Conv", (x, w, (w[0],)), (y,), attributes))
        gradients: tuple[tuple[Any, ...], ...] = ((x, w, (w[0],)), (x, w, None), (x, None, None), (None, w, (w[0],)))
        cases += [
            Case("ConvGrad", (y, x, w), outputs, attributes | {"auto_pad": "NOTSET"}, MS) for outputs in gradients
        ]
    one = {"kernel_shape": [3], "pads": [1, 1]}
    cases.append(Case("Conv", ((2, 4, 40), (6, 4, 3)), ((2, 6, 40),), one))
    cases.append(Case("Conv", ((2, 4, 4), (6, 4, 3)), ((2, 6, 4),), one))
    cases.append(Case("Conv", ((1, 1, 9), (6, 1, 9)), ((1, 6, 1),), {"kernel_shape": [9]}))
    cases.append(Case("ConvGrad", ((2, 6, 40), (2, 4, 40), (6, 4, 3)), ((2, 4, 40), (6, 4, 3), (6,)), one, MS))
    three = {"kernel_shape": [3, 3, 3], "pads": [1] * 6}
    cases.append(Case("Conv", ((1, 4, 5, 6, 7), (6, 4, 3, 3, 3)), ((1, 6, 5, 6, 7),), three))
    for kind in ("SAME_UPPER", "SAME_LOWER", "VALID"):
        y = (1, 5, 9, 9) if kind != "VALID" else (1, 5, 7, 7)
        cases.append(Case("Conv", ((1, 4, 9, 9), (5, 4, 3, 3)), (y,), {"auto_pad": kind}))
        cases.append(Case("Conv", ((1, 4, 9, 9), (5, 4, 1, 1)), ((1, 5, 9, 9),), {"auto_pad": kind}))
    return cases


def depthwise_cases() -> list[Case]:
    """Return gradients of filters, whose kernel takes a padded image and sums for each thread."""
    sweep = [
        ((2, 6, 9, 8), (2, 6, 9, 8), {"kernel": [3, 3], "strides": [1, 1], "begins": [1, 1]}),
        ((2, 6, 9, 8), (2, 12, 5, 8), {"kernel": [3, 5], "strides": [2, 1], "begins": [1, 2]}),
        ((1, 3, 20, 17), (1, 3, 8, 5), {"kernel": [4, 5], "strides": [2, 3], "begins": [0, 0]}),
        ((1, 2, 7, 7), (1, 2, 7, 7), {"kernel": [3, 3], "strides": [1, 1], "begins": [2, 2], "dilations": [2, 2]}),
    ]
    return [
        Case(
            "DepthwiseWeightGradient",
            (y, x),
            ((y[1], 1, *attributes["kernel"]),),
            {"dilations": [1, 1], **attributes},
            "poet",
            threads=threads,
        )
        for x, y, attributes in sweep
        for threads in (1, 2, 5)
    ]


def weight_gradient_cases() -> list[Case]:
    """Return gradients of filters, whose kernel takes some columns, their product, and dY of some windows."""
    return [
        Case(
            "ConvWeightGradient",
            ((batch, 12, *sliding["pixels"]), (batch, 6, *image)),
            ((12, 6 // group, *sliding["kernel"]),),
            {**sliding, "group": group, "images": images, "rows": rows, "columns": columns},
            "poet",
        )
        for sliding, image in ((WINDOW, [9, 8]), (POINT, [5, 8]), (LONG, [2, 256]))
        for batch in (1, 3)
        for group in (1, 2)
        for images, rows in ((1, 2), (1, 5), (2, 2))
        for columns in (1, 7, 90)
    ]


def data_gradient_cases() -> list[Case]:
    """Return gradients of images, whose kernel takes the columns of some windows, and their dY."""
    return [
        Case(
            "ConvDataGradient",
            ((batch, 12, *sliding["pixels"]), (12, 6 // group, *sliding["kernel"])),
            ((batch, 6, *image),),
            {**sliding, "image": image, "group": group, "images": images, "rows": rows},
            "poet",
        )
        for sliding, image in ((WINDOW, [9, 8]), (POINT, [5, 8]), (LONG, [2, 256]))
        for batch in (1, 3)
        for group in (1, 2)
        for images, rows in ((1, 2), (1, 5), (2, 2), (4, 5))
    ]


CASES = [*conv_cases(), *depthwise_cases(), *weight_gradient_cases(), *data_gradient_cases()]
