"""The operators that have a gradient, and the rule of each: a function of a builder below `@gradient_of("Conv")`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import onnx_ir as ir

from poet_onnx.description.names import STOPS_GRADIENT
from poet_onnx.gradients.builder import GradientBuilder
from poet_onnx.gradients.torch_calls import is_detach
from poet_onnx.graph.operators import MICROSOFT_DOMAIN, ONNX_DOMAINS

Rule: TypeAlias = Callable[[GradientBuilder], None]


@dataclass(frozen=True)
class Gradient:
    """How an operator is differentiated.

    Attributes:
        rule: writes the gradient's nodes; None for an operator through which none flows.
        stops: inputs that no gradient is of by their nature: shapes, indices, masks, modes.
        unknown: inputs that one would be of if anybody had said it, such as a scale: what they are made of is refused
            if it trains by other ways.
    """

    rule: Rule | None
    stops: frozenset[int] = frozenset()
    unknown: frozenset[int] = frozenset()


_GRADIENTS: dict[tuple[str, str], Gradient] = {}


def gradient_of(
    *op_types: str, domain: str = "", stops: tuple[int, ...] = (), unknown: tuple[int, ...] = ()
) -> Callable[[Rule], Rule]:
    """Register a function as the gradient of operators.

    The function must send a gradient to every input that the builder wants one of, but for those named here.

    Args:
        op_types: names of the operators.
        domain: of the operators; "" for ONNX's own.
        stops: inputs that no gradient is of by their nature, such as shapes and indices.
        unknown: inputs whose gradient the function does not know.
    """

    def register(rule: Rule) -> Rule:
        for op_type in op_types:
            _GRADIENTS[domain, op_type] = Gradient(rule, frozenset(stops), frozenset(unknown))
        return rule

    return register


def without_gradient(*op_types: str, unknown: tuple[int, ...] = ()) -> None:
    """Register operators whose outputs do not change with small changes of their inputs, or are no real numbers.

    Args:
        op_types: names of the operators.
        unknown: inputs with which the outputs do change, though nobody has said how.
    """
    for op_type in op_types:
        _GRADIENTS["", op_type] = Gradient(None, unknown=frozenset(unknown))


def gradient(node: ir.Node) -> Gradient | None:
    """Return how a node is differentiated, or None if nobody has said."""
    if stops_gradient(node):
        return Gradient(None)
    domain = "" if node.domain in ONNX_DOMAINS else node.domain
    found = _GRADIENTS.get((domain, node.op_type))
    if found is None and not domain:  # ONNX Runtime knows some of its own operators under ONNX's domain, too
        found = _GRADIENTS.get((MICROSOFT_DOMAIN, node.op_type))
    return found


def stops_gradient(node: ir.Node) -> bool:
    """Return whether no gradient flows through a node because the program says so."""
    return STOPS_GRADIENT in node.metadata_props or is_detach(node)
