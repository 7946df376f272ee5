"""Let a forward graph have parameters where its nodes read a store: a LinearStored becomes a product again.

These nodes (poet_onnx/graph/operators/stored.py) are replaced, or get out of the way as a plan's operators do. The
store's handles are no inputs any more, and the parameters are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from poet_onnx.description.names import POET_DOMAIN, handle_name
from poet_onnx.errors import InputError
from poet_onnx.files.element_types import NUMBERS
from poet_onnx.files.onnx_messages import INPUT, tensor_type
from poet_onnx.files.protobuf import text_field
from poet_onnx.training.forward_calls import ForwardCall, new_node
from poet_onnx.training.forward_graph import ForwardGraph, Node

_FLOAT = NUMBERS["float32"]
HANDLES = {"LoadStored": 0, "GatherStored": 0, "LinearStored": 1, "ConvStored": 1}
"""Operators that read a store in a graph that does not train, and which input is the handle."""


def take_from_store(forward: ForwardGraph) -> None:
    """Change a graph that reads a store; nothing changes in another one.

    Raises:
        InputError: if it cannot be told what a node computes.
    """
    prefix = handle_name("")
    tensors = {name: name[len(prefix) :] for name in forward.inputs if name.startswith(prefix)}
    if not tensors:
        return
    for name in tensors:
        del forward.inputs[name]
    nodes: list[Node] = []
    for node in forward.nodes:
        if POET_DOMAIN not in node.domains:
            nodes.append(node)
            continue
        call = ForwardCall.of(forward, node)
        handle = call.inputs[HANDLES.get(call.operator, 0)] if call.inputs else ""
        if call.operator not in HANDLES:
            if handle in tensors:  # a plan's operator, which returns what it reads
                tensors[call.output] = tensors[handle]
            nodes.append(node)
        elif handle not in tensors:
            raise InputError(
                f"Node '{call.name}' of the evaluation graph reads no tensor of a store: rewrite it again."
            )
        else:
            parameter = tensors[handle]
            forward.inputs[parameter] = forward.add(INPUT, text_field(1, parameter) + tensor_type(_FLOAT, call.shape))
            nodes += _plain(forward, node, call, parameter)
    forward.nodes[:] = nodes


def _plain(forward: ForwardGraph, node: Node, call: ForwardCall, parameter: str) -> Iterator[Node]:
    """Yield what is to stand in the place of a node that reads a parameter from a store."""
    made, turned = call.output, call.number("transposed")
    if call.operator == "LoadStored" and not turned:
        yield node._replace(inputs=(parameter,))  # which `remove_plan` takes for one that returns what it reads
    elif call.operator == "LoadStored":
        yield new_node(forward, "Transpose", call.name, ([parameter], made))
    elif call.operator == "GatherStored":
        yield new_node(forward, "Gather", call.name, ([parameter, call.inputs[1]], made))
    elif call.operator == "ConvStored":
        yield new_node(forward, "Conv", call.name, (call.operands(parameter), made), _windows(forward, call))
    elif call.number("biased"):
        yield new_node(forward, "Gemm", call.name, (call.operands(parameter), made), {"transB": turned})
    else:
        if turned:
            matrix = f"{made}/matrix"
            yield new_node(forward, "Transpose", f"{call.name}/matrix", ([parameter], matrix))
            parameter = matrix
        yield new_node(forward, "MatMul", call.name, (call.operands(parameter), made))


def _windows(forward: ForwardGraph, call: ForwardCall) -> dict[str, Sequence[int]]:
    """Return the attributes of a Conv, which has as much padding behind an image as its last window reaches."""
    kernel, strides, dilations, begins, pixels = (
        call.attributes[name] for name in ("kernel", "strides", "dilations", "begins", "pixels")
    )
    image = forward.shape_of(call.inputs[0])
    if image is None:
        raise InputError(f"The evaluation graph has no shape of '{call.inputs[0]}': rewrite it again.")
    spans = (
        (count - 1) * stride + (taps - 1) * apart + 1
        for count, stride, taps, apart in zip(pixels, strides, kernel, dilations, strict=True)
    )
    ends = [max(0, span - begin - size) for span, begin, size in zip(spans, begins, image[2:], strict=True)]
    return {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": [*begins, *ends]}
