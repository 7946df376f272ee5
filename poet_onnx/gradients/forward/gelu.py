"""Gelu with the error function, which exporters write as five nodes before opset 20, as one node, with its bias."""

from __future__ import annotations

import math

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
from poet_onnx.graph.operators import MICROSOFT_DOMAIN
from poet_onnx.graph.shapes import Inferred, infer
from poet_onnx.passes.fused.reading import is_number
from poet_onnx.passes.node_builder import replace_nodes


def fuse_gelu(model: ir.Model, numbers: Numbers) -> None:
    """Replace x / sqrt(2), erf, + 1, * x, / 2 by Gelu, and a sum with a vector before it by BiasGelu."""
    if not any(is_op(node, "Erf") for node in model.graph):
        return
    fused, inferred = [], infer(model)
    for node in numbers.visit():
        if not is_op(node, "Div", "Mul"):
            continue
        try:
            source, nodes = _match(node)
            require_same_shape(source, nodes[-1].outputs[0], inferred)
        except NoMatchError:
            continue
        gelu = ir.Node(MICROSOFT_DOMAIN, "Gelu", [source], num_outputs=1, name=f"{nodes[-1].name}/Gelu")
        replace_nodes(model.graph, nodes, [gelu], [nodes[-1].outputs[0]])
        numbers.add(gelu)
        fused.append(gelu)
    if not fused:
        return
    model.opset_imports.setdefault(MICROSOFT_DOMAIN, 1)
    for gelu in fused:
        _take_bias(model.graph, gelu, numbers, inferred)


def _match(scaled: ir.Node) -> tuple[ir.Value, list[ir.Node]]:
    """Return the argument and the nodes of the Gelu that begins with a node, the last one last."""
    source = first_input(scaled)
    require(is_number(scaled.inputs[1], math.sqrt(2) if scaled.op_type == "Div" else math.sqrt(0.5)))
    error = only_reader(scaled.outputs[0], "Erf")
    shifted = only_reader(error.outputs[0], "Add")
    require(is_number(other_input(shifted, error.outputs[0]), 1.0))
    product = only_reader(shifted.outputs[0], "Mul")
    factor = other_input(product, shifted.outputs[0])
    if factor is source:
        halved = only_reader(product.outputs[0], "Mul")
        require(is_number(other_input(halved, product.outputs[0]), 0.5))
        return source, [scaled, error, shifted, product, halved]
    half = maker(factor, "Mul")
    require(only_reader(factor, "Mul") is product and is_number(other_input(half, source), 0.5))
    return source, [half, scaled, error, shifted, product]


def _take_bias(graph: ir.Graph, gelu: ir.Node, numbers: Numbers, inferred: Inferred) -> None:
    """Let a Gelu add the vector that its argument is the sum with."""
    source = first_input(gelu)
    total = source.producer()
    if total is None or not is_op(total, "Add") or source.is_graph_output() or readers(source) != {gelu}:
        return
    shapes = [inferred.types[value.name or ""].shape if value is not None else () for value in total.inputs]
    for index in (1, 0):
        bias, shape = shapes[index], shapes[1 - index]
        if len(bias) == 1 and len(shape) > 1 and shape[-1:] == bias:
            operands = [total.inputs[1 - index], total.inputs[index]]
            fused = ir.Node(MICROSOFT_DOMAIN, "BiasGelu", operands, num_outputs=1, name=gelu.name)
            replace_nodes(graph, [total, gelu], [fused], [gelu.outputs[0]])
            numbers.add(fused)
            return
