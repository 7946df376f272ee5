"""What is known of a graph's tensors is not asked again, and what has changed is."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest

from poet_onnx.errors import InputError
from poet_onnx.graph.shapes import Inferred, infer

MODEL = """
    <ir_version: 9, opset_import: ["": 15]>
    graph (float[2, 6] x, float[3] unused) => (z)
    <int64[2] shape = {3, 4}, float[1] one = {1.0}>
    {
        a = Relu(x)
        s = Add(shape, shape)
        t = Sub(s, shape)
        b = Reshape(a, t)
        c = Softmax <axis = 0> (b)
        d = Cast <to = 1> (c)
        e = Add(d, one)
        z = Flatten <axis = 1> (e)
    }
"""
NODES = 8


def model() -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(MODEL))


def node(of: ir.Model, op_type: str) -> ir.Node:
    return next(node for node in of.graph if node.op_type == op_type)


def fresh(of: ir.Model) -> Inferred:
    """Return what is found of a copy of the graph that has kept nothing."""
    return infer(ir.from_proto(ir.to_proto(of)))


def facts(found: Inferred) -> object:
    return found.types, {name: (value.dtype, value.tolist()) for name, value in found.values.items()}


def axis(of: ir.Model) -> None:
    node(of, "Flatten").attributes["axis"] = ir.AttrInt64("axis", 2)


def number_type(of: ir.Model) -> None:
    node(of, "Cast").attributes["to"] = ir.AttrInt64("to", 11)
    of.graph.initializers["one"].type = None
    of.graph.initializers["one"].const_value = ir.tensor(np.ones(1))
    of.graph.outputs[0].type = None


def constant(of: ir.Model) -> None:
    of.graph.initializers["shape"].const_value = ir.tensor(np.array([6, 2], np.int64))


def input_shape(of: ir.Model) -> None:
    of.graph.inputs[0].shape = ir.Shape([4, 3])


def operator(of: ir.Model) -> None:
    node(of, "Sub").op_type = "Div"
    of.graph.inputs[0].shape = ir.Shape([4])


def no_constant(of: ir.Model) -> None:
    of.graph.inputs.append(of.graph.initializers["one"])


def opset(of: ir.Model) -> None:
    of.graph.opset_imports[""] = 19
    of.graph.opset_imports["poet"] = 1


@pytest.mark.parametrize(
    ("change", "asked"),
    [
        (axis, 1),
        (number_type, 3),  # Cast and what comes after it
        (constant, 7),  # all but Relu
        (input_shape, 2),  # what Reshape makes of it has the shape that it had
        (operator, 7),
        (no_constant, 1),  # the Add that reads it
        (opset, 2),  # Reshape and Cast are others in it
    ],
)
@pytest.mark.parametrize("copies", [False, True])
def test_a_change_asks_the_nodes_that_it_touches(
    change: Callable[[ir.Model], None], asked: int, *, copies: bool
) -> None:
    changed = model()
    assert infer(changed).asked == NODES
    changed = changed.clone() if copies else changed
    assert infer(changed).asked == 0
    change(changed)
    found = infer(changed)
    assert found.asked == asked
    assert facts(found) == facts(fresh(changed))


def test_a_declaration_that_a_change_made_wrong_is_refused() -> None:
    changed = model()
    infer(changed)
    node(changed, "Softmax").outputs[0].shape = ir.Shape([4, 3])
    with pytest.raises(InputError, match=r"'c', made by .* is declared as \[4, 3\] and is FLOAT \[3, 4\]"):
        infer(changed)


def test_rules_that_look_beyond_their_inputs_are_asked_each_time() -> None:
    """The gradient of a pooling reads the shape of what was pooled off the node that made its indices."""
    pool = "y, i = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x)"
    gradient = "d = com.microsoft.MaxPoolGrad <kernel_shape = [2, 2], strides = [2, 2]> (y, i)"
    text = f"""
        <ir_version: 9, opset_import: ["": 15, "com.microsoft": 1]>
        graph (float[1, 1, 4, 4] x, float[1, 1, 5, 5] w) => (float[N, C, H, W] d) {{ {pool} {gradient} }}
    """
    pooled = ir.from_proto(onnx.parser.parse_model(text))
    assert infer(pooled).types["d"].shape == (1, 1, 4, 4)
    node(pooled, "MaxPool").replace_input_with(0, pooled.graph.inputs[1])
    found = infer(pooled)
    assert found.asked == 2
    assert found.types["d"].shape == (1, 1, 5, 5)
