"""Let a forward graph have parameters where its nodes read a store: a LinearStored becomes a product again.

These nodes (poet_onnx/graph/operators/stored.py) are replaced, or get out of the way as a plan's operators do. The
store's handles are no inputs any more, and the parameters are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from poet_onnx.description.metadata import POET_DOMAIN, handle_name
from poet_onnx.errors import InputError
from poet_onnx.files.onnx_messages import INPUT, NODE, float_type
from poet_onnx.files.protobuf import Field, fields, number_field, numbers, text_field, texts
from poet_onnx.training.forward_graph import NODE_VALUES, ForwardGraph, Node

_NODE_INPUT, _NODE_OUTPUT = NODE_VALUES
_NAME, _OPERATOR, _ATTRIBUTE = 3, 4, 5  # of NodeProto
_ATTRIBUTE_NAME, _NUMBER, _NUMBERS, _ATTRIBUTE_TYPE = 1, 3, 8, 20  # of AttributeProto
_IS_NUMBER, _ARE_NUMBERS = 2, 7  # of AttributeProto.AttributeType

_HANDLE = {"LoadStored": 0, "GatherStored": 0, "LinearStored": 1, "ConvStored": 1}
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
        call = _Call.of(forward, node)
        handle = call.inputs[_HANDLE.get(call.operator, 0)] if call.inputs else ""
        if call.operator not in _HANDLE:
            if handle in tensors:  # a plan's operator, which returns what it reads
                tensors[call.output] = tensors[handle]
            nodes.append(node)
        elif handle not in tensors:
            raise InputError(
                f"Node '{call.name}' of the evaluation graph reads no tensor of a store: rewrite it again."
            )
        else:
            parameter = tensors[handle]
            forward.inputs[parameter] = forward.add(INPUT, text_field(1, parameter) + float_type(call.shape))
            nodes += _plain(forward, node, call, parameter)
    forward.nodes[:] = nodes


def _plain(forward: ForwardGraph, node: Node, call: _Call, parameter: str) -> Iterator[Node]:
    """Yield what is to stand in the place of a node that reads a parameter from a store."""
    made, turned = call.output, call.number("transposed")
    if call.operator == "LoadStored" and not turned:
        yield node._replace(inputs=(parameter,))  # which `remove_plan` takes for one that returns what it reads
    elif call.operator == "LoadStored":
        yield _node(forward, "Transpose", call.name, ([parameter], made))
    elif call.operator == "GatherStored":
        yield _node(forward, "Gather", call.name, ([parameter, call.inputs[1]], made))
    elif call.operator == "ConvStored":
        yield _node(forward, "Conv", call.name, (call.operands(parameter), made), _windows(forward, call))
    elif call.number("biased"):
        yield _node(forward, "Gemm", call.name, (call.operands(parameter), made), {"transB": turned})
    else:
        if turned:
            matrix = f"{made}/matrix"
            yield _node(forward, "Transpose", f"{call.name}/matrix", ([parameter], matrix))
            parameter = matrix
        yield _node(forward, "MatMul", call.name, (call.operands(parameter), made))


@dataclass(frozen=True)
class _Call:
    """A node of the domain `poet`.

    Attributes:
        operator, name, inputs: of it.
        output: its first.
        attributes: which are whole numbers.
    """

    operator: str
    name: str
    inputs: Sequence[str]
    output: str
    attributes: Mapping[str, Sequence[int]]

    @classmethod
    def of(cls, forward: ForwardGraph, node: Node) -> _Call:
        """Read a node."""
        data, attributes = forward.data, dict[str, list[int]]()
        (message,) = fields(data, Field(0, 2, node.begin, node.begin, node.end))
        for field in fields(data, message):
            if field.number == _ATTRIBUTE:
                name = "".join(texts(data, field, _ATTRIBUTE_NAME)[-1:])
                found = [each for each in fields(data, field) if each.number in (_NUMBER, _NUMBERS)]
                attributes[name] = [number for each in found for number in numbers(data, each)]
        operator, said = ("".join(texts(data, message, number)[-1:]) for number in (_OPERATOR, _NAME))
        return cls(
            operator, said, texts(data, message, _NODE_INPUT), node.outputs[0] if node.outputs else "", attributes
        )

    def number(self, name: str) -> int:
        """Return an attribute; 0 where it is missing."""
        return (self.attributes.get(name) or [0])[-1]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the tensor in the store."""
        if self.operator == "ConvStored":
            filters, depth = self.attributes["matrix"]
            kernel = self.attributes["kernel"]
            return filters, depth // math.prod(kernel), *kernel
        known = ("shape", "table", "matrix")
        sizes = next(tuple(self.attributes[name]) for name in known if name in self.attributes)
        return sizes[::-1] if self.operator == "LoadStored" and self.number("transposed") else sizes

    def operands(self, parameter: str) -> list[str]:
        """Return what a product or a convolution reads."""
        return [self.inputs[0], parameter, *self.inputs[2 : 2 + self.number("biased")]]


def _windows(forward: ForwardGraph, call: _Call) -> dict[str, Sequence[int]]:
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


def _node(
    forward: ForwardGraph,
    operator: str,
    name: str,
    values: tuple[Sequence[str], str],
    attributes: Mapping[str, int | Sequence[int]] | None = None,
) -> Node:
    """Return a new node of ONNX's own domain, which reads some values and makes one."""
    inputs, output = values
    message = b"".join(text_field(_NODE_INPUT, each) for each in inputs)
    message += text_field(_NODE_OUTPUT, output) + text_field(_NAME, name) + text_field(_OPERATOR, operator)
    for key, value in (attributes or {}).items():
        said = text_field(_ATTRIBUTE_NAME, key)
        if isinstance(value, int):
            said += number_field(_NUMBER, value) + number_field(_ATTRIBUTE_TYPE, _IS_NUMBER)
        else:
            said += b"".join(number_field(_NUMBERS, each) for each in value) + number_field(
                _ATTRIBUTE_TYPE, _ARE_NUMBERS
            )
        message += text_field(_ATTRIBUTE, said)
    return forward.read_node(forward.add(NODE, message))
