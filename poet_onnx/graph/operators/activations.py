"""Activations, softmaxes among them, and their gradients: (dY, X or Y, bias) -> dX."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.graph.operators.fitting import bias, both, expect, said, same
from poet_onnx.graph.operators.rules import FLOAT, input_copy, like, nothing, per_output, transposing
from poet_onnx.graph.operators.shape_context import RuleError, ShapeContext
from poet_onnx.graph.operators.spec import BUFFER, MICROSOFT_DOMAIN, Attribute, Call, OpSpec, Schema, family

_F32 = "tensor(float)"

_in_place = partial(family, inplace=((0, 0),), workspace=nothing)
_own_gradient = partial(OpSpec, domain=POET_DOMAIN, inplace=((0, 0),), shape=like(0), workspace=nothing)
_gradient = partial(family, domain=MICROSOFT_DOMAIN, shape=like(0), check=same(0, 1), workspace=nothing)


def _with_bias_copy(call: Call) -> int:
    # The sum of input and bias; FastGelu's bias is optional.
    return call.input(0).size_bytes if len(call.inputs) > 1 and call.inputs[-1] else 0


_EXPANDED: dict[str, Any] = {  # functions of simpler operators; what the first of them make comes before the output
    "workspace": input_copy,
    "allocation_order": (BUFFER, 0),
    "buffers": lambda call: (input_copy(call),),
}


def _largest_of_rows(call: Call) -> int:
    """Return the bytes of Hardmax's places: one for each row along its axis."""
    x = call.input(0)
    axis = call.integer("axis", -1) % max(1, len(x.shape))
    return 4 * math.prod(size for place, size in enumerate(x.shape) if place != axis)


GATED_ACTIVATE = "GatedActivate"
"""A product whose one factor is activated."""

ACTIVATION_GRADIENT, SOFTMAX_GRADIENT = "ActivationGradient", "SoftmaxGradient"
"""Gradients that the operator library computes in one pass."""

ACTIVATIONS = ("silu", "gelu", "gelu_tanh")
"""Of an input or a gate; their places are what the attribute says."""

_ACTIVATION = (Attribute("activation", "INT", f"What is computed: {', '.join(ACTIVATIONS)}, counted from 0."),)


def _gated(context: ShapeContext) -> None:
    if context.integer("activation", 0) not in range(len(ACTIVATIONS)) or context.type(0).dtype != FLOAT:
        raise RuleError(f"{said(context, 0)} must be of floats, and its activation one of {', '.join(ACTIVATIONS)}")


def _fits_bias(context: ShapeContext) -> None:
    if context.integer("biased", 0):
        expect(context, 2, context.type(0).shape[-1:])


SPECS = [
    *_in_place("Relu", work=per_output(1)),
    *_in_place("HardSigmoid LeakyRelu ThresholdedRelu", work=per_output(2)),
    *_in_place("Sigmoid Tanh", work=per_output(10)),
    *_in_place("Celu Elu Selu Softplus Softsign", work=per_output(15)),
    *_in_place("Shrink"),
    *_in_place("Softmax LogSoftmax", work=per_output(12), workspace=transposing(2)),
    OpSpec("PRelu", work=per_output(2), workspace=nothing),
    OpSpec("HardSwish", work=per_output(2), **_EXPANDED),
    OpSpec("Mish", work=per_output(15), **_EXPANDED),
    OpSpec("Hardmax", workspace=transposing(2), heap=_largest_of_rows),
    *family("Gelu QuickGelu", MICROSOFT_DOMAIN, shape=like(0), work=per_output(15), workspace=nothing),
    OpSpec("BiasGelu", MICROSOFT_DOMAIN, shape=like(0), check=bias(1), work=per_output(15), workspace=input_copy),
    OpSpec("FastGelu", MICROSOFT_DOMAIN, shape=like(0), check=bias(1), work=per_output(15), workspace=_with_bias_copy),
    OpSpec("BiasSoftmax", MICROSOFT_DOMAIN, shape=like(0), cpu_kernel=False),
    *_gradient("ReluGrad", work=per_output(1)),
    *_gradient("LeakyReluGrad", work=per_output(2)),
    _own_gradient(
        "RectifierGradient",
        work=per_output(2),
        schema=Schema(
            "RectifierGradient(dY, Y, slope) -> dX: dY where Y is positive, slope * dY elsewhere.",
            (("dX", "tensor(float)"),),
        ),
    ),
    _own_gradient(
        ACTIVATION_GRADIENT,
        check=both(same(0, 1), _fits_bias),
        work=per_output(20),
        schema=Schema(
            "ActivationGradient(dY, X) or (dY, X, B) -> dX: dY times the slope at X, or at X + B.",
            (("dX", _F32),),
            (*_ACTIVATION, Attribute("biased", "INT", "1 where B is given, else 0.")),
        ),
    ),
    _own_gradient(
        SOFTMAX_GRADIENT,
        check=same(0, 1),
        work=per_output(4),
        schema=Schema(
            "SoftmaxGradient(dY, Y) -> dX: the gradient of a softmax over the last dimension.", (("dX", _F32),)
        ),
    ),
    OpSpec(
        GATED_ACTIVATE,
        POET_DOMAIN,
        of_graphs=True,
        shape=like(0),
        check=both(same(0, 1), _gated),
        work=per_output(20),
        workspace=nothing,
        schema=Schema("GatedActivate(gate, up) -> y: activates the gate, times up.", (("y", _F32),), _ACTIVATION),
    ),
    OpSpec(
        "GatedActivateGradient",
        POET_DOMAIN,
        of_graphs=True,
        inplace=((0, 0), (1, 1)),
        shape=like(0, 0),
        check=both(same(0, 1, 2), _gated),
        work=per_output(35),
        workspace=nothing,
        schema=Schema(
            "GatedActivateGradient(dY, gate, up) -> (dGate, dUp): the gradient of GatedActivate.",
            (("dGate", _F32), ("dUp", _F32)),
            _ACTIVATION,
        ),
    ),
    *_gradient("SigmoidGrad TanhGrad SoftmaxGrad LogSoftmaxGrad", work=per_output(4)),
    *_gradient("SoftmaxGrad_13 LogSoftmaxGrad_13", work=per_output(4), workspace=transposing(3)),
    *_gradient("GeluGrad FastGeluGrad QuickGeluGrad", work=per_output(20)),
    *_gradient(
        "BiasGeluGrad_dX BiasFastGeluGrad_dX",
        check=both(same(0, 1), bias(2)),
        work=per_output(20),
        workspace=input_copy,
    ),
    OpSpec("QLinearSigmoid", MICROSOFT_DOMAIN, workspace=nothing),
]
"""Activations and their gradients."""
