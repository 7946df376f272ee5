"""Graphs that update parameters: the training step itself where that is possible, and one that runs after it.

Rules:
    U1. An accumulator becomes an update of its parameter, in the same place: the gradient is used while it is in the
        processor's cache, and needs no buffer that outlives it. A gradient that comes in parts updates part by part.
    U2. That is done only where every node that reads the parameter's numbers stands before the first of them. A weight
        that only tells its shape, as that of a ConvGrad which computes no data gradient, is not read.
    U3. All other parameters are updated after the step, as all are if gradients are clipped, collected over several
        batches, or to be looked at. Where a buffer takes the gradient of one batch, the node that makes the gradient
        writes it there; where it collects several, or parts, its accumulators stay.
    U4. What the graph updates in place, and is an initializer, becomes an input: so its memory is ours.
    U5. An update's arithmetic is elementwise: its bits depend neither on U1 to U3 nor on parts.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence

import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from poet_onnx.extract.build import plain_attributes
from poet_onnx.operators import MICROSOFT_DOMAIN, traits
from poet_onnx.training.optimizers import Optimizer
from poet_onnx.training.roles import Roles, is_accumulator

RATES = "poet/rates"
"""Input of every update: the numbers that an optimizer's `rates` returns."""

TOTAL = "poet/squares"
"""Input of the graph that sums squares: where the sum goes."""

_DOMAIN, _VERSION = "poet", 1
_IR_VERSION, _OPSET = 8, 15


def slot_name(parameter: str, slot: str) -> str:
    """Return the name of what an optimizer keeps for a parameter."""
    return f"poet/{slot}/{parameter}"


def free_state(model: ir.Model, names: Iterable[str]) -> None:
    """Make inputs of initializers (U4); changes the model."""
    for name in names:
        value = model.graph.initializers.pop(name)
        tensor = value.const_value
        assert tensor is not None
        value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
        value.const_value = None
        if not value.is_graph_input():
            model.graph.inputs.append(value)


def update_in_step(model: ir.Model, roles: Roles, optimizer: Optimizer) -> tuple[str, ...]:
    """Let the training step update parameters where it can (U1, U2); changes the model.

    Returns:
        The parameters that the step updates now. Their buffers are no inputs any more.
    """
    graph = model.graph
    inputs = {value.name: value for value in graph.inputs}
    position = {node: index for index, node in enumerate(graph)}
    chosen: dict[str, list[ir.Node]] = {}
    for parameter, buffer in roles.buffers.items():
        nodes = sorted({node for node, _ in inputs[buffer].uses()}, key=position.__getitem__)
        if all(map(_replaceable, nodes)) and _last_read(inputs[parameter], position) < position[nodes[0]]:
            chosen[parameter] = nodes
    if chosen:
        rates = ir.Value(
            name=RATES, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([optimizer.rates(1, 0.0, 1.0).size])
        )
        graph.inputs.append(rates)
        graph.opset_imports[_DOMAIN] = _VERSION
    for parameter, nodes in chosen.items():
        weight = inputs[parameter]
        slots = [ir.Value(name=slot_name(parameter, s), type=weight.type, shape=weight.shape) for s in optimizer.slots]
        graph.inputs.extend(slots)
        for node in nodes:
            _replace(graph, node, optimizer.operator, [node.inputs[1], rates, weight, *slots])
    _drop_unused(graph, {roles.flag, *(roles.buffers[parameter] for parameter in chosen)})
    return tuple(chosen)


def write_in_step(model: ir.Model, roles: Roles, parameters: Iterable[str]) -> None:
    """Let gradients be written to their buffers without an accumulator where that can be (U3); changes the model.

    The buffers of these become outputs.
    """
    graph = model.graph
    inputs = {value.name: value for value in graph.inputs}
    for parameter in parameters:
        buffer = inputs[roles.buffers[parameter]]
        nodes = [node for node, _ in buffer.uses()]
        gradient = nodes[0].inputs[1]
        if gradient is None or gradient.producer() is None or gradient.is_graph_output():
            continue
        whole = nodes[0].op_type == "InPlaceAccumulatorV2" or gradient.shape == buffer.shape
        if len(nodes) > 1 or not whole or not _replaceable(nodes[0]):
            continue
        place = [output is nodes[0].outputs[0] for output in graph.outputs].index(True)
        graph.outputs[place] = gradient
        nodes[0].outputs[0].replace_all_uses_with(gradient)  # it triggers gates, which take anything
        graph.remove(nodes[0], safe=True)
        graph.inputs.remove(buffer)
        gradient.type, gradient.shape, gradient.name = buffer.type, buffer.shape, buffer.name
    _drop_unused(graph, {roles.flag})


def update_model(roles: Roles, shapes: Mapping[str, Sequence[int]], optimizer: Optimizer) -> bytes:
    """Return a model that updates parameters from their gradient buffers, in place.

    Args:
        roles: of the training graph.
        shapes: of the parameters to update.
        optimizer: what to update with.
    """
    inputs = [helper.make_tensor_value_info(RATES, TensorProto.FLOAT, [optimizer.rates(1, 0.0, 1.0).size])]
    nodes = []
    for parameter, shape in shapes.items():
        names = [roles.buffers[parameter], parameter, *(slot_name(parameter, slot) for slot in optimizer.slots)]
        inputs += [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in names]
        operands = [names[0], RATES, *names[1:]]
        nodes.append(_node(optimizer.operator, operands, f"poet/updated/{parameter}", offset=0))
    return _model(nodes, inputs)


def squares_model(roles: Roles, shapes: Mapping[str, Sequence[int]]) -> bytes:
    """Return a model that adds the squares of all gradients to a total, in place and in the order of the parameters."""
    inputs = [helper.make_tensor_value_info(TOTAL, TensorProto.DOUBLE, [1])]
    nodes = []
    for parameter, shape in shapes.items():
        buffer = roles.buffers[parameter]
        inputs.append(helper.make_tensor_value_info(buffer, TensorProto.FLOAT, shape))
        nodes.append(_node("AddSquares", [buffer, TOTAL], f"poet/squared/{parameter}"))
    return _model(nodes, inputs)


def _drop_unused(graph: ir.Graph, names: Container[str]) -> None:
    for value in [value for value in graph.inputs if value.name in names and not value.uses()]:
        graph.inputs.remove(value)


def _node(operator: str, operands: Sequence[str], output: str, offset: int | None = None) -> onnx.NodeProto:
    node: onnx.NodeProto = helper.make_node(operator, operands, [output], name=output, domain=_DOMAIN)
    if offset is not None:
        node.attribute.append(helper.make_attribute("offset", offset))
    return node


def _model(nodes: Sequence[onnx.NodeProto], inputs: Sequence[onnx.ValueInfoProto]) -> bytes:
    outputs = [helper.make_tensor_value_info(node.output[0], TensorProto.BOOL, [1]) for node in nodes]
    graph = helper.make_graph(list(nodes), "poet", list(inputs), outputs)
    imports = [helper.make_opsetid("", _OPSET), helper.make_opsetid(_DOMAIN, _VERSION)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=imports, ir_version=_IR_VERSION)
    payload: bytes = model.SerializeToString()
    return payload


def _replaceable(node: ir.Node) -> bool:
    """Return whether an update may stand in for an accumulator: one of a dense gradient, whose sum nobody reads."""
    summed = len(node.outputs) > 1 and (node.outputs[1].uses() or node.outputs[1].is_graph_output())
    return is_accumulator(node) and node.op_type != "AccumulateRows" and not summed


def _replace(graph: ir.Graph, old: ir.Node, operator: str, inputs: Sequence[ir.Value | None]) -> None:
    offset = ir.AttrInt64("offset", old.attributes.get_int("offset", 0))
    output = ir.Value(type=old.outputs[0].type, shape=old.outputs[0].shape)
    new = ir.Node(_DOMAIN, operator, inputs, [offset], outputs=[output], name=old.name)
    graph.insert_before(old, new)
    name = old.outputs[0].name
    old.outputs[0].replace_all_uses_with(output, replace_graph_outputs=True)
    graph.remove(old, safe=True)
    output.name = name


def _last_read(parameter: ir.Value, position: Mapping[ir.Node, int]) -> float:
    """Return the place of the last node that reads a parameter's numbers, directly or through views (U2)."""
    last = -math.inf
    pending = [parameter]
    while pending:
        for node, index in pending.pop().uses():
            aliases = ((0, 0),) if node.domain == _DOMAIN and node.op_type == "Gate" else _aliases(node)
            views = [node.outputs[target] for source, target in aliases if source == index]
            pending += views
            if not views and not _reads_shape_alone(node, index):
                last = max(last, position[node])
    return last


def _aliases(node: ir.Node) -> tuple[tuple[int, int], ...]:
    return traits(node.domain, node.op_type, plain_attributes(node)).aliases


def _reads_shape_alone(node: ir.Node, index: int) -> bool:
    if node.domain == MICROSOFT_DOMAIN and node.op_type == "ConvGrad" and index == 2:
        data = node.outputs[0]
        return not data.name or not (data.uses() or data.is_graph_output())
    if node.op_type == "Slice" and index == 0:
        return all(_reads_shape_alone(reader, place) for reader, place in node.outputs[0].uses())
    return False
