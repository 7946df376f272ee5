"""Gradients of elementwise arithmetic, whose operands may be repeated along axes."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from poet_onnx.gradients.builder import GradientBuilder
from poet_onnx.gradients.forward.elimination import is_for_inference
from poet_onnx.gradients.registry import gradient_of, without_gradient
from poet_onnx.gradients.torch_calls import is_clamp, is_even, is_open
from poet_onnx.graph.operators import MICROSOFT_DOMAIN
from poet_onnx.passes.fused.reading import number_in

without_gradient(
    "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or", "Xor", "Not", "IsNaN", "IsInf"
)
without_gradient("Sign", "Floor", "Ceil", "Round", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot")
without_gradient("DequantizeLinear", unknown=(1,))  # of weights of a few bits, which are frozen


@gradient_of("Add", "Sum")
def add(builder: GradientBuilder) -> None:
    """Hand the gradient on to every operand."""
    for index in range(len(builder.node.inputs)):
        if builder.wants(index):
            builder.send(index, builder.reduced(builder.gradient(), index))


@gradient_of("Sub")
def subtract(builder: GradientBuilder) -> None:
    """Hand the gradient on, and its negative."""
    if builder.wants(0):
        builder.send(0, builder.reduced(builder.gradient(), 0))
    if builder.wants(1):
        builder.send(1, builder.op("Neg", builder.reduced(builder.gradient(), 1)))


@gradient_of("Mul")
def multiply(builder: GradientBuilder) -> None:
    """Multiply the gradient by the other operand."""
    for index in (0, 1):
        if builder.wants(index):
            product = builder.op("Mul", builder.gradient(), builder.input(1 - index))
            builder.send(index, builder.reduced(product, index))


@gradient_of("Div")
def divide(builder: GradientBuilder) -> None:
    """Divide the gradient, with ONNX Runtime's own operator where the divisor has one."""
    gradient = builder.gradient()
    if builder.wants(1):
        operands = [gradient, builder.input(0), builder.input(1)]
        first, second = builder.ops("DivGrad", operands, 2, domain=MICROSOFT_DOMAIN)
        builder.send(0, first)
        builder.send(1, second)
    else:
        builder.send(0, builder.reduced(builder.op("Div", gradient, builder.input(1)), 0))


@gradient_of("Neg")
def negate(builder: GradientBuilder) -> None:
    """Negate the gradient."""
    builder.send(0, builder.op("Neg", builder.gradient()))


@gradient_of("Identity")
def identity(builder: GradientBuilder) -> None:
    """Hand the gradient on."""
    builder.send(0, builder.gradient())


@gradient_of("Abs")
def absolute(builder: GradientBuilder) -> None:
    """Multiply the gradient by the input's sign."""
    builder.send(0, builder.op("Mul", builder.gradient(), builder.op("Sign", builder.input(0))))


@gradient_of("Exp")
def exponential(builder: GradientBuilder) -> None:
    """Multiply the gradient by the output."""
    builder.send(0, builder.op("Mul", builder.gradient(), builder.output()))


@gradient_of("Reciprocal")
def reciprocal(builder: GradientBuilder) -> None:
    """Multiply the gradient by the negative square of the output."""
    square = builder.op("Mul", builder.output(), builder.output())
    builder.send(0, builder.op("Mul", builder.gradient(), builder.op("Neg", square)))


@gradient_of("Erf")
def error_function(builder: GradientBuilder) -> None:
    """Multiply the gradient by the bell curve."""
    source = builder.input(0)
    scale = builder.constant(np.array(np.float32(2 / math.sqrt(math.pi)), builder.type(source).dtype.numpy()))
    bell = builder.op("Exp", builder.op("Neg", builder.op("Mul", source, source)))
    builder.send(0, builder.op("Mul", builder.gradient(), builder.op("Mul", scale, bell)))


_RELU6 = (0.0, 6.0)


@gradient_of("Clip")
def clip(builder: GradientBuilder) -> None:
    """Let the gradient pass where the input lies between the limits, ends included or not as the function of torch.

    What lies beyond a limit has the limit's gradient; where the limits cross, the upper one has all, as in torch.

    Exporters write `clamp`, `hardtanh` and `relu6` as Clip. Where they do not say which it was, 0 and 6 are ReLU6's,
    whose ends have no gradient, in torch as in other frameworks.
    """
    _limits(builder)
    if not builder.wants(0):
        return
    source = builder.input(0)
    is_relu6 = all(builder.has(index) for index in (1, 2)) and tuple(map(number_in, builder.node.inputs[1:3])) == _RELU6
    has_no_ends = is_open(builder.node) or (is_relu6 and not is_clamp(builder.node))
    above, below = ("Greater", "Less") if has_no_ends else ("GreaterOrEqual", "LessOrEqual")
    masks = []
    if builder.has(1):
        masks.append(builder.op(above, source, builder.input(1)))
    if builder.has(2):
        masks.append(builder.op(below, source, builder.input(2)))
    if not masks:
        builder.send(0, builder.gradient())
        return
    _send_where(builder, 0, masks[0] if len(masks) == 1 else builder.op("And", *masks))


def _limits(builder: GradientBuilder) -> None:
    """Send the gradients of a Clip's limits that are trained."""
    has_both = builder.has(1) and builder.has(2)
    if builder.wants(1):
        mask = builder.op("Less", builder.input(0), builder.input(1))
        if has_both:
            mask = builder.op("And", mask, builder.op("LessOrEqual", builder.input(1), builder.input(2)))
        _send_where(builder, 1, mask)
    if builder.wants(2):
        mask = builder.op("Greater", builder.input(0), builder.input(2))
        if has_both:
            mask = builder.op("Or", mask, builder.op("Greater", builder.input(1), builder.input(2)))
        _send_where(builder, 2, mask)


def _send_where(builder: GradientBuilder, index: int, mask: ir.Value) -> None:
    """Send the gradient to an input where a mask holds, and zero elsewhere."""
    chosen = builder.op("Mul", builder.gradient(), builder.as_real(mask, builder.output()))
    builder.send(index, builder.reduced(chosen, index))


@gradient_of("Where", stops=(0,))
def where(builder: GradientBuilder) -> None:
    """Send the gradient to the operand that was chosen, and zero to the other."""
    zero = builder.number(0, builder.output())
    for index, branches in ((1, (builder.gradient(), zero)), (2, (zero, builder.gradient()))):
        if builder.wants(index):
            builder.send(index, builder.reduced(builder.op("Where", builder.input(0), *branches), index))


@gradient_of("Cast")
def cast(builder: GradientBuilder) -> None:
    """Convert the gradient back."""
    builder.send(0, builder.op("Cast", builder.gradient(), to=int(builder.type(builder.input(0)).dtype)))


@gradient_of("Dropout", stops=(2,), unknown=(1,))
def dropout(builder: GradientBuilder) -> None:
    """Drop and scale what the forward node dropped and scaled, by the mask that it saved; for inference, nothing."""
    if is_for_inference(builder.node):
        builder.send(0, builder.gradient())
        return
    builder.send(0, builder.own("DropoutGrad", builder.gradient(), builder.output(1), *builder.node.inputs[1:]))


@gradient_of("Max", "Min")
def extreme(builder: GradientBuilder) -> None:
    """Send the gradient to the operand that was chosen; operands that tie share it evenly, as in torch.

    A constant number is a bound, as of `clamp`, if torch's exporter does not say that it is an operand of `maximum`:
    what reaches it has the whole gradient. So has what reaches a tensor that is a bound of `clamp`.
    """
    y, gradient = builder.output(), builder.gradient()
    if is_clamp(builder.node) and len(builder.node.inputs) == 2:
        _clamp(builder)
        return
    bounded = [i for i, each in enumerate(builder.node.inputs) if builder.wants(i) or number_in(each) is None]
    if len(builder.node.inputs) == 2 and len(bounded) == 1 and not is_even(builder.node):
        reached = builder.as_real(builder.op("Equal", builder.input(bounded[0]), y), y)
        builder.send(bounded[0], builder.reduced(builder.op("Mul", gradient, reached), bounded[0]))
        return
    if len(builder.node.inputs) == 1:
        builder.send(0, gradient)
        return
    chosen = [builder.as_real(builder.op("Equal", builder.input(i), y), y) for i in range(len(builder.node.inputs))]
    share = builder.op("Div", gradient, builder.op("Sum", *chosen))
    for index, mask in enumerate(chosen):
        if builder.wants(index):
            builder.send(index, builder.reduced(builder.op("Mul", share, mask), index))


def _clamp(builder: GradientBuilder) -> None:
    """Send the gradient to the first operand, or to the second, the bound, where the first lies beyond it."""
    is_kept, zero = builder.op("Equal", builder.input(0), builder.output()), builder.number(0, builder.output())
    for index, branches in ((0, (builder.gradient(), zero)), (1, (zero, builder.gradient()))):
        if builder.wants(index):
            builder.send(index, builder.reduced(builder.op("Where", is_kept, *branches), index))


@gradient_of("Mean")
def mean(builder: GradientBuilder) -> None:
    """Divide the gradient among the operands."""
    y = builder.output()
    share = builder.op("Div", builder.gradient(), builder.number(len(builder.node.inputs), y))
    for index in range(len(builder.node.inputs)):
        if builder.wants(index):
            builder.send(index, builder.reduced(share, index))
