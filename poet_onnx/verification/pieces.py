"""Operators with kinks, held to the piece of their graph that a point is on.

Relu is one of two lines, MaxPool one of the elements of each window. The gradient at a point is that of the piece that
the point is on. So differences of the pieces need no steps so small that nothing crosses a kink: in a network of many
kinked activations there are none. A point within a rounding of single precision of a kink is on both pieces, and both
are tried.

The formulas are those of the ONNX operator specification.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from poet_onnx.verification.double_operators import Attributes, Inputs, needed, optional, windows_of

Array = npt.NDArray[Any]
Piece = Callable[[Inputs, Inputs, Attributes, float], Array]
"""Inputs, the point's own inputs, attributes, and the side that numbers at a kink are held to be on -> the output."""

_ROUNDING = 2.0**-22
_SELU_ALPHA, _SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875


def _moved(point: Array, side: float) -> Array:
    """Return the numbers of a point, moved to one side by what single precision rounds."""
    return point + side * max(_ROUNDING * float(np.abs(point).max(initial=0.0)), 1e-30)


def _parted(low: Callable[[Array, Inputs, Attributes], Array], edge: float = 0.0) -> Piece:
    """Return the piece of an operator that is its input above an edge, and something else below."""

    def piece(inputs: Inputs, point: Inputs, attributes: Attributes, side: float) -> Array:
        x = needed(inputs, 0)
        threshold = attributes.get("alpha", 1.0) if edge else 0.0
        return np.where(_moved(needed(point, 0), side) > threshold, x, low(x, inputs, attributes))

    return piece


def _between(x: Array, point: Array, low: Array | float, high: Array | float, side: float) -> Array:
    moved = _moved(point, side)
    return np.where(moved < low, low, np.where(moved > high, high, x))


def _clip(inputs: Inputs, point: Inputs, attributes: Attributes, side: float) -> Array:
    low, high = optional(inputs, 1), optional(inputs, 2)
    least = attributes.get("min", -np.inf) if low is None else low
    most = attributes.get("max", np.inf) if high is None else high
    return _between(needed(inputs, 0), needed(point, 0), least, most, side)


def _hard_sigmoid(inputs: Inputs, point: Inputs, attributes: Attributes, side: float) -> Array:
    alpha, beta = attributes.get("alpha", 0.2), attributes.get("beta", 0.5)
    return _between(alpha * needed(inputs, 0) + beta, alpha * needed(point, 0) + beta, 0.0, 1.0, side)


def _hard_swish(inputs: Inputs, point: Inputs, _: Attributes, side: float) -> Array:
    return needed(inputs, 0) * _hard_sigmoid(inputs, point, {"alpha": 1 / 6, "beta": 0.5}, side)


def _selu(inputs: Inputs, point: Inputs, attributes: Attributes, side: float) -> Array:
    alpha, gamma = attributes.get("alpha", _SELU_ALPHA), attributes.get("gamma", _SELU_GAMMA)
    x = needed(inputs, 0)
    made: Array = gamma * np.where(_moved(needed(point, 0), side) > 0, x, alpha * np.expm1(x))
    return made


def _chosen(values: Array, point: Array, side: float) -> Array:
    """Return of the last dimension what is the largest at the point; of equal ones, one or another by the side."""
    order = np.arange(point.shape[-1]) / max(1, point.shape[-1])
    size = float(np.abs(point, where=np.isfinite(point), out=np.zeros_like(point)).max(initial=0.0))
    place = np.argmax(point - side * max(_ROUNDING * size, 1e-30) * order, axis=-1)
    taken: Array = np.take_along_axis(values, place[..., None], axis=-1)[..., 0]
    return taken


def _extreme(sign: float) -> Piece:
    def piece(inputs: Inputs, point: Inputs, _: Attributes, side: float) -> Array:
        values = np.stack(np.broadcast_arrays(*(each for each in inputs if each is not None)), axis=-1)
        at = np.stack(np.broadcast_arrays(*(each for each in point if each is not None)), axis=-1)
        return _chosen(values, sign * at, side)

    return piece


def _reduced(sign: float) -> Piece:
    def piece(inputs: Inputs, point: Inputs, attributes: Attributes, side: float) -> Array:
        x, axes = needed(inputs, 0), optional(inputs, 1)
        listed: Sequence[int] = attributes.get("axes") or (() if axes is None else axes.tolist()) or range(x.ndim)
        last = sorted(axis % x.ndim for axis in listed)
        kept = [axis for axis in range(x.ndim) if axis not in last]
        flat = [each.transpose(*kept, *last) for each in (x, needed(point, 0))]
        flat = [each.reshape(*each.shape[: len(kept)], -1) for each in flat]
        made = _chosen(flat[0], sign * flat[1], side)
        return np.expand_dims(made, tuple(last)) if attributes.get("keepdims", 1) else made

    return piece


def _global_max(inputs: Inputs, point: Inputs, _: Attributes, side: float) -> Array:
    return _reduced(1.0)(inputs, point, {"axes": range(2, needed(inputs, 0).ndim)}, side)


def _max_pool(inputs: Inputs, point: Inputs, attributes: Attributes, side: float) -> Array:
    kernel = attributes["kernel_shape"]
    flat = [windows_of(needed(each, 0), kernel, attributes, -np.inf) for each in (inputs, point)]
    flat = [each.reshape(*each.shape[: -len(kernel)], -1) for each in flat]
    return _chosen(flat[0], flat[1], side)


def _compared(compare: Callable[[Array, Array], Array]) -> Piece:
    """Return the piece of a comparison: what it is at the point."""

    def piece(_: Inputs, point: Inputs, attributes: Attributes, side: float) -> Array:
        return compare(_moved(needed(point, 0), side), needed(point, 1))

    return piece


PIECES: dict[tuple[str, str], Piece] = {
    ("", "Relu"): _parted(lambda x, inputs, attributes: np.zeros_like(x)),
    ("", "LeakyRelu"): _parted(lambda x, inputs, attributes: attributes.get("alpha", 0.01) * x),
    ("", "PRelu"): _parted(lambda x, inputs, attributes: needed(inputs, 1) * x),
    ("", "Elu"): _parted(lambda x, inputs, attributes: attributes.get("alpha", 1.0) * np.expm1(x)),
    ("", "Abs"): _parted(lambda x, inputs, attributes: -x),
    ("", "ThresholdedRelu"): _parted(lambda x, inputs, attributes: np.zeros_like(x), edge=1.0),
    ("", "Selu"): _selu,
    ("", "Clip"): _clip,
    ("", "HardSigmoid"): _hard_sigmoid,
    ("", "HardSwish"): _hard_swish,
    ("", "Max"): _extreme(1.0),
    ("", "Min"): _extreme(-1.0),
    ("", "ReduceMax"): _reduced(1.0),
    ("", "ReduceMin"): _reduced(-1.0),
    ("", "MaxPool"): _max_pool,
    ("", "GlobalMaxPool"): _global_max,
    ("", "Greater"): _compared(np.greater),
    ("", "GreaterOrEqual"): _compared(np.greater_equal),
    ("", "Less"): _compared(np.less),
    ("", "LessOrEqual"): _compared(np.less_equal),
}
"""Operators of real numbers, by domain and name."""
