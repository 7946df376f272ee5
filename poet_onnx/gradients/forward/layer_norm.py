"""Layer normalization, which exporters write as nine nodes before opset 17, as one node with a whole scale and bias."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from poet_onnx.gradients.forward.patterns import (
    NoMatchError,
    first_input,
    is_op,
    maker,
    only_reader,
    other_input,
    readers,
    require,
    require_same_shape,
)
from poet_onnx.gradients.order import Numbers
from poet_onnx.graph.shapes import Inferred, infer
from poet_onnx.passes.fused.reading import is_number, number_in
from poet_onnx.passes.node_builder import initializer, replace_nodes

LARGEST_EPSILON = 1e-2
"""A larger number under the root is no guard against zero."""


@dataclass(frozen=True)
class _Match:
    """Nodes that normalize a tensor.

    Attributes:
        nodes: all of them, the last one last.
        inputs: tensor, scale and bias.
        axis: from which on is normalized.
        epsilon: added to the variance.
    """

    nodes: tuple[ir.Node, ...]
    inputs: tuple[ir.Value, ir.Value, ir.Value]
    axis: int
    epsilon: float


def fuse_layer_norm(model: ir.Model, numbers: Numbers) -> None:
    """Replace mean, difference, square, mean, root, quotient, scale and bias by LayerNormalization."""
    inferred = infer(model)
    for node in numbers.visit():
        if not is_op(node, "ReduceMean"):
            continue
        try:
            found = _match(node, inferred)
        except NoMatchError:
            continue
        fused = ir.Node(
            "",
            "LayerNormalization",
            found.inputs,
            [ir.AttrInt64("axis", found.axis), ir.AttrFloat32("epsilon", found.epsilon), ir.AttrInt64("stash_type", 1)],
            num_outputs=3,
            name=f"{found.nodes[-1].name}/LayerNormalization",
        )
        last = found.nodes[-1].outputs[0]
        fused.outputs[1].name, fused.outputs[2].name = f"{last.name}_saved_mean", f"{last.name}_saved_inv_std_var"
        replace_nodes(model.graph, found.nodes, [fused], [last])
        numbers.add(fused)


def repeat_scales(model: ir.Model) -> None:
    """Write out scales and biases of LayerNormalization that are repeated: its gradient takes whole ones."""
    inferred: Inferred | None = None
    for node in model.graph:
        if not is_op(node, "LayerNormalization"):
            continue
        inferred = inferred or infer(model)
        shape = inferred.types[first_input(node).name or ""].shape
        normalized = shape[node.attributes.get_int("axis", -1) % len(shape) :]
        for index, value in enumerate(node.inputs[1:], start=1):
            if value is None or inferred.types[value.name or ""].elements == math.prod(normalized):
                continue
            name = f"{node.name}/repeated_{index}"
            sizes = initializer(model.graph, f"{name}/shape", np.array(normalized, np.int64))
            whole = ir.Node("", "Expand", [value, sizes], num_outputs=1, name=name)
            whole.outputs[0].name = name
            model.graph.insert_before(node, whole)
            node.replace_input_with(index, whole.outputs[0])


def _match(mean: ir.Node, inferred: Inferred) -> _Match:
    """Return what a mean belongs to, which must be a layer normalization that nobody looks into."""
    source = first_input(mean)
    difference = only_reader(mean.outputs[0], "Sub")
    require(difference.inputs[0] is source)
    users = sorted(readers(difference.outputs[0]), key=lambda node: node.op_type)
    require([node.op_type for node in users] == ["Div", "Pow"])
    quotient, square = users
    require(quotient.inputs[0] is difference.outputs[0] and is_number(square.inputs[1], 2.0))
    variance = only_reader(square.outputs[0], "ReduceMean")
    shifted = only_reader(variance.outputs[0], "Add")
    root = only_reader(shifted.outputs[0], "Sqrt")
    require(only_reader(root.outputs[0], "Div") is quotient and maker(quotient.inputs[1], "Sqrt") is root)
    epsilon = number_in(other_input(shifted, variance.outputs[0]))
    if epsilon is None or not 0 <= epsilon <= LARGEST_EPSILON:
        raise NoMatchError
    scaled = only_reader(quotient.outputs[0], "Mul")
    biased = only_reader(scaled.outputs[0], "Add")
    scale, bias = other_input(scaled, quotient.outputs[0]), other_input(biased, scaled.outputs[0])
    axis, shape = _axis(mean, inferred), inferred.types[source.name or ""].shape
    require(axis == _axis(variance, inferred))
    require(all(inferred.types[value.name or ""].shape == shape[axis:] for value in (scale, bias)))
    require_same_shape(source, biased.outputs[0], inferred)
    nodes = (mean, difference, square, variance, shifted, root, quotient, scaled, biased)
    return _Match(nodes, (source, scale, bias), axis - len(shape), epsilon)


def _axis(mean: ir.Node, inferred: Inferred) -> int:
    """Return the axis from which on a mean is taken; there must be one, and the rank must not change."""
    rank = len(inferred.types[first_input(mean).name or ""].shape)
    require(mean.attributes.get_int("keepdims", 1) == 1)
    axes: Sequence[int] = mean.attributes.get_ints("axes") or ()
    if not axes and len(mean.inputs) > 1 and mean.inputs[1] is not None:
        known = inferred.values.get(mean.inputs[1].name or "")
        axes = () if known is None else [int(axis) for axis in known.ravel()]
    found = sorted(axis % rank for axis in axes)
    require(bool(found) and found == list(range(found[0], rank)))
    return found[0]
