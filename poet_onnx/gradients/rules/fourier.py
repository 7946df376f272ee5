"""Gradients of discrete Fourier transforms."""

from __future__ import annotations

import numpy as np

from poet_onnx.gradients.builder import GradientBuilder, NoGradientError
from poet_onnx.gradients.registry import gradient_of

_AXIS_IS_INPUT = 20
"""The version of ONNX's operators from which on a transform's axis is an input."""


@gradient_of("DFT", stops=(1, 2))
def transform(builder: GradientBuilder) -> None:
    """Transform the gradient in the other direction, for a transform's matrix is symmetric: its adjoint is the inverse.

    The inverse divides by the length, which is made up for. What a one-sided transform left out, or zeros filled up,
    has gradients of zero; of a real signal the real part counts. A one-sided inverse reads all but the first and the
    middle frequency twice.
    """
    source, is_inverse = builder.input(0), builder.attributes.get("inverse", 0)
    is_half = is_inverse and builder.attributes.get("onesided", 0)
    shape, rank = builder.shape(source), len(builder.shape(source))
    axes, attributes = list[int](), {"inverse": 1 - is_inverse, "onesided": is_half}
    if builder.opset >= _AXIS_IS_INPUT:
        axes += builder.integers(2) if builder.has(2) else (-2,)
        axis = axes[0] % rank
    else:
        attributes["axis"] = builder.attributes.get("axis", 1)
        axis = attributes["axis"] % rank
    of_itself = 2 * (shape[axis] - 1) if is_half else shape[axis]
    (length,) = builder.integers(1) if builder.has(1) else (of_itself,)
    inputs = [builder.constant(np.array(number, np.int64)) for number in (length, *axes)]
    size = length // 2 + 1 if is_half else length
    if is_half and size != shape[axis]:
        raise NoGradientError(f"its length of {length} is not that of {shape[axis]} frequencies")
    factors = np.full((size if is_half else 1, *(1,) * (rank - 1 - axis)), 1 / length if is_inverse else length)
    if is_half:
        factors[1 : (length + 1) // 2] *= 2
    scale = builder.constant(factors.astype(builder.type(source).dtype.numpy()))
    gradient = builder.op("Mul", builder.op("DFT", builder.gradient(), *inputs, **attributes), scale)
    cut = [0] * rank
    cut[axis], cut[-1] = shape[axis] - size, shape[-1] - 2
    builder.send(0, builder.op("Pad", gradient, builder.ints(*[0] * rank, *cut)) if any(cut) else gradient)
