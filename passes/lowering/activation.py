"""Gradients of activations: products with the derivative, written with the fewest passes over the data."""

from __future__ import annotations

import math

import onnx_ir as ir

from poet_onnx.passes.lowering.site import FLOAT, POET, Rules, Site


def _rectified(site: Site, op_type: str) -> ir.Value | None:
    """Return the output of the activation whose gradient this is, or None if neither it nor its input is given.

    ONNX Runtime's gradients read the activation's input, but its output has the same sign and is needed anyway by
    whatever comes next; the input can go.
    """
    maker = site.input(1).producer()
    if maker is not None and maker.op_type == op_type:
        return site.input(1)
    for reader in site.input(1).uses():
        if reader.node.op_type == op_type and reader.idx == 0:
            return reader.node.outputs[0]
    return None


def _relu(site: Site) -> None:
    """ReluGrad(dY, X or Y): the derivative is 1 where Y is positive, 0 elsewhere: the sign of Y."""
    y = _rectified(site, "Relu")
    if _has_kernel(site):
        site.give(0, _rectifier(site, y, 0))
        return
    if y is not None:
        slope = site.op("Sign", y)
    else:
        slope = site.op("Clip", site.op("Sign", site.input(1)), site.number(0), site.number(1))
    site.give(0, site.op("Mul", site.input(0), slope))


def _leaky_relu(site: Site) -> None:
    """LeakyReluGrad(dY, X or Y): the derivative is 1 where Y is positive, alpha elsewhere."""
    alpha = float(site.attributes.get("alpha", 0.01))
    y = _rectified(site, "LeakyRelu") if alpha > 0 else None
    if _has_kernel(site):
        site.give(0, _rectifier(site, y, alpha))
        return
    y = site.input(1) if y is None else y
    if 0 <= alpha <= 1:
        slope = site.op("Clip", site.op("Sign", y), site.number(alpha), site.number(1))
    else:
        slope = site.op("Where", site.op("Greater", y, site.number(0)), site.number(1), site.number(alpha))
    site.give(0, site.op("Mul", site.input(0), slope))


def _has_kernel(site: Site) -> bool:
    return site.kernels and site.type(0).dtype == FLOAT


def _rectifier(site: Site, y: ir.Value | None, slope: float) -> ir.Value:
    """Return the gradient by the operator library's kernel, from the rectifier's output or else its input."""
    y = site.input(1) if y is None else y
    return site.op("RectifierGradient", site.input(0), y, site.number(slope), domain=POET)


def _sigmoid(site: Site) -> None:
    """SigmoidGrad(dY, Y) = dY Y (1 - Y)."""
    y = site.input(1)
    site.give(0, site.op("Mul", site.op("Mul", site.input(0), y), site.op("Sub", site.number(1), y)))


def _tanh(site: Site) -> None:
    """TanhGrad(dY, Y) = dY (1 - Y Y)."""
    y = site.input(1)
    site.give(0, site.op("Mul", site.input(0), site.op("Sub", site.number(1), site.op("Mul", y, y))))


def _gelu_slope(site: Site, x: ir.Value) -> ir.Value:
    """Return the derivative of x Phi(x): Phi(x) + x phi(x), with Phi and phi of the normal distribution."""
    erf = site.op("Erf", site.op("Mul", x, site.number(math.sqrt(0.5))))
    cumulative = site.op("Mul", site.op("Add", erf, site.number(1)), site.number(0.5))
    exponent = site.op("Mul", site.op("Mul", x, x), site.number(-0.5))
    density = site.op("Mul", site.op("Exp", exponent), site.number(1 / math.sqrt(2 * math.pi)))
    return site.op("Add", cumulative, site.op("Mul", x, density))


def _gelu(site: Site) -> None:
    """GeluGrad(dY, X)."""
    site.give(0, site.op("Mul", site.input(0), _gelu_slope(site, site.input(1))))


def _bias_gelu(site: Site) -> None:
    """BiasGeluGrad_dX(dY, X, B): the gradient at X + B."""
    x = site.op("Add", site.input(1), site.input(2))
    site.give(0, site.op("Mul", site.input(0), _gelu_slope(site, x)))


def _fast_gelu_slope(site: Site, x: ir.Value) -> ir.Value:
    """Return the derivative of x / 2 (1 + tanh(a x + b x^3)), a = sqrt(2 / pi), b = 0.044715 a."""
    a = math.sqrt(2 / math.pi)
    b = 0.044715 * a
    square = site.op("Mul", x, x)
    inner = site.op("Mul", x, site.op("Add", site.op("Mul", square, site.number(b)), site.number(a)))
    tanh = site.op("Tanh", inner)
    slope = site.op("Add", site.op("Mul", square, site.number(3 * b)), site.number(a))
    bell = site.op("Sub", site.number(1), site.op("Mul", tanh, tanh))
    rest = site.op("Mul", site.op("Mul", x, slope), bell)
    return site.op("Mul", site.op("Add", site.op("Add", tanh, rest), site.number(1)), site.number(0.5))


def _fast_gelu(site: Site) -> None:
    """FastGeluGrad(dY, X)."""
    site.give(0, site.op("Mul", site.input(0), _fast_gelu_slope(site, site.input(1))))


def _bias_fast_gelu(site: Site) -> None:
    """BiasFastGeluGrad_dX(dY, X, B): the gradient at X + B."""
    x = site.op("Add", site.input(1), site.input(2))
    site.give(0, site.op("Mul", site.input(0), _fast_gelu_slope(site, x)))


def _quick_gelu(site: Site) -> None:
    """QuickGeluGrad(dY, X): the derivative of x s(alpha x) is s (1 + alpha x (1 - s)), with the logistic function s."""
    scaled = site.op("Mul", site.input(1), site.number(float(site.attributes.get("alpha", 1.702))))
    s = site.op("Sigmoid", scaled)
    rest = site.op("Mul", scaled, site.op("Sub", site.number(1), s))
    slope = site.op("Mul", s, site.op("Add", rest, site.number(1)))
    site.give(0, site.op("Mul", site.input(0), slope))


def _flat_from(site: Site, index: int) -> tuple[ir.Value, ...]:
    """Return both inputs as matrices, as softmax looks at them before version 13: rows end at `axis`."""
    shape = site.shape(index)
    axis = int(site.attributes.get("axis", 1)) % len(shape)
    rows = math.prod(shape[:axis])
    return tuple(site.reshape(site.input(i), rows, math.prod(shape[axis:])) for i in (0, 1))


def _softmax_gradient(site: Site, d_y: ir.Value, y: ir.Value, axis: int) -> ir.Value:
    """Return (dY - sum(dY Y)) Y."""
    total = site.sum(site.op("Mul", d_y, y), axis)
    return site.op("Mul", site.op("Sub", d_y, total), y)


def _log_softmax_gradient(site: Site, d_y: ir.Value, y: ir.Value, axis: int) -> ir.Value:
    """Return dY - exp(Y) sum(dY)."""
    return site.op("Sub", d_y, site.op("Mul", site.op("Exp", y), site.sum(d_y, axis)))


def _softmax_13(site: Site) -> None:
    axis = int(site.attributes.get("axis", -1))
    site.give(0, _softmax_gradient(site, site.input(0), site.input(1), axis))


def _log_softmax_13(site: Site) -> None:
    axis = int(site.attributes.get("axis", -1))
    site.give(0, _log_softmax_gradient(site, site.input(0), site.input(1), axis))


def _softmax(site: Site) -> None:
    d_y, y = _flat_from(site, 0)
    site.give(0, site.reshape(_softmax_gradient(site, d_y, y, 1), *site.shape(0)))


def _log_softmax(site: Site) -> None:
    d_y, y = _flat_from(site, 0)
    site.give(0, site.reshape(_log_softmax_gradient(site, d_y, y, 1), *site.shape(0)))


RULES: Rules = {
    "ReluGrad": _relu,
    "LeakyReluGrad": _leaky_relu,
    "SigmoidGrad": _sigmoid,
    "TanhGrad": _tanh,
    "GeluGrad": _gelu,
    "BiasGeluGrad_dX": _bias_gelu,
    "FastGeluGrad": _fast_gelu,
    "BiasFastGeluGrad_dX": _bias_fast_gelu,
    "QuickGeluGrad": _quick_gelu,
    "SoftmaxGrad": _softmax,
    "SoftmaxGrad_13": _softmax_13,
    "LogSoftmaxGrad": _log_softmax,
    "LogSoftmaxGrad_13": _log_softmax_13,
}
