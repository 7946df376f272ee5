"""Single operators beyond those of common training graphs: shapes of random floats, or arrays, and what they make."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

MS = "com.microsoft"


class Case(NamedTuple):
    """One operator: inputs are shapes of random floats, arrays, or None; outputs are shapes, or None where absent."""

    op: str
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    attributes: dict[str, Any] = {}  # noqa: RUF012
    domain: str = ""
    opset: int = 15
    threads: int = 1


def ints(*values: int) -> npt.NDArray[np.int64]:
    """Return a list of integers."""
    return np.array(values, np.int64)


def full(dtype: Any, *shape: int) -> npt.NDArray[Any]:
    """Return ones of a type."""
    return np.ones(shape, dtype)


def number(value: float, dtype: Any = np.float32) -> npt.NDArray[Any]:
    """Return a scalar."""
    return np.array(value, dtype)


M, X, CUBE = (4, 33), (2, 6, 9, 8), (4, 3, 33)
LONG, BYTES, MASK = full(np.int64, *M), full(np.uint8, *M), full(np.bool_, *M)
HALF, THREE = number(0.5), number(3, np.uint8)

ELEMENTWISE = [
    *(Case(op, (M,), (M,)) for op in ("Acosh", "Asinh", "Atanh", "Cosh", "Sinh", "Tan", "Shrink")),
    *(Case(op, (M,), (MASK,)) for op in ("IsNaN", "IsInf")),
    *(Case(op, (LONG, LONG), (LONG,), opset=18) for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")),
    Case("BitwiseNot", (LONG,), (LONG,), opset=18),
    Case("Xor", (MASK, full(np.bool_, 33)), (MASK,)),
    Case("BitShift", (BYTES, BYTES), (BYTES,), {"direction": "LEFT"}),
]

REDUCED = [
    Case(op, (X,), (tuple(1 if axis in axes else size for axis, size in enumerate(X)),), {"axes": axes}, opset=13)
    for op in ("ReduceL1", "ReduceMin", "ReduceProd", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp")
    for axes in ([0], [1], [3], [0, 2], [1, 3], [0, 2, 3], [0, 1, 2, 3])
]

NORMALIZED = [
    *(Case("Hardmax", (CUBE,), (CUBE,), {"axis": axis}) for axis in (-1, 0, 1)),
    *(Case("LpNormalization", (CUBE,), (CUBE,), {"axis": axis, "p": p}) for axis in (-1, 0, 1) for p in (1, 2)),
    *(
        Case("MeanVarianceNormalization", (X,), (X,), {"axes": axes})
        for axes in ([0], [1], [3], [2, 3], [-1, -2], [1, 2, 3], [1, 2], [0, 3], [0, 1, 2, 3])
    ),
    Case("MeanVarianceNormalization", (X,), (X,)),
    Case("SkipSimplifiedLayerNormalization", ((2, 5, 8), (2, 5, 8), (8,)), ((2, 5, 8),), {}, MS),
]

IMAGES = [
    Case("LpPool", (X,), ((2, 6, 7, 6),), {"kernel_shape": [3, 3]}),
    Case("GlobalLpPool", (X,), ((2, 6, 1, 1),)),
    Case(
        "MaxUnpool",
        ((2, 6, 4, 4), np.arange(192).reshape(2, 6, 4, 4)),
        ((2, 6, 8, 8),),
        {"kernel_shape": [2, 2]} | {"strides": [2, 2]},
    ),
    *(
        Case("GridSample", (X, (2, 5, 4, 2)), ((2, 6, 5, 4),), {"mode": mode}, opset=16)
        for mode in ("bilinear", "nearest", "bicubic")
    ),
    # Random boxes may end before they begin, which the kernel takes for an overflow.
    Case(
        "RoiAlign",
        (X, np.array([[0, 0, 4, 4], [1, 2, 5, 6], [0, 1, 3, 7]], np.float32), ints(0, 1, 0)),
        ((3, 6, 2, 2),),
        {"output_height": 2, "output_width": 2},
        opset=16,
    ),
    Case("Upsample", (X, np.array([1, 1, 2, 2], np.float32)), ((2, 6, 18, 16),), {"mode": "linear"}, opset=9),
    Case("Upsample", (X, np.array([1, 1, 2, 2], np.float32)), ((2, 6, 18, 16),), opset=9),
    Case("Col2Im", ((1, 12, 20), ints(5, 6), ints(2, 2)), ((1, 3, 5, 6),), opset=18),
    Case("AffineGrid", ((2, 2, 3), ints(2, 3, 5, 6)), ((2, 5, 6, 2),), opset=20),
    Case("FusedConv", (X, (5, 6, 3, 3)), ((2, 5, 7, 6),), {"kernel_shape": [3, 3], "activation": "Relu"}, MS),
]

MOVED = [
    Case("EyeLike", (M,), (M,)),
    Case("Compress", (M, np.array([True, False, True, False])), ((2, 33),), {"axis": 0}),
    Case("NonZero", (MASK,), (full(np.int64, 2, 132),)),
    Case("Unique", (np.arange(40),), (np.arange(40),) * 4),
    Case("ReverseSequence", ((7, 4, 5), full(np.int64, 4)), ((7, 4, 5),)),
    Case("Scatter", (M, full(np.int64, 2, 3), (2, 3)), (M,), {"axis": 0}, opset=9),
]

RANDOM = [
    *(Case(op, (), (M,), {"shape": list(M)}) for op in ("RandomNormal", "RandomUniform")),
    *(Case(op, (M,), (M,)) for op in ("RandomNormalLike", "RandomUniformLike")),
    Case("Multinomial", (M,), (full(np.int32, 4, 7),), {"sample_size": 7}),
    Case("Multinomial", ((6, 50),), (full(np.int32, 6, 1),)),
]

PRODUCTS = [
    Case("Det", ((3, 50, 50),), ((3,),)),
    Case("Inverse", ((3, 50, 50),), ((3, 50, 50),), {}, MS),
    Case("FusedGemm", ((57, 70), (70, 90), (90,)), ((57, 90),), {"activation": "Relu"}, MS),
    Case("TransposeMatMul", ((5, 7), (7, 9)), ((5, 9),), {}, MS),
    Case("MatMulInteger", (full(np.uint8, 64, 128), full(np.int8, 128, 96)), (full(np.int32, 64, 96),)),
    Case(
        "QLinearMatMul",
        (full(np.uint8, 64, 128), HALF, THREE, full(np.uint8, 128, 96), HALF, THREE, HALF, THREE),
        (full(np.uint8, 64, 96),),
    ),
    Case("ConvInteger", (full(np.uint8, *X), full(np.uint8, 5, 6, 3, 3)), (full(np.int32, 2, 5, 7, 6),)),
    Case("QuantizeLinear", (M, HALF, THREE), (BYTES,)),
    Case("DequantizeLinear", (BYTES, full(np.float32, 4), full(np.uint8, 4)), (M,), {"axis": 0}),
    Case("DynamicQuantizeLinear", (M,), (BYTES, HALF, THREE)),
]

ESTIMATED = [
    Case("Einsum", ((3, 4), (4, 5)), ((3, 5),), {"equation": "ij,jk->ik"}),
    Case("Einsum", ((2, 5, 3, 4), (2, 6, 3, 4)), ((2, 3, 5, 6),), {"equation": "bqhd,bkhd->bhqk"}),
    Case("Einsum", ((7,), (9,)), ((7, 9),), {"equation": "i,j->ij"}),
    Case("Einsum", ((2, 3, 5, 6), (2, 6, 3, 4)), ((2, 5, 3, 4),), {"equation": "bhqk,bkhd->bqhd"}),
    Case("Einsum", ((1, 5, 3, 4), (1, 6, 3, 4)), ((1, 3, 5, 6),), {"equation": "bqhd, bkhd -> bhqk"}),
    Case("Einsum", ((6, 6), (6, 6)), ((6, 6),), {"equation": "ij,kj->ki"}),
    Case("Einsum", ((4, 6), (4, 6)), ((4,),), {"equation": "ij,ij->i"}),
    Case("Einsum", ((2, 6, 3), (2, 4, 6)), ((2, 3, 4),), {"equation": "bji,bkj->bik"}),
    Case("LSTM", ((9, 3, 8), (1, 16, 8), (1, 16, 4)), ((9, 1, 3, 4), (1, 3, 4), (1, 3, 4)), {"hidden_size": 4}),
    Case("GRU", ((9, 3, 8), (1, 12, 8), (1, 12, 4)), ((9, 1, 3, 4), (1, 3, 4)), {"hidden_size": 4}),
    Case("DFT", ((2, 12, 1),), ((2, 12, 2),), {"axis": 1}, opset=17),
    Case("Resize", (X, None, None, ints(2, 6, 18, 16)), ((2, 6, 18, 16),), {"mode": "cubic", "antialias": 1}, opset=18),
    Case("Attention", ((2, 50, 24), (24, 72), (72,)), ((2, 50, 24),), {"num_heads": 3}, MS),
    Case("MultiHeadAttention", ((2, 50, 24), (2, 70, 24), (2, 70, 24)), ((2, 50, 24),), {"num_heads": 3}, MS),
]
"""Operators without an exact rule: what is estimated is no less than what they take."""
