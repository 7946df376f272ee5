"""Activations."""

from __future__ import annotations

import torch
from gradient_case import Case
from torch.nn import functional

FLOAT_ONLY = "ONNX Runtime's kernel of the gradient takes float alone"

X = {"x": (3, 5)}

CASES = [
    Case("Relu", "y = Relu(x)", X, torch.relu, single=FLOAT_ONLY),
    Case("Sigmoid", "y = Sigmoid(x)", X, torch.sigmoid, single=FLOAT_ONLY),
    Case("Tanh", "y = Tanh(x)", X, torch.tanh, single=FLOAT_ONLY),
    Case("LeakyRelu", "y = LeakyRelu <alpha = 0.2> (x)", X, lambda x: functional.leaky_relu(x, 0.2), single=FLOAT_ONLY),
    Case(
        "LeakyRelu that turns the sign",
        "y = LeakyRelu <alpha = -0.5> (x)",
        X,
        lambda x: functional.leaky_relu(x, -0.5),
        single=FLOAT_ONLY,
    ),
    Case("Softplus", "y = Softplus(x)", X, functional.softplus, single="the kernel takes float alone"),
    *(
        Case(
            f"{op_type} of axis {axis}",
            f"y = {op_type} <axis = {axis}> (x)",
            {"x": (2, 3, 4)},
            lambda x, axis=axis, function=function: function(x, axis),
            single=FLOAT_ONLY,
        )
        for op_type, function in (("Softmax", torch.softmax), ("LogSoftmax", torch.log_softmax))
        for axis in (-1, 0, 1)
    ),
    Case(
        "Gelu as exporters write it",
        """h = Div(x, r)
e = Erf(h)
p = Add(e, one)
m = Mul(x, p)
y = Mul(m, half)""",
        {"x": (2, 3, 4)},
        lambda x, *_: functional.gelu(x),
        constants={
            "r": torch.tensor(2.0).sqrt().numpy(),
            "one": torch.tensor(1.0).numpy(),
            "half": torch.tensor(0.5).numpy(),
        },
        single=FLOAT_ONLY,
    ),
    Case(
        "Gelu with a bias",
        """s = Add(b, x)
h = Div(s, r)
e = Erf(h)
p = Add(e, one)
m = Mul(s, p)
y = Mul(m, half)""",
        {"x": (2, 3, 4), "b": (4,)},
        lambda x, b, *_: functional.gelu(x + b),
        constants={
            "r": torch.tensor(2.0).sqrt().numpy(),
            "one": torch.tensor(1.0).numpy(),
            "half": torch.tensor(0.5).numpy(),
        },
        single=FLOAT_ONLY,
    ),
    *(
        Case(
            f"Gelu of opset 20, approximate {way}",
            f'y = Gelu <approximate = "{way}"> (x)',
            X,
            lambda x, way=way: functional.gelu(x, approximate=way),
            opset=20,
            single=FLOAT_ONLY,
        )
        for way in ("none", "tanh")
    ),
    Case(
        "FastGelu",
        "y = com.microsoft.FastGelu(x)",
        X,
        lambda x: functional.gelu(x, approximate="tanh"),
        single=FLOAT_ONLY,
    ),
    Case(
        "FastGelu with a bias",
        "y = com.microsoft.FastGelu(x, b)",
        {"x": (2, 3, 4), "b": (4,)},
        lambda x, b: functional.gelu(x + b, approximate="tanh"),
        single=FLOAT_ONLY,
    ),
]
