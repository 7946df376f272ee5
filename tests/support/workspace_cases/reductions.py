"""Reductions."""

from __future__ import annotations

from workspace_case import Case

X = (2, 6, 9, 8)


CASES = [
    Case(op, (X,), (tuple(1 if axis in axes else size for axis, size in enumerate(X)),), {"axes": axes}, opset=13)
    for op in ("ReduceL1", "ReduceMin", "ReduceProd", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp")
    for axes in ([0], [1], [3], [0, 2], [1, 3], [0, 2, 3], [0, 1, 2, 3])
]
