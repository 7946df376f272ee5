"""Masks of zeros and ones that a model draws, such as those of stochastic depth, become those of a Dropout.

timm's `DropPath`, torchvision's `StochasticDepth` and transformers' copies of them draw a mask in training and none in
evaluation. An export in training mode shows the draws alone: a comparison of uniform numbers with a probability, or the
floor of their sum. As Dropout of ones, times that probability, a mask keeps its distribution, a checkpoint resumes it,
and evaluation has its mean. What the model then divides by the probability is what it computes without a mask.
"""

from __future__ import annotations

import contextlib

import numpy as np
import onnx_ir as ir

from poet_onnx.gradients.forward.patterns import (
    NoMatchError,
    is_op,
    maker,
    only_reader,
    other_input,
    readers,
    require,
)
from poet_onnx.passes.node_builder import let_stand_for

UNIFORM = ("RandomUniform", "RandomUniformLike")

_CASTS = ("Cast", "CastLike")
_TYPE_SOURCES = {"CastLike": 1, "Identity": 0, "Expand": 0}
"""Which input the numbers of an operator's output have the type of."""


def masks_as_dropout(model: ir.Model) -> bool:
    """Write each mask that is recognized with a Dropout; return whether there is one, and the model has changed."""
    found = False
    for node in list(model.graph):
        if is_op(node, "Less", "Floor"):
            with contextlib.suppress(NoMatchError):
                (_compared if node.op_type == "Less" else _floored)(model.graph, node)
                found = True
    return found


def filled(node: ir.Node, value: float) -> list[ir.Node]:
    """Return nodes that make a tensor of one number with the shape and type of what a node draws."""
    dtype = node.attributes.get_int("dtype", 0)
    like = node.inputs[0].dtype if node.inputs and node.inputs[0] is not None else None
    kind = ir.DataType(dtype) if dtype else like or ir.DataType.FLOAT
    number_tensor = ir.AttrTensor("value", ir.tensor(np.array([value], kind.numpy())))
    if node.op_type.endswith("Like"):
        shape = ir.Node("", "Shape", node.inputs[:1], name=f"{node.name}/shape")
    else:
        sizes = ir.tensor(np.array(node.attributes.get_ints("shape"), np.int64))
        shape = ir.Node("", "Constant", [], [ir.AttrTensor("value", sizes)], name=f"{node.name}/shape")
    shape.outputs[0].name = f"{node.name}/shape"
    return [shape, ir.Node("", "ConstantOfShape", [shape.outputs[0]], [number_tensor], name=node.name)]


def _compared(graph: ir.Graph, less: ir.Node) -> None:
    """Replace uniform numbers that are less than a probability, where all that read them want floats."""
    uniform = _uniform(less.inputs[0])
    casts = readers(less.outputs[0])
    require(bool(casts) and not less.outputs[0].is_graph_output())
    require(all(is_op(cast, *_CASTS) and _makes_floats(cast) for cast in casts))
    mask = _mask(graph, less, uniform, _probability(less.inputs[1]))
    for cast in casts:
        cast.replace_input_with(0, mask)
    graph.remove(less, safe=True)
    graph.remove([*readers(uniform.outputs[0]), uniform], safe=True)


def _floored(graph: ir.Graph, floor: ir.Node) -> None:
    """Replace the floor of a probability plus a uniform number."""
    added = maker(floor.inputs[0], "Add")
    only_reader(added.outputs[0], "Floor")
    drawn = [value for value in added.inputs if value is not None and is_op(value.producer(), *UNIFORM)]
    require(len(drawn) == 1)
    uniform = _uniform(drawn[0])
    mask = _mask(graph, floor, uniform, _probability(other_input(added, drawn[0])))
    let_stand_for(mask, floor.outputs[0])
    for node in (floor, added, uniform):
        graph.remove(node, safe=True)


def _mask(graph: ir.Graph, before: ir.Node, uniform: ir.Node, probability: float) -> ir.Value:
    """Return a mask of the shape of uniform numbers that is 1 with a probability, and the probability in evaluation."""
    ones = filled(uniform, 1.0)
    kind = uniform.outputs[0].dtype or ones[-1].attributes["value"].as_tensor().dtype
    numbers = {
        "ratio": ir.tensor(np.array(1 - probability, np.float32)),
        "training": ir.tensor(np.array(True)),
        "probability": ir.tensor(np.array(probability, kind.numpy())),
    }
    name = uniform.name or ""
    constants = {
        key: ir.Node("", "Constant", [], [ir.AttrTensor("value", each)], name=f"{name}/{key}")
        for key, each in numbers.items()
    }
    ratio, training, kept = (node.outputs[0] for node in constants.values())
    ones[-1].name = f"{name}/ones"
    dropout = ir.Node("", "Dropout", [ones[-1].outputs[0], ratio, training], name=f"{name}/mask")
    scaled = ir.Node("", "Mul", [dropout.outputs[0], kept], name=name)
    nodes = [*ones, *constants.values(), dropout, scaled]
    for node in nodes:
        node.outputs[0].name = node.outputs[0].name or f"{node.name}/output"
    for node in (ones[-1], dropout, scaled):
        node.outputs[0].type, node.outputs[0].shape = ir.TensorType(kind), uniform.outputs[0].shape
    graph.insert_before(before, nodes)
    return scaled.outputs[0]


def _uniform(value: ir.Value | None) -> ir.Node:
    """Return the node that draws a value from 0 to 1, which nobody else reads."""
    node = maker(value, *UNIFORM)
    require(node.attributes.get_float("low", 0.0) == 0.0 and node.attributes.get_float("high", 1.0) == 1.0)
    typed = [use for use in node.outputs[0].uses() if is_op(use.node, "CastLike") and use.idx == 1]
    require(len(node.outputs[0].uses()) == 1 + len(typed))  # a probability may be cast to its type
    require(all(readers(use.node.outputs[0]) <= readers(node.outputs[0]) for use in typed))
    return node


def _origin(value: ir.Value | None) -> ir.Value:
    """Return what a value is but for its type."""
    node = value.producer() if value is not None else None
    while node is not None and is_op(node, "Identity", *_CASTS):
        value = node.inputs[0]
        node = value.producer() if value is not None else None
    require(value is not None)
    assert value is not None
    return value


def _probability(value: ir.Value | None) -> float:
    """Return a constant between 0 and 1."""
    tensor = ir.convenience.get_const_tensor(_origin(value))
    require(tensor is not None and tensor.size == 1)
    assert tensor is not None
    found = float(np.asarray(tensor.numpy()).reshape(()))
    require(0.0 < found < 1.0)
    return found


def _makes_floats(cast: ir.Node) -> bool:
    """Return whether a cast has floats for its result."""
    kind = _type(cast.outputs[0])
    return kind is not None and kind.is_floating_point()


def _type(value: ir.Value | None) -> ir.DataType | None:
    """Return the type of a value's numbers; exporters leave out those of some values."""
    while value is not None and value.dtype is None:
        node = value.producer()
        if node is not None and is_op(node, "Cast"):
            return ir.DataType(node.attributes["to"].as_int())
        source = _TYPE_SOURCES.get(node.op_type) if node is not None else None
        value = node.inputs[source] if node is not None and source is not None else None
    return None if value is None else value.dtype
