"""Pooling, reductions, and what moves data."""

from __future__ import annotations

import numpy as np
from workspace_case import MS, Case, full, ints

M = (4, 33)
MASK = full(np.bool_, *M)


def pooling_and_movement_cases() -> list[Case]:
    x, pooled = (2, 6, 9, 8), (2, 6, 5, 4)
    pool = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}
    indices = np.zeros(pooled, np.int64)
    cases = [
        Case("MaxPool", (x,), (pooled, indices), pool),
        Case("MaxPool", (x,), (pooled,), pool),
        Case("MaxPoolGrad", (pooled, indices), (x,), pool),
        Case("AveragePool", (x,), (pooled,), pool),
        Case("GlobalAveragePool", (x,), ((2, 6, 1, 1),)),
    ]
    for axes in ((0,), (1,), (2,), (3,), (0, 2), (1, 3), (0, 2, 3), (0, 1, 2, 3)):
        kept = tuple(1 if axis in axes else size for axis, size in enumerate(x))
        squeezed = tuple(size for axis, size in enumerate(x) if axis not in axes)
        cases.append(Case("ReduceSum", (x, ints(*axes)), (kept,)))
        cases.append(Case("ReduceSum", (x, ints(*axes)), (squeezed,), {"keepdims": 0}))
        for op in ("ReduceMean", "ReduceMax", "ReduceL2"):
            cases.append(Case(op, (x,), (kept,), {"axes": list(axes)}, opset=13))
    for perm in ((1, 0, 2, 3), (3, 2, 1, 0), (0, 2, 3, 1), (0, 2, 1, 3), (2, 3, 0, 1)):
        cases.append(Case("Transpose", (x,), (tuple(x[axis] for axis in perm),), {"perm": perm}))
    table, tokens = (33, 7), np.zeros((4, 5), np.int64)
    both, parts = (2, 12, 9, 8), ((2, 2, 9, 8), (2, 4, 9, 8))
    cases += [
        Case("Gather", (table, tokens), ((4, 5, 7),)),
        Case("GatherGrad", (ints(33, 7), tokens, (4, 5, 7)), (table,), {"axis": 0}, MS),
        Case("GatherGrad", (ints(33, 7), ints(0, 1, 1, 2), (33, 4)), (table,), {"axis": 1}, MS),
        Case("Concat", (x, x), (both,), {"axis": 1}),
        Case("ConcatTraining", (x, x), (both, ints(0, 0)), {"axis": 1}, MS),
        Case("Split", (x, ints(2, 4)), parts, {"axis": 1}),
        Case("SplitTraining", (x, ints(2, 4)), parts, {"axis": 1}, MS),
        Case("Slice", (x, ints(1), ints(9), ints(2), ints(2)), ((2, 6, 4, 8),)),
        Case("SliceGrad", ((2, 6, 4, 8), ints(*x), ints(1), ints(5), ints(2)), (x,), {}, MS),
        Case("Pad", (x, ints(0, 0, 1, 1, 0, 0, 1, 1)), ((2, 6, 11, 10),)),
        Case("Expand", ((6, 1, 1), ints(*x)), (x,)),
        Case("Expand", ((2, 1, 9, 1), ints(*x)), (x,)),
        Case("Tile", (x, ints(1, 2, 1, 1)), (both,)),
        Case("DepthToSpace", ((2, 8, 3, 3),), ((2, 2, 6, 6),), {"blocksize": 2}),
        Case("Resize", (x, None, None, ints(2, 6, 18, 16)), ((2, 6, 18, 16),), {"mode": "linear"}),
        Case("Resize", (x, None, None, ints(2, 6, 18, 16)), ((2, 6, 18, 16),), {"mode": "nearest"}),
        Case("Resize", ((6, 9, 8), None, None, ints(6, 18, 16)), ((6, 18, 16),), {"mode": "linear"}),
    ]
    return cases


CASES = [
    *pooling_and_movement_cases(),
    *[
        Case("EyeLike", (M,), (M,)),
        Case("Compress", (M, np.array([True, False, True, False])), ((2, 33),), {"axis": 0}),
        Case("NonZero", (MASK,), (full(np.int64, 2, 132),)),
        Case("Unique", (np.arange(40),), (np.arange(40),) * 4),
        Case("ReverseSequence", ((7, 4, 5), full(np.int64, 4)), ((7, 4, 5),)),
        Case("Scatter", (M, full(np.int64, 2, 3), (2, 3)), (M,), {"axis": 0}, opset=9),
    ],
]
