"""What passes that find patterns ask of values: who alone reads them, and which numbers they are."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import onnx_ir as ir

from poet_onnx.graph.operators import ONNX_DOMAINS
from poet_onnx.passes.views import only_maker, sizes_of

_NEAR = 1e-6
"""By how much a number may differ from what it is to be: constants are float32."""


def made_by(value: ir.Value | None, *operators: str) -> ir.Node | None:
    """Return the node that makes a value, where it is one of ONNX's operators of these names."""
    maker = value.producer() if value is not None else None
    return maker if maker is not None and maker.op_type in operators and maker.domain in ONNX_DOMAINS else None


def made_alone(value: ir.Value | None, *operators: str) -> ir.Node | None:
    """Return the node that makes a value which is read once, where it is one of ONNX's operators of these names."""
    return made_by(value, *operators) if only_maker(value) is not None else None


def only_reader(value: ir.Value, *operators: str) -> ir.Node | None:
    """Return the node that alone reads a value, once or several times, where it is one of these operators."""
    readers = {use.node for use in value.uses()}
    if len(readers) != 1 or value.is_graph_output():
        return None
    (reader,) = readers
    return reader if reader.op_type in operators and reader.domain in ONNX_DOMAINS else None


def other_input(node: ir.Node, value: ir.Value) -> ir.Value | None:
    """Return what a node of two inputs reads beside a value; None where it reads that alone."""
    first, second = node.inputs
    return second if first is value else first


def number_in(value: ir.Value | None) -> float | None:
    """Return the number that a value always is, if it is a constant of one element, or a node's that makes one."""
    is_fixed = value is not None and not value.is_graph_input()
    tensor = ir.convenience.get_const_tensor(value) if value is not None and is_fixed else None
    if tensor is None or tensor.size != 1 or tensor.dtype == ir.DataType.STRING:
        return None
    return float(np.asarray(tensor.numpy()).reshape(()))


def is_number(value: ir.Value | None, number: float) -> bool:
    """Return whether a value is a constant near a number, or is 0 where that is 0."""
    found = number_in(value)
    return found is not None and abs(found - number) <= _NEAR * abs(number)


def behind_guard(weights: ir.Value) -> tuple[ir.Value, bool]:
    """Return weights behind what makes zeros of NaN, and whether there is such a thing."""
    readers = {use.node for use in weights.uses()}
    test = next((node for node in readers if node.op_type == "IsNaN"), None)
    choice = next((node for node in readers if node.op_type == "Where"), None)
    if len(readers) != 2 or test is None or choice is None or weights.is_graph_output():
        return weights, False
    guards = choice.inputs[0] is test.outputs[0] and number_in(choice.inputs[1]) == 0 and choice.inputs[2] is weights
    return (choice.outputs[0], True) if guards else (weights, False)


def is_float(value: ir.Value | None) -> bool:
    """Return whether a value is of float32, and has a static shape."""
    return (
        value is not None and value.dtype == ir.DataType.FLOAT and value.shape is not None and value.shape.is_static()
    )


def is_frozen(value: ir.Value | None, trained: Collection[str]) -> bool:
    """Return whether a value is a constant of floats that is not trained."""
    if value is None or value.const_value is None or value.is_graph_input():
        return False
    return value.is_initializer() and value.name not in trained and is_float(value)


def last_axis_of(node: ir.Node, value: ir.Value) -> bool:
    """Return whether a reduction keeps its dimensions and goes along the last axis of what it reads alone."""
    axes = node.attributes.get("axes")
    along = tuple(axes.as_ints()) if axes is not None else integers_in(node.inputs[1] if len(node.inputs) > 1 else None)
    return node.attributes.get_int("keepdims", 1) == 1 and along in ((-1,), (len(sizes_of(value)) - 1,))


def integers_in(value: ir.Value | None) -> tuple[int, ...] | None:
    """Return the whole numbers that a constant holds; None where it is none."""
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    return tuple(int(number) for number in np.atleast_1d(value.const_value.numpy()))


def led_to_by(graph: ir.Graph, names: Collection[str]) -> set[ir.Value]:
    """Return all values to which named initializers lead, themselves included."""
    found = {value for name, value in graph.initializers.items() if name in names}
    for node in graph:
        if any(value in found for value in node.inputs):
            found.update(node.outputs)
    return found
