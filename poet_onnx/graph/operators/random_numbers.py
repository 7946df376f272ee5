"""Operators that draw random numbers, and the gradients that use them again."""

from __future__ import annotations

import numpy as np

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.graph.operators.fitting import expect, expect_count
from poet_onnx.graph.operators.rules import FLOAT, like, nothing, per_output, with_mask, writing
from poet_onnx.graph.operators.shape_context import RuleError, ShapeContext, TensorType
from poet_onnx.graph.operators.spec import MICROSOFT_DOMAIN, Attribute, Call, Check, OpSpec, Schema, family


def _drops(ratio: int, training: int | None = None) -> Check:
    """Return a check: a dropout that is not known to be off keeps some of its input.

    Args:
        ratio: index of the input that says what part is dropped.
        training: index of the input that says whether it drops at all; None if it always does.
    """

    def check(context: ShapeContext) -> None:
        values = [None if index is None else _known(context, index) for index in (ratio, training)]
        if values[0] is not None and values[1] in (None, 1) and not 0 <= np.float32(values[0]) < 1:
            raise RuleError(f"its ratio is {values[0]:g} and must be at least 0 and, in single precision, less than 1")

    return check


def _known(context: ShapeContext, index: int) -> float | None:
    """Return an input of one number, None where it is not known."""
    value = context.values[index] if index < len(context.values) else None
    return float(value.item()) if value is not None and value.size == 1 else None


def _masked(context: ShapeContext) -> None:
    """DropoutGrad(dY, mask, ratio, training_mode)."""
    expect(context, 1, context.type(0).shape)
    for index in (2, 3):
        if context.has(index):
            expect_count(context, index, 1)
    _drops(2, 3)(context)


def _one_row_of_doubles(call: Call) -> int:
    return 8 * call.input(0).shape[-1]


def _shaped(context: ShapeContext) -> list[TensorType]:
    return [TensorType(FLOAT, tuple(context.attributes["shape"]))]


def _counted(name: str, numbers: str, first: Attribute, second: Attribute) -> OpSpec:
    return OpSpec(
        name,
        POET_DOMAIN,
        shape=_shaped,
        work=per_output(40),
        workspace=nothing,
        schema=Schema(
            f"{name}(runs) -> Y: {numbers}, which follow from the seed and the number of runs.",
            (("Y", "tensor(float)"),),
            (
                Attribute("seed", "INT", "Of all random numbers of the node."),
                Attribute("shape", "INTS", "Shape of Y."),
                first,
                second,
            ),
        ),
    )


SPECS = [
    OpSpec("Dropout", random=True, check=_drops(1, 2), work=per_output(5), workspace=nothing),
    *family("RandomNormalLike RandomUniformLike", random=True, work=per_output(5), workspace=nothing),
    OpSpec("RandomUniform", random=True, work=writing, workspace=nothing),
    OpSpec("RandomNormal", random=True, workspace=nothing),
    OpSpec("Multinomial", random=True, workspace=_one_row_of_doubles),
    OpSpec("Bernoulli", random=True),
    *(
        OpSpec(name, MICROSOFT_DOMAIN, random=True, check=check, work=per_output(5), cpu_kernel=False)
        for name, check in (("BitmaskDropout", _drops(1, 2)), ("BiasDropout", _drops(3, 4)))
    ),
    *family("BitmaskBiasDropout BiasSoftmaxDropout", MICROSOFT_DOMAIN, random=True, cpu_kernel=False),
    OpSpec(
        "CountedDropout",
        POET_DOMAIN,
        shape=with_mask,
        check=_drops(1),
        work=per_output(5),
        workspace=nothing,
        schema=Schema(
            "CountedDropout(X, ratio, runs) -> (Y, mask): X / (1 - ratio) where the mask is true, zero elsewhere. The "
            "mask follows from the seed and the number of runs.",
            (("Y", "T"), ("mask", "tensor(bool)")),
            (Attribute("seed", "INT", "Of the first run's random numbers."),),
        ),
    ),
    _counted(
        "CountedUniform",
        "evenly drawn numbers",
        Attribute("low", "FLOAT", "The least number."),
        Attribute("high", "FLOAT", "Which all are below."),
    ),
    _counted(
        "CountedNormal",
        "normally drawn numbers",
        Attribute("mean", "FLOAT", "Of the numbers."),
        Attribute("scale", "FLOAT", "Their standard deviation."),
    ),
    OpSpec(
        "DropoutGrad",
        MICROSOFT_DOMAIN,
        shape=like(0),
        check=_masked,
        work=per_output(2),
        workspace=nothing,
    ),
    OpSpec("BitmaskDropoutGrad", MICROSOFT_DOMAIN, check=_masked, work=per_output(2), cpu_kernel=False),
]
"""Random numbers."""
