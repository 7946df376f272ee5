"""Elementwise operators."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto
from workspace_case import MS, Case, full

M = (4, 33)
LONG = full(np.int64, *M)
BYTES = full(np.uint8, *M)
MASK = full(np.bool_, *M)


RNG = np.random.default_rng(7)


def scalar(value: float | bool) -> np.ndarray:
    return np.array(value, np.bool_ if isinstance(value, bool) else np.float32)


def elementwise_cases() -> list[Case]:
    m, row, one = (4, 33), (33,), ()
    cases = [Case(op, (m,), (m,)) for op in ("Relu", "Sigmoid", "Tanh", "Erf", "Exp", "Sqrt", "HardSwish", "LeakyRelu")]
    cases += [Case(op, (m,), (m,), domain=MS) for op in ("Gelu", "QuickGelu", "FastGelu")]
    cases += [Case("Mish", (m,), (m,), opset=18), Case("Gelu", (m,), (m,), opset=20)]
    cases += [Case(op, (m, row), (m,), domain=MS) for op in ("BiasGelu", "FastGelu")]
    cases += [Case(op, (m, m, row), (m,), domain=MS) for op in ("BiasGeluGrad_dX", "BiasFastGeluGrad_dX")]
    gradients = ("ReluGrad", "GeluGrad", "FastGeluGrad", "SigmoidGrad", "TanhGrad", "QuickGeluGrad", "LeakyReluGrad")
    cases += [Case(op, (m, m), (m,), domain=MS) for op in gradients]
    for op in ("Add", "Sub", "Mul", "Div", "Pow"):
        cases += [Case(op, (m, m), (m,)), Case(op, (m, row), (m,)), Case(op, (m, one), (m,))]
        cases.append(Case(op, ((4, 1, 5), (33, 1)), ((4, 33, 5),)))
    for op in ("Sum", "Max", "Min", "Mean"):
        cases += [Case(op, (m,) * count, (m,)) for count in (1, 2, 3, 4, 5, 6)]
        cases += [Case(op, (row, (1,), row, m), (m,)), Case(op, (row, (1,), m), (m,))]
        cases += [Case(op, (row, (1,), row, m, (4, 1)), (m,)), Case(op, ((4, 1), (1,), row, m), (m,))]
    mask = RNG.integers(0, 2, m).astype(bool)
    cases += [Case("Where", (mask, m, m), (m,)), Case("Where", (mask[:, :1], m, one), (m,))]
    cases += [Case("Where", (mask, one, row), (m,)), Case("Not", (mask,), (mask,))]
    cases += [
        Case("Scale", (m, (1,)), (m,), domain=MS),
        Case("InPlaceAccumulatorV2", (m, m, np.array([True])), (np.array([True]),), domain=MS),
        Case("InPlaceAccumulatorV2", (m, m, np.array([False])), (np.array([True]),), domain=MS),
        Case("Dropout", (m, scalar(0.5), scalar(True)), (m, mask), {"seed": 1}),
        Case("Dropout", (m, scalar(0.5), scalar(True)), (m,), {"seed": 1}),
        Case("DropoutGrad", (m, mask, scalar(0.5), scalar(True)), (m,), domain=MS),
        Case("Cast", (m,), (np.zeros(m, np.int64),), {"to": TensorProto.INT64}),
    ]
    return cases


CASES = [
    *elementwise_cases(),
    *[
        *(Case(op, (M,), (M,)) for op in ("Acosh", "Asinh", "Atanh", "Cosh", "Sinh", "Tan", "Shrink")),
        *(Case(op, (M,), (MASK,)) for op in ("IsNaN", "IsInf")),
        *(Case(op, (LONG, LONG), (LONG,), opset=18) for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")),
        Case("BitwiseNot", (LONG,), (LONG,), opset=18),
        Case("Xor", (MASK, full(np.bool_, 33)), (MASK,)),
        Case("BitShift", (BYTES, BYTES), (BYTES,), {"direction": "LEFT"}),
    ],
]
