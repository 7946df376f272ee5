"""What the call of torch that a node was written for is given, as torch's dynamo exporter tells it."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable

import numpy as np
import onnx_ir as ir

CALL = "pkg.torch.onnx.fx_node"
"""Where a node has the call."""

_OWN = re.compile(r"%(\w+) : ")
_NAME = re.compile(r"%(\w+)")
_NUMBER = re.compile(r"(?<![\w.%])-?\d+(?:\.\d*)?(?:e[+-]?\d+)?(?![\w.])")
_SUM = re.compile(r"(?:add|sub|rsub|mul|div)(?:_\d+)?")

_MAKES = ("arange", "empty", "eye", "full", "lin", "new_", "ones", "scalar_tensor", "zeros")
"""How the names begin of calls that make a tensor of nothing."""


def names_of(node: ir.Node) -> list[str]:
    """Return the names of the tensors that the call of a node is given."""
    return _NAME.findall(_arguments(node))


def has_constant(node: ir.Node, value: ir.Value, made: Container[str]) -> bool:
    """Return whether a tensor that a node reads, which may be a parameter's, is a constant of its call.

    It is if it is a number that the call is given, or if the call is given nothing through which a parameter may have
    come: all that it mentions is there, or was made of nothing.

    Args:
        node: reads the tensor.
        value: the tensor, which has the numbers of a parameter that the call does not mention.
        made: names of what is in the graph.
    """
    arguments = _arguments(node)
    gone = [each for each in names_of(node) if each not in made]
    if any(each.startswith(_MAKES) for each in gone) or (arguments and not gone):
        return True
    number = np.asarray(value.const_value.numpy()) if value.const_value is not None else np.zeros(0)
    return number.size == 1 and any(number.dtype.type(each) == number for each in _NUMBER.findall(arguments))


def gone_sums(graph: ir.Graph, results: Iterable[str]) -> set[str]:
    """Return the calls of sums and products for which there is no node, though something reads what they return.

    Args:
        graph: of the model.
        results: names of the calls whose results the program returns.
    """
    called = {found[1] for node in graph if (found := _OWN.match(node.metadata_props.get(CALL, "")))}
    read = {*results, *(name for node in graph for name in names_of(node))}
    return {name for name in read - called if _SUM.fullmatch(name)}


def _arguments(node: ir.Node) -> str:
    return node.metadata_props.get(CALL, "").partition("](args")[2]
