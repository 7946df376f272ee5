"""Nodes of a forward model that draw random numbers, or would, and may not be meant as they are."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from poet_onnx.errors import quoted
from poet_onnx.graph.extract.contents import constant_array
from poet_onnx.graph.operators import ONNX_DOMAINS


def warn_of_draws(graph: ir.Graph, warn: Callable[[str], None]) -> None:
    """Warn of draws that come out the other way round, and of a Dropout that never draws.

    Args:
        graph: of the forward model.
        warn: called with a sentence about each kind.
    """
    own = [node for node in graph if node.domain in ONNX_DOMAINS]
    drawn = [node.name for node in own if node.op_type == "Bernoulli"]
    if drawn:  # the body that ONNX gives the operator compares so
        warn(
            f"'{drawn[0]}' (Bernoulli) is 1 with probability 1 - p, not p, in ONNX Runtime (1.19.2 and 1.31.1 alike):"
            " compare uniform numbers with p instead, in torch as rand_like(p) < p."
        )
    idle = [node.name for node in own if node.op_type == "Dropout" and _never_draws(node)]
    if idle:
        warn(
            f"Dropout {quoted(idle, 1)} was exported for inference and drops nothing, in training either: export the"
            " model in training mode, or give each node a third input, `training_mode`, that is true."
        )


def _never_draws(node: ir.Node) -> bool:
    """Return whether a Dropout with a ratio above 0 is told not to train."""
    ratio, training = (node.inputs[place] if place < len(node.inputs) else None for place in (1, 2))
    is_on = training is not None and _number(training) != 0.0
    return not is_on and (ratio is None or _number(ratio) != 0.0)


def _number(value: ir.Value) -> float | None:
    """Return the number of a constant; None for a value that is computed, or is none."""
    tensor = ir.convenience.get_const_tensor(value)
    array = None if tensor is None else constant_array(value.name or "", tensor)
    return float(array.item()) if array is not None and array.size == 1 else None
