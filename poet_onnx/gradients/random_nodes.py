"""Nodes of a forward model that draw random numbers, or would, and may not be meant as they are."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from poet_onnx.errors import quoted
from poet_onnx.gradients.forward.elimination import has_no_ratio, is_for_inference
from poet_onnx.gradients.forward.patterns import is_op


def warn_of_draws(graph: ir.Graph, warn: Callable[[str], None]) -> None:
    """Warn of draws that come out the other way round, and of a Dropout that never draws.

    Args:
        graph: of the forward model, whose constants are folded.
        warn: called with a sentence about each kind.
    """
    drawn = [node.name for node in graph if is_op(node, "Bernoulli")]
    if drawn:  # the body that ONNX gives the operator compares so
        warn(
            f"'{drawn[0]}' (Bernoulli) is 1 with probability 1 - p, not p, in ONNX Runtime (1.19.2 and 1.31.1 alike):"
            " compare uniform numbers with p instead, in torch as rand_like(p) < p."
        )
    dropouts = [node for node in graph if is_op(node, "Dropout") and not has_no_ratio(node)]
    idle = [node.name for node in dropouts if is_for_inference(node)]
    if idle:
        warn(
            f"Dropout {quoted(idle, 1)} was exported for inference and drops nothing, in training either: export the"
            " model in training mode, or give each node a third input, `training_mode`, that is true."
        )
