"""Products of matrices."""

from __future__ import annotations

import numpy as np
from workspace_case import MS, Case, full, number

M = (4, 33)
X = (2, 6, 9, 8)
BYTES = full(np.uint8, *M)
HALF = number(0.5)
THREE = number(3, np.uint8)


def product_cases() -> list[Case]:
    cases = [
        Case("Gemm", ((57, 70), (70, 90), (90,)), ((57, 90),)),
        Case("Gemm", ((57, 70), (90, 70), (90,)), ((57, 90),), {"transB": 1}),
        Case("Gemm", ((70, 57), (70, 90)), ((57, 90),), {"transA": 1, "alpha": 0.5}),
        Case("MatMul", ((257, 770), (770, 330)), ((257, 330),)),
        Case("MatMul", ((3, 5, 7), (3, 7, 9)), ((3, 5, 9),)),
        Case("MatMul", ((3, 5, 7), (7, 9)), ((3, 5, 9),), threads=2),
        Case("MatMul", ((1, 770), (770, 330)), ((1, 330),)),
        Case("FusedMatMul", ((5, 3, 7), (3, 7, 9)), ((3, 5, 9),), {"transBatchA": 1}, MS),
        Case("FusedMatMul", ((7, 3, 5), (3, 7, 9)), ((3, 5, 9),), {"transBatchA": 1, "transA": 1}, MS),
    ]
    for a, b in ((0, 0), (0, 1), (1, 0), (1, 1)):
        left, right = ((3, 7, 5) if a else (3, 5, 7)), ((3, 9, 7) if b else (3, 7, 9))
        cases.append(Case("FusedMatMul", (left, right), ((3, 5, 9),), {"transA": a, "transB": b, "alpha": 0.5}, MS))
    return cases


CASES = [
    *product_cases(),
    *[
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
    ],
]
