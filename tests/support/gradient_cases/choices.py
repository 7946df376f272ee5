"""Extremes, bends and reductions that are no sums."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from gradient_case import Case
from torch.nn import functional

FLOAT_ONLY = "ONNX Runtime's kernel takes float alone"

TIES = {"a": np.array([[1.0, 2.0, 3.0], [0.0, -1.0, 5.0]]), "b": np.array([[1.0, 1.0, 3.0], [4.0, -1.0, 5.0]])}
ROWS = np.array([[1.0, 3.0, 3.0, 2.0], [-1.0, -1.0, -1.0, -1.0]])
X = {"x": (2, 3, 4)}


def _product(x: torch.Tensor, dim: tuple[int, ...], keepdim: bool) -> torch.Tensor:
    for axis in sorted((axis % x.dim() for axis in dim), reverse=True):
        x = x.prod(axis, keepdim=keepdim)
    return x


REDUCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "ReduceMax": torch.amax,
    "ReduceMin": torch.amin,
    "ReduceProd": _product,
    "ReduceL1": lambda x, dim, keepdim: x.abs().sum(dim, keepdim=keepdim),
    "ReduceL2": lambda x, dim, keepdim: x.norm(2, dim, keepdim=keepdim),
    "ReduceLogSum": lambda x, dim, keepdim: x.sum(dim, keepdim=keepdim).log(),
    "ReduceLogSumExp": torch.logsumexp,
    "ReduceSumSquare": lambda x, dim, keepdim: (x**2).sum(dim, keepdim=keepdim),
}


def _reduction(op_type: str, axes: tuple[int, ...], keep: int, opset: int) -> Case:
    by_input = opset >= 18
    attributes = f"keepdims = {keep}" + ("" if by_input else f", axes = {list(axes)}")
    return Case(
        f"{op_type} over {axes}, {'kept' if keep else 'dropped'}, opset {opset}",
        f"y = {op_type} <{attributes}> (x{', a' if by_input else ''})",
        X,
        lambda x, *_: REDUCTIONS[op_type](x, axes, keepdim=bool(keep)),
        {"a": np.array(axes, np.int64)} if by_input else {},
        single=FLOAT_ONLY,
        opset=opset,
        low=0.2,
    )


CASES = [
    *(
        Case(f"{op_type} {how}", f"y = {op_type}(a, b)", inputs, function)
        for op_type, function in (("Max", torch.maximum), ("Min", torch.minimum))
        for how, inputs in (
            ("of one shape", {"a": (3, 4), "b": (3, 4)}),
            ("of operands that are repeated", {"a": (2, 1, 4), "b": (3, 1)}),
            ("of ties", TIES),
        )
    ),
    Case(
        "Max of three",
        "y = Max(a, b, c)",
        {"a": (3, 4), "b": (4,), "c": (3, 1)},
        lambda a, b, c: torch.maximum(torch.maximum(a, b), c),
    ),
    Case("Min with a constant", "y = Min(a, b)", {"a": (3, 4)}, torch.minimum, {"b": np.array(0.5)}),
    Case("Max of one", "y = Max(a)", {"a": (3, 4)}, lambda a: a),
    Case(
        "Mean of three",
        "y = Mean(a, b, c)",
        {"a": (3, 4), "b": (4,), "c": (3, 1)},
        lambda a, b, c: (a + b + c) / 3,
        single=FLOAT_ONLY,
    ),
    *(
        Case(
            f"PRelu with a slope of shape {slope}",
            "y = PRelu(x, s)",
            {"x": (2, 3, 4), "s": slope},
            lambda x, s: torch.where(x > 0, x, x * s),
            single=FLOAT_ONLY,
        )
        for slope in ((), (4,), (3, 1), (2, 3, 4))
    ),
    Case(
        "ThresholdedRelu",
        "y = ThresholdedRelu <alpha = 0.5> (x)",
        X,
        lambda x: functional.threshold(x, 0.5, 0.0),
        single=FLOAT_ONLY,
    ),
    Case(
        "HardSigmoid",
        "y = HardSigmoid <alpha = 0.5, beta = 0.4> (x)",
        X,
        lambda x: torch.clip(0.5 * x + 0.4, 0, 1),
        single=FLOAT_ONLY,
    ),
    Case("HardSwish", "y = HardSwish(x)", {"x": (5, 9)}, functional.hardswish, single=FLOAT_ONLY, low=-5, high=5),
    *(
        _reduction(op_type, axes, keep, opset)
        for op_type in REDUCTIONS
        for axes, keep, opset in (((1,), 0, 17), ((-1,), 1, 17), ((0, 2), 0, 18), ((2,), 1, 18))
    ),
    Case("ReduceMax over all", "y = ReduceMax <keepdims = 0> (x)", X, torch.amax),
    Case("ReduceMax of ties", "y = ReduceMax <axes = [1]> (x)", {"x": ROWS}, lambda x: x.amax(1, keepdim=True)),
    Case(
        "ReduceProd of rows with no, one and two zeros",
        "y = ReduceProd <axes = [1], keepdims = 0> (x)",
        {"x": np.array([[2.0, 3.0, 4.0], [2.0, 0.0, 4.0], [0.0, 3.0, 0.0]])},
        lambda x: x.prod(1),
        single=FLOAT_ONLY,
    ),
    Case(
        "ReduceL2 of a row of zeros",
        "y = ReduceL2 <axes = [1], keepdims = 0> (x)",
        {"x": np.array([[3.0, 4.0], [0.0, 0.0]])},
        lambda x: x.norm(2, 1),
        single=FLOAT_ONLY,
    ),
    *(
        Case(op_type, f"y = {op_type}(x)", {"x": (3, 5)}, function, single=FLOAT_ONLY, low=low, high=high)
        for op_type, function, low, high in (
            ("Sin", torch.sin, -3, 3),
            ("Cos", torch.cos, -3, 3),
            ("Tan", torch.tan, -1, 1),
            ("Sinh", torch.sinh, -2, 2),
            ("Cosh", torch.cosh, -2, 2),
            ("Asin", torch.asin, -0.9, 0.9),
            ("Acos", torch.acos, -0.9, 0.9),
            ("Atan", torch.atan, -3, 3),
            ("Asinh", torch.asinh, -3, 3),
            ("Acosh", torch.acosh, 1.2, 3),
            ("Atanh", torch.atanh, -0.9, 0.9),
            ("Softsign", functional.softsign, -2, 2),
            ("Elu", functional.elu, -2, 2),
            ("Selu", functional.selu, -2, 2),
        )
    ),
    Case("Mod of two", "y = Mod <fmod = 1> (a, b)", {"a": (3, 4), "b": (4,)}, torch.fmod, low=0.3),
    Case("Mod by a constant", "y = Mod <fmod = 1> (a, b)", {"a": (3, 4)}, torch.fmod, {"b": np.array(0.7)}),
    *(
        Case(f"{op_type} beside its input", f"r = {op_type}(x)\ny = Mul(x, r)", {"x": (3, 5)}, function)
        for op_type, function in (
            ("Floor", lambda x: x * x.floor()),
            ("Ceil", lambda x: x * x.ceil()),
            ("Round", lambda x: x * x.round()),
            ("Sign", lambda x: x * x.sign()),
        )
    ),
    Case("CastLike", "y = CastLike(x, l)", {"x": (3, 5)}, lambda x, _: x * 1, {"l": np.array(math.pi)}),
]
