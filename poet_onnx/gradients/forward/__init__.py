"""What ONNX Runtime's artifact generator changes in a forward model before it differentiates it."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from poet_onnx.gradients.forward.elimination import drop_idle_nodes
from poet_onnx.gradients.forward.gelu import fuse_gelu
from poet_onnx.gradients.forward.layer_norm import fuse_layer_norm, repeat_scales
from poet_onnx.gradients.forward.names import free_gradient_names
from poet_onnx.gradients.forward.padding import say_windows
from poet_onnx.gradients.forward.recurrent import expand_recurrent
from poet_onnx.gradients.forward.saved import save_for_gradients, save_lengths
from poet_onnx.gradients.order import Numbers
from poet_onnx.gradients.registry import gradient
from poet_onnx.passes.casts import MergeCasts
from poet_onnx.passes.einsum import PairOperands, ReduceOperands
from poet_onnx.passes.expand import ExpandFunctions
from poet_onnx.passes.normalize import FoldConstants, FoldShapes, InlineFunctions, NameNodes, Normalization, WriteShapes

__all__ = ["prepare_forward"]


def prepare_forward(model: ir.Model, trained: Sequence[ir.Value]) -> Numbers:
    """Bring a forward model into the form that is differentiated, and return the numbers of its nodes.

    Functions are inlined, shapes and constants folded; sums of products have two operands; layer normalization and Gelu
    become one node each; nodes that do nothing go; nodes whose gradients need more than their result return it.

    Args:
        model: with its loss; changed in place.
        trained: parameters, which are inputs of the graph.

    Raises:
        InputError: the model cannot be differentiated.
    """
    graph = model.graph
    free_gradient_names(graph, trained)
    Normalization(InlineFunctions(), FoldConstants(), NameNodes())(model)
    expand_recurrent(model, trained)
    while ExpandFunctions(_has_only_a_body)(model).modified:
        Normalization(FoldConstants(), NameNodes())(model)
    Normalization(ReduceOperands(), PairOperands())(model)
    repeat_scales(model)
    say_windows(model)
    numbers = Numbers(graph)
    Normalization(FoldShapes(), MergeCasts())(model)
    fuse_layer_norm(model, numbers)
    fuse_gelu(model, numbers)
    drop_idle_nodes(model)
    save_for_gradients(model, numbers)
    Normalization(WriteShapes())(model)
    save_lengths(graph, numbers)
    numbers.write()
    Normalization(WriteShapes())(model)
    return numbers


def _has_only_a_body(node: ir.Node) -> bool:
    """Return whether nobody has said how an operator is differentiated; ONNX may define it by others."""
    return gradient(node) is None and not node.domain
