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

_KEEPS = (
    *("_to_copy", "_unsafe_view", "alias", "broadcast", "chunk", "clone", "contiguous", "detach", "dropout", "expand"),
    *("flatten", "getitem", "index", "lift_fresh", "narrow", "permute", "reshape", "select", "slice", "split"),
    *("squeeze", "t_", "to_", "transpose", "type_as", "unflatten", "unsqueeze", "view"),
)
"""How the names begin of calls that may return what they are given."""


def names_of(node: ir.Node) -> list[str]:
    """Return the names of the tensors that the call of a node is given."""
    return _NAME.findall(_arguments(node))


def moved_names(node: ir.Node, index: int, made: Container[str]) -> tuple[str, ...]:
    """Return which calls that keep numbers, for which there is no node, may have made what a node reads at an input."""
    names = names_of(node)
    if len(names) == len(node.inputs):  # the node reads them in the order of the call
        names = [names[index]]
    return tuple(each for each in names if each not in made and _keeps(each))


def is_own(node: ir.Node, value: ir.Value, made: Container[str]) -> bool | None:
    """Return whether a tensor that a node reads, which may be a parameter's, is a constant of its call.

    It is if it is a number that the call is given, or if the call is given nothing through which a parameter may have
    come: all that it mentions is there, or was made of nothing.

    Args:
        node: reads the tensor.
        value: the tensor, which has the numbers of a parameter that the call does not mention.
        made: names of what is in the graph.

    Returns:
        None if it may be what the exporter computed of the parameter.
    """
    gone = [each for each in names_of(node) if each not in made]
    number = np.asarray(value.const_value.numpy()) if value.const_value is not None else np.zeros(0)
    if any(each.startswith(_MAKES) for each in gone):
        return True
    if number.size == 1 and any(number.dtype.type(each) == number for each in _NUMBER.findall(_arguments(node))):
        return True
    if any(map(_keeps, gone)):
        return False
    if len(gone) > len(list(others(node))):  # the others go by the names of what was computed before
        return None
    return bool(_arguments(node))


def others(node: ir.Node) -> Iterable[ir.Value]:
    """Return what a node reads that neither its call names nor another node of that call made."""
    names, call = set(names_of(node)), node.metadata_props.get(CALL, "")
    for value in filter(None, node.inputs):
        maker = value.producer()
        if maker is not None and value.name not in names and maker.metadata_props.get(CALL, "") != call:
            yield value


def gone_sums(graph: ir.Graph, results: Iterable[str]) -> set[str]:
    """Return the calls of sums and products for which there is no node, though something reads what they return.

    Args:
        graph: of the model.
        results: names of the calls whose results the program returns.
    """
    called = {found[1] for node in graph if (found := _OWN.match(node.metadata_props.get(CALL, "")))}
    read = {*results, *(name for node in graph for name in names_of(node))}
    return {name for name in read - called if _SUM.fullmatch(name)}


def _keeps(name: str) -> bool:
    """Return whether a call, by the name of its result, returns numbers that it was given."""
    return name == "t" or name.startswith(_KEEPS)


def _arguments(node: ir.Node) -> str:
    return node.metadata_props.get(CALL, "").partition("](args")[2]
