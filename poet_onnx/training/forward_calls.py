"""Nodes of a forward graph as calls: operators of ours are read, and plain ones written in their place."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from poet_onnx.files.onnx_messages import NODE
from poet_onnx.files.protobuf import Field, fields, number_field, numbers, text_field, texts
from poet_onnx.training.forward_graph import NODE_VALUES, ForwardGraph, Node

_NODE_INPUT, _NODE_OUTPUT = NODE_VALUES
_NAME, _OPERATOR, _ATTRIBUTE = 3, 4, 5  # of NodeProto
_ATTRIBUTE_NAME, _NUMBER, _TEXT, _NUMBERS, _ATTRIBUTE_TYPE = 1, 3, 4, 8, 20  # of AttributeProto
_IS_NUMBER, _ARE_NUMBERS = 2, 7  # of AttributeProto.AttributeType


@dataclass(frozen=True)
class ForwardCall:
    """A node of the domain `poet`.

    Attributes:
        operator, name, inputs: of it.
        output: its first.
        attributes: which are whole numbers.
        texts: attributes which are texts.
    """

    operator: str
    name: str
    inputs: Sequence[str]
    output: str
    attributes: Mapping[str, Sequence[int]]
    texts: Mapping[str, str]

    @classmethod
    def of(cls, forward: ForwardGraph, node: Node) -> ForwardCall:
        """Read a node."""
        data, attributes, said_in_words = forward.data, dict[str, list[int]](), dict[str, str]()
        (message,) = fields(data, Field(0, 2, node.begin, node.begin, node.end))
        for field in fields(data, message):
            if field.number == _ATTRIBUTE:
                name = "".join(texts(data, field, _ATTRIBUTE_NAME)[-1:])
                found = [each for each in fields(data, field) if each.number in (_NUMBER, _NUMBERS)]
                attributes[name] = [number for each in found for number in numbers(data, each)]
                for each in texts(data, field, _TEXT):
                    said_in_words[name] = each
        operator, said = ("".join(texts(data, message, number)[-1:]) for number in (_OPERATOR, _NAME))
        return cls(
            operator,
            said,
            texts(data, message, _NODE_INPUT),
            node.outputs[0] if node.outputs else "",
            attributes,
            said_in_words,
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


def new_node(
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
