"""Layers: convolutions, pooling, normalizations and products of matrices."""

from __future__ import annotations

import numpy as np
import torch
from gradient_case import Case
from torch.nn import functional

FLOAT_ONLY = "ONNX Runtime's kernel of the gradient takes float alone"


def _conv(name: str, weight: tuple[int, ...], attributes: str, *, bias: bool = False, **options: object) -> Case:
    shape = (2, 4, *(7 for _ in weight[2:]))
    function = (functional.conv1d, functional.conv2d, functional.conv3d)[len(weight) - 3]
    inputs = {"x": shape, "w": weight, **({"b": weight[:1]} if bias else {})}
    return Case(
        f"Conv {name}",
        f"y = Conv <{attributes}> (x, w{', b' if bias else ''})",
        inputs,
        lambda *arguments: function(*arguments, **options),
        single=FLOAT_ONLY,
    )


def _pool(op_type: str, name: str, attributes: str, **options: object) -> Case:
    function = {"MaxPool": functional.max_pool2d, "AveragePool": functional.avg_pool2d}[op_type]
    return Case(
        f"{op_type} {name}",
        f"y = {op_type} <{attributes}> (x)",
        {"x": (2, 3, 8, 8)},
        lambda x: function(x, **options),
        single=FLOAT_ONLY,
    )


def _product(name: str, a: tuple[int, ...], b: tuple[int, ...]) -> Case:
    return Case(
        f"MatMul {name}", "y = MatMul(a, b)", {"a": a, "b": b}, torch.matmul, single="FusedMatMul takes float alone"
    )


def _gemm(first: int, second: int) -> Case:
    a, b = ((4, 3) if first else (3, 4)), ((5, 4) if second else (4, 5))
    return Case(
        f"Gemm of {'transposed' if first else 'plain'} and {'transposed' if second else 'plain'}",
        f"y = Gemm <transA = {first}, transB = {second}, alpha = 0.5, beta = 2.0> (a, b, c)",
        {"a": a, "b": b, "c": (5,)},
        lambda a, b, c: 0.5 * (a.T if first else a) @ (b.T if second else b) + 2.0 * c,
    )


CASES = [
    _conv("of one dimension", (6, 4, 3), "kernel_shape = [3]"),
    _conv("plain", (6, 4, 3, 3), "kernel_shape = [3, 3]"),
    _conv("with padding and bias", (6, 4, 3, 3), "pads = [1, 1, 1, 1]", bias=True, padding=1),
    _conv("with strides", (6, 4, 3, 3), "strides = [2, 2], pads = [1, 1, 1, 1]", stride=2, padding=1),
    _conv("with dilations", (6, 4, 3, 3), "dilations = [2, 2]", dilation=2),
    _conv("in groups", (6, 2, 3, 3), "group = 2", groups=2),
    _conv("depthwise", (4, 1, 3, 3), "group = 4, pads = [1, 1, 1, 1]", groups=4, padding=1),
    _conv("of one pixel", (6, 4, 1, 1), "kernel_shape = [1, 1]", bias=True),
    _pool("MaxPool", "of squares", "kernel_shape = [2, 2], strides = [2, 2]", kernel_size=2),
    _pool(
        "MaxPool",
        "with overlap and padding",
        "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]",
        kernel_size=3,
        stride=2,
        padding=1,
    ),
    _pool("AveragePool", "of squares", "kernel_shape = [2, 2], strides = [2, 2]", kernel_size=2),
    _pool(
        "AveragePool",
        "with padding that does not count",
        "kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1]",
        kernel_size=3,
        stride=2,
        padding=1,
        count_include_pad=False,
    ),
    Case(
        "GlobalAveragePool",
        "y = GlobalAveragePool(x)",
        {"x": (2, 3, 4, 5)},
        lambda x: x.mean((2, 3), keepdim=True),
        single="ONNX Runtime's Scale takes float alone",
    ),
    Case(
        "BatchNormalization in training",
        "y, m, v = BatchNormalization <training_mode = 1> (x, s, b, rm, rv)",
        {"x": (3, 4, 5, 5), "s": (4,), "b": (4,)},
        lambda x, s, b, rm, rv: functional.batch_norm(x, None, None, s, b, training=True),
        {"rm": np.zeros(4), "rv": np.ones(4)},
        single=FLOAT_ONLY,
        error=5e-6,
    ),
    Case(
        "BatchNormalization by running statistics",
        "y = BatchNormalization(x, s, b, rm, rv)",
        {"x": (3, 4, 5, 5), "s": (4,), "b": (4,)},
        lambda x, s, b, rm, rv: functional.batch_norm(x, rm, rv, s, b),
        {"rm": np.linspace(-1, 1, 4), "rv": np.linspace(0.5, 2, 4)},
    ),
    *(
        Case(
            f"LayerNormalization from axis {axis} on",
            f"y = LayerNormalization <axis = {axis}> (x, s, b)",
            {"x": (2, 3, 4), "s": shape, "b": shape},
            lambda x, s, b: functional.layer_norm(x, tuple(s.shape), s, b),
            single=FLOAT_ONLY,
            error=5e-6,
        )
        for axis, shape in ((-1, (4,)), (1, (3, 4)))
    ),
    *(
        Case(
            f"LayerNormalization of {shape} that is repeated",
            "y = LayerNormalization <axis = 1> (x, s, b)",
            {"x": (2, 3, 4), "s": shape, "b": (4,)},
            lambda x, s, b: functional.layer_norm(x, (3, 4)) * s + b,
            single=FLOAT_ONLY,
            error=5e-6,
        )
        for shape in ((4,), (3, 1), (1,))
    ),
    Case(
        "LayerNormalization as exporters write it",
        """m = ReduceMean <axes = [-1]> (x)
d = Sub(x, m)
q = Pow(d, two)
v = ReduceMean <axes = [-1]> (q)
e = Add(v, eps)
r = Sqrt(e)
n = Div(d, r)
t = Mul(n, s)
y = Add(t, b)""",
        {"x": (2, 3, 4), "s": (4,), "b": (4,)},
        lambda x, s, b, *_: functional.layer_norm(x, (4,), s, b),
        {"two": np.array(2.0), "eps": np.array(1e-5)},
        single=FLOAT_ONLY,
        error=5e-6,
    ),
    *(_gemm(first, second) for first in (0, 1) for second in (0, 1)),
    Case("Gemm without a bias", "y = Gemm(a, b)", {"a": (3, 4), "b": (4, 5)}, torch.matmul),
    Case("Gemm with a column", "y = Gemm(a, b, c)", {"a": (3, 4), "b": (4, 5), "c": (3, 1)}, lambda a, b, c: a @ b + c),
    _product("of a matrix and a vector", (3, 4), (4,)),
    _product("of a vector and a matrix", (4,), (4, 3)),
    _product("of two vectors", (4,), (4,)),
    _product("of matrices and a vector", (2, 3, 4), (4,)),
    _product("of matrices", (3, 4), (4, 5)),
    _product("of a stack and a matrix", (2, 3, 4), (4, 5)),
    _product("of stacks", (2, 3, 4), (2, 4, 5)),
    _product("of a stack and one that is repeated", (2, 3, 4), (1, 4, 5)),
    _product("of a matrix and a stack", (3, 4), (2, 4, 5)),
    _product("of stacks of stacks, repeated both ways", (2, 1, 3, 4), (5, 4, 2)),
]
