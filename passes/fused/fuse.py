"""Write single nodes for the layers of a decoder.

An exporter writes about a hundred nodes for a layer, their gradients are twice as many, and a session keeps some 8 KiB
for each. The nodes are the training graph's definition, so that all its plans have the same bits. What evaluates beside
it has them, too; what is exported keeps the exporter's nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import onnx_ir as ir
from onnx_ir.passes import InPlacePass

from poet_onnx.description.names import POET_DOMAIN, POET_VERSION
from poet_onnx.passes.casts import MergeCasts
from poet_onnx.passes.fused.attention import UseAttention
from poet_onnx.passes.fused.gated_activation import UseGatedActivation
from poet_onnx.passes.fused.heads import ReadHeadsInRows
from poet_onnx.passes.fused.low_rank import AddLowRank, JoinGradients, PartGradients
from poet_onnx.passes.fused.plain import DropCopies, FoldNumbers
from poet_onnx.passes.fused.rms_norm import UseRmsNormalize
from poet_onnx.passes.fused.rotary import UseRotate
from poet_onnx.passes.fused.shared_masks import ShareMasks
from poet_onnx.passes.normalize import FoldShapes
from poet_onnx.passes.unread import RemoveUnread


def fuse_layers(model: ir.Model, trained: Collection[str]) -> None:
    """Write single nodes in a forward graph with static shapes, as far as its nodes are known.

    Args:
        model: changed in place.
        trained: names of initializers that are trained.
    """
    plain: list[InPlacePass] = [DropCopies(), MergeCasts(), FoldShapes(), FoldNumbers()]
    steps: list[InPlacePass] = [
        UseRmsNormalize(trained),
        UseGatedActivation(),
        UseRotate(trained),
        UseAttention(trained),  # behind what puts transpositions in front of it
        ShareMasks(),
        ReadHeadsInRows(),
        AddLowRank(trained),
    ]
    with _given(model.graph, trained):
        for step in plain:
            step(model)
        modified = [step(model).modified for step in steps]
    if any(modified):
        model.graph.opset_imports[POET_DOMAIN] = POET_VERSION
        RemoveUnread()(model)


@contextmanager
def _given(graph: ir.Graph, names: Collection[str]) -> Iterator[None]:
    """Let initializers that are trained be inputs for a while: no pass takes their numbers for constants."""
    values = [value for name, value in graph.initializers.items() if name in names and not value.is_graph_input()]
    graph.inputs.extend(values)
    try:
        yield
    finally:
        for value in values:
            graph.inputs.remove(value)


def fuse_gradients(model: ir.Model) -> None:
    """Join and part nodes of a training graph, as far as there are nodes of `fuse_layers`: changed in place."""
    JoinGradients()(model)
    PartGradients()(model)
