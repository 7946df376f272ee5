"""Elementwise arithmetic, with operands of one shape and operands that are repeated."""

from __future__ import annotations

import numpy as np
import torch
from gradient_case import Case

SHAPES = {
    "of one shape": ((2, 3, 4), (2, 3, 4)),
    "with a row": ((2, 3, 4), (4,)),
    "with a column": ((2, 3, 4), (3, 1)),
    "with a number": ((2, 3, 4), ()),
    "both ways": ((2, 1, 4), (3, 1)),
    "with a first operand that is repeated": ((4,), (2, 3, 4)),
}
BINARY = {"Add": torch.add, "Sub": torch.sub, "Mul": torch.mul}
POSITIVE = {"low": 0.5, "high": 2.0}

CASES = [
    *(
        Case(f"{op_type} {how}", f"y = {op_type}(a, b)", {"a": a, "b": b}, function)
        for op_type, function in BINARY.items()
        for how, (a, b) in SHAPES.items()
    ),
    *(
        Case(
            f"Div {how}",
            "y = Div(a, b)",
            {"a": a, "b": b},
            torch.div,
            **POSITIVE,
            single="ONNX Runtime's DivGrad takes float alone",
        )
        for how, (a, b) in SHAPES.items()
    ),
    Case("Div by a constant", "y = Div(a, b)", {"a": (2, 1, 4)}, torch.div, {"b": np.arange(1.0, 4.0)[:, None]}),
    Case("Mul of a number by itself", "y = Mul(x, x)", {"x": (3, 4)}, torch.square),
    Case("Add of a number to itself", "y = Add(x, x)", {"x": (3, 4)}, lambda x: 2 * x),
    Case("Sub of a number from itself", "y = Sub(x, x)", {"x": (3, 4)}, lambda x: x - x),
    Case("Sum of three", "y = Sum(a, b, c)", {"a": (3, 4), "b": (4,), "c": (3, 1)}, lambda a, b, c: a + b + c),
    Case("Neg", "y = Neg(x)", {"x": (3, 4)}, torch.neg),
    Case("Abs", "y = Abs(x)", {"x": (3, 4)}, torch.abs),
    Case("Exp", "y = Exp(x)", {"x": (3, 4)}, torch.exp),
    Case("Log", "y = Log(x)", {"x": (3, 4)}, torch.log, **POSITIVE),
    Case("Sqrt", "y = Sqrt(x)", {"x": (3, 4)}, torch.sqrt, **POSITIVE),
    Case("Reciprocal", "y = Reciprocal(x)", {"x": (3, 4)}, torch.reciprocal, **POSITIVE),
    Case("Erf", "y = Erf(x)", {"x": (3, 4)}, torch.erf, single="the kernel takes float alone"),
    *(
        Case(f"Pow to {exponent}", "y = Pow(x, p)", {"x": (3, 4)}, torch.pow, {"p": np.array(exponent)}, **POSITIVE)
        for exponent in (2.0, 3.0, 0.5, -1.0)
    ),
    *(Case(f"Pow {how}", "y = Pow(a, b)", {"a": a, "b": b}, torch.pow, **POSITIVE) for how, (a, b) in SHAPES.items()),
    Case(
        "Pow of zero",
        "y = Pow(x, p)",
        {"x": np.array([[0.0, 0.5, 2.0]]), "p": np.array([[1.5], [2.0], [1.0]])},
        torch.pow,
    ),
    Case("Clip", "y = Clip(x, l, h)", {"x": (3, 4)}, torch.clip, {"l": np.array(-1.0), "h": np.array(0.5)}),
    Case("Clip below", "y = Clip(x, l)", {"x": (3, 4)}, torch.clip, {"l": np.array(0.0)}),
    Case("Clip above", 'y = Clip(x, "", h)', {"x": (3, 4)}, lambda x, h: torch.clip(x, max=h), {"h": np.array(0.0)}),
    Case("Clip of limits", "y = Clip(x, l, h)", {"x": (3, 4), "l": np.array(-0.6), "h": np.array(0.5)}, torch.clip),
    Case("Clip of a lower limit", "y = Clip(x, l)", {"x": (3, 4), "l": np.array(0.1)}, torch.clip),
    Case(
        "Clip of limits that cross",
        "y = Clip(x, l, h)",
        {"x": (3, 4), "l": np.array(0.6), "h": np.array(-0.5)},
        torch.clip,
    ),
    Case(
        "Clip of an upper limit",
        'y = Clip(x, "", h)',
        {"x": (3, 4), "h": np.array(0.1)},
        lambda x, h: torch.clip(x, max=h),
    ),
    Case("Identity", "h = Identity(x)\ny = Identity(h)", {"x": (3, 4)}, lambda x: x),
    Case(
        "Where",
        "y = Where(c, a, b)",
        {"a": (3, 4), "b": (4,)},
        lambda a, b, c: torch.where(c, a, b),
        {"c": np.arange(12).reshape(3, 4) % 3 == 0},
    ),
    Case(
        "a number that is read five times",
        "p = Mul(x, x)\nq = Mul(p, x)\nr = Add(q, x)\ny = Sub(r, p)",
        {"x": (3, 4)},
        lambda x: x**3 + x - x**2,
    ),
]
