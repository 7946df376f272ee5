"""Windows whose padding follows from `auto_pad` or `output_shape`, and averages that AveragePoolGrad gets wrong."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from gradient_case import Case
from torch.nn import functional

FLOAT_ONLY = "ONNX Runtime's kernels of windows take float alone"


def _averages(x: torch.Tensor, kernel: int, stride: int, dilation: int = 1) -> torch.Tensor:
    """Return means of two-dimensional windows, one pixel after the other."""
    rows, columns = ((size - dilation * (kernel - 1) - 1) // stride + 1 for size in x.shape[2:])
    taps = [
        x[..., dilation * i :: stride, dilation * j :: stride][..., :rows, :columns]
        for i in range(kernel)
        for j in range(kernel)
    ]
    return torch.stack(taps).mean(0)


def _convolution(mode: str, pads: Sequence[int], stride: int) -> Case:
    return Case(
        f"Conv with {mode} and strides of {stride}",
        f'y = Conv <auto_pad = "{mode}", strides = [{stride}, {stride}]> (x, w, b)',
        {"x": (2, 4, 7, 8), "w": (6, 4, 4, 3), "b": (6,)},
        lambda x, w, b: functional.conv2d(functional.pad(x, tuple(pads)), w, b, stride),
        single=FLOAT_ONLY,
    )


def _transposed(name: str, attributes: str, cut: tuple[int, int, int, int], **options: int) -> Case:
    """Return a case whose result is that without padding, cut on the left, right, top and bottom."""
    left, right, top, bottom = cut

    def whole(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = functional.conv_transpose2d(x, w, **options)
        return y[..., top : y.shape[2] - bottom, left : y.shape[3] - right]

    return Case(
        f"ConvTranspose with {name}",
        f"y = ConvTranspose <{attributes}> (x, w)",
        {"x": (2, 4, 5, 6), "w": (4, 3, 3, 3)},
        whole,
        single=FLOAT_ONLY,
    )


CASES = [
    _convolution("SAME_UPPER", (1, 1, 1, 2), 1),
    _convolution("SAME_LOWER", (1, 1, 2, 1), 1),
    _convolution("SAME_UPPER", (0, 1, 1, 2), 2),
    _convolution("SAME_LOWER", (1, 0, 2, 1), 2),
    _convolution("VALID", (0, 0, 0, 0), 2),
    _transposed("SAME_UPPER", 'auto_pad = "SAME_UPPER", strides = [2, 2]', (0, 1, 0, 1), stride=2),
    _transposed("SAME_LOWER", 'auto_pad = "SAME_LOWER", strides = [2, 2]', (1, 0, 1, 0), stride=2),
    _transposed("output_shape", "output_shape = [8, 11], strides = [2, 2]", (1, 1, 2, 1), stride=2),
    *(
        Case(
            f"{op_type} with SAME_UPPER",
            f'y = {op_type} <auto_pad = "SAME_UPPER", kernel_shape = [3, 3], strides = [2, 2]> (x)',
            {"x": (2, 3, 8, 7)},
            function,
            single=FLOAT_ONLY,
        )
        for op_type, function in (
            (
                "AveragePool",
                lambda x: (
                    _averages(functional.pad(x, (1, 1, 0, 1)), 3, 2)
                    / _averages(functional.pad(torch.ones_like(x), (1, 1, 0, 1)), 3, 2)
                ),
            ),
            ("LpPool", lambda x: (9 * _averages(functional.pad(x**2, (1, 1, 0, 1)), 3, 2)).sqrt()),
            ("MaxPool", lambda x: functional.max_pool2d(functional.pad(x, (1, 1, 0, 1), value=-torch.inf), 3, 2)),
        )
    ),
    Case(
        "AveragePool with dilations",
        "y = AveragePool <kernel_shape = [3, 3], dilations = [2, 2], strides = [1, 1]> (x)",
        {"x": (2, 3, 8, 7)},
        lambda x: _averages(x, 3, 1, 2),
        single=FLOAT_ONLY,
        opset=19,
    ),
    *(
        Case(
            f"AveragePool of three dimensions {name}",
            f"y = AveragePool <{attributes}> (x)",
            {"x": (2, 3, 6, 5, 4)},
            lambda x, options=options: functional.avg_pool3d(x, **options),
            single=FLOAT_ONLY,
        )
        for name, attributes, options in (
            ("of cubes", "kernel_shape = [2, 2, 2], strides = [2, 2, 2]", {"kernel_size": 2}),
            (
                "with padding",
                "kernel_shape = [3, 2, 2], strides = [2, 2, 1], pads = [1, 1, 0, 1, 1, 0]",
                {"kernel_size": (3, 2, 2), "stride": (2, 2, 1), "padding": (1, 1, 0), "count_include_pad": False},
            ),
        )
    ),
    Case(
        "LpPool of three dimensions",
        "y = LpPool <p = 2, kernel_shape = [2, 2, 2]> (x)",
        {"x": (2, 3, 4, 5, 4)},
        lambda x: (8 * functional.avg_pool3d(x**2, 2, 1)).sqrt(),
        single=FLOAT_ONLY,
    ),
    Case(
        "LpPool with dilations",
        "y = LpPool <p = 1, kernel_shape = [3, 3], dilations = [2, 2]> (x)",
        {"x": (2, 3, 8, 7)},
        lambda x: 9 * _averages(x.abs(), 3, 1, 2),
        single=FLOAT_ONLY,
        opset=18,
    ),
]
