"""Operators that move, repeat, join, cut and add up numbers."""

from __future__ import annotations

import numpy as np
import torch
from gradient_case import Case

X = {"x": (2, 3, 4)}
FLOAT_ONLY = "ONNX Runtime's kernel takes float alone"


def _ints(*numbers: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.array(numbers, np.int64)


CASES = [
    Case("Reshape", "y = Reshape(x, s)", X, lambda x, s: x.reshape(6, 4), {"s": _ints(6, -1)}),
    Case("Flatten", "y = Flatten <axis = 2> (x)", X, lambda x: x.reshape(6, 4)),
    Case("Squeeze", "y = Squeeze(x, a)", {"x": (2, 1, 4)}, lambda x, a: x.squeeze(1), {"a": _ints(1)}),
    Case("Squeeze of all", "y = Squeeze(x)", {"x": (2, 1, 4, 1)}, torch.squeeze),
    Case("Unsqueeze", "y = Unsqueeze(x, a)", X, lambda x, a: x[:, None, :, None], {"a": _ints(1, 3)}),
    Case("Transpose", "y = Transpose <perm = [1, 2, 0]> (x)", X, lambda x: x.permute(1, 2, 0)),
    Case("Transpose without an order", "y = Transpose(x)", X, lambda x: x.permute(2, 1, 0)),
    *(
        Case(
            f"ReverseSequence along axis {time}",
            f"y = ReverseSequence <time_axis = {time}, batch_axis = {1 - time}> (x, n)",
            {"x": (3, 3, 2)},
            lambda x, n, time=time: torch.stack(
                [torch.cat([each[:k].flip(0), each[k:]]) for each, k in zip(x.unbind(1 - time), n, strict=True)],
                1 - time,
            ),
            {"n": _ints(1, 3, 2)},
        )
        for time in (0, 1)
    ),
    Case("Expand", "y = Expand(x, s)", {"x": (3, 1)}, lambda x, s: x.expand(2, 3, 4), {"s": _ints(2, 3, 4)}),
    *(
        Case(
            f"Gather along axis {axis}",
            f"y = Gather <axis = {axis}> (x, i)",
            X,
            lambda x, i, axis=axis: torch.index_select(x, axis, i.flatten()).reshape(
                *x.shape[:axis], *i.shape, *x.shape[axis + 1 :]
            ),
            {"i": np.array([[0, 1], [1, 1]], np.int64)},
            single=FLOAT_ONLY,
        )
        for axis in (0, 1, 2)
    ),
    Case(
        "Slice",
        "y = Slice(x, s, e, a, t)",
        X,
        lambda x, *_: x[:, 1:, ::2],
        {"s": _ints(1, 0), "e": _ints(3, 4), "a": _ints(1, 2), "t": _ints(1, 2)},
        single=FLOAT_ONLY,
    ),
    *(
        Case(
            f"Slice {name}",
            "y = Slice(x, s, e, a, t)",
            X,
            taken,
            {"s": _ints(-1, start), "e": _ints(end, 1), "a": _ints(2, 1), "t": _ints(step, -1)},
            single=FLOAT_ONLY,
        )
        for name, start, end, step, taken in (
            ("that turns", 2, -(2**63), -1, lambda x, *_: x.flip(2)[:, 2:3]),
            ("in steps back", 99, -100, -2, lambda x, *_: x.flip(2)[:, 2:, ::2]),
            ("of nothing on one axis", 1, 0, -1, lambda x, *_: x.flip(2)[:, :0, :-1]),
        )
    ),
    *(
        Case(
            f"Concat along axis {axis}",
            f"y = Concat <axis = {axis}> (a, b, a)",
            {"a": (2, 3), "b": (2, 3)},
            lambda a, b, axis=axis: torch.cat((a, b, a), axis),
            single=FLOAT_ONLY,
        )
        for axis in (0, 1)
    ),
    Case(
        "Split",
        "p, q = Split <axis = 1> (x, s)\ny = Mul(p, p)",
        {"x": (2, 4)},
        lambda x, s: x[:, :1] ** 2,
        {"s": _ints(1, 3)},
    ),
    Case(
        "Split of which all is read",
        "p, q = Split <axis = 1> (x, s)\ny = Mul(p, q)",
        {"x": (2, 4)},
        lambda x, s: x[:, :2] * x[:, 2:],
        {"s": _ints(2, 2)},
    ),
    Case("Cast", "h = Cast <to = 1> (x)\nr = Relu(h)\ny = Cast <to = 11> (r)", X, torch.relu, error=1e-6),
    *(
        Case(
            f"ReduceMean over {axes}, {'kept' if keep else 'dropped'}",
            f"y = ReduceMean <axes = {list(axes)}, keepdims = {keep}> (x)",
            X,
            lambda x, axes=axes, keep=keep: x.mean(axes, keepdim=bool(keep)),
            single="ONNX Runtime's Scale takes float alone",
        )
        for axes in ((0,), (-1,), (1, 2))
        for keep in (0, 1)
    ),
    *(
        Case(
            f"ReduceSum over {axes}, {'kept' if keep else 'dropped'}",
            f"y = ReduceSum <keepdims = {keep}> (x, a)",
            X,
            lambda x, _, axes=axes, keep=keep: x.sum(axes, keepdim=bool(keep)),
            {"a": _ints(*axes)},
        )
        for axes in ((0,), (-1,), (1, 2))
        for keep in (0, 1)
    ),
    Case(
        "ReduceMean over all",
        "y = ReduceMean <keepdims = 0> (x)",
        X,
        torch.mean,
        single="ONNX Runtime's Scale takes float alone",
    ),
    Case("ReduceSum over all", "y = ReduceSum <keepdims = 0> (x)", X, torch.sum),
]
