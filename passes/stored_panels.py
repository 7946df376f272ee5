"""Products on panels of what a store has, in place of loads of whole parameters.

Rules:
    P1. Matrices of linear layers (linear_stored.py) and filters of convolutions (conv_stored.py) are read panel by
        panel, and updated so within the node that makes the gradients.
    P2. Panels keep the bits of whole products for shapes for which they do on the machine that rewrites; for others the
        gradient is whole, then the parameter is loaded. Larger panels are tried before that.
    P3. The model has what repeats the comparison on the machine that trains, for large parameters with fewer rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.graph.operators.panels import BACKWARD
from poet_onnx.passes.conv_stored import ConvLayer
from poet_onnx.passes.linear_stored import LinearLayer
from poet_onnx.passes.panel_comparison import AnyComparison, note_comparisons


def writes_panels(node: ir.Node) -> bool:
    """Return whether a node uses a gradient up that is never whole."""
    return node.domain == POET_DOMAIN and node.op_type.startswith(BACKWARD)


def has_panels(node: ir.Node) -> bool:
    """Return whether a node reads or writes panels of what is in a store."""
    return writes_panels(node) or (node.domain == POET_DOMAIN and node.op_type in ("LinearStored", "ConvStored"))


class _Layer(Protocol):
    """All nodes that load a parameter, and what reads it."""

    def comparisons(self, *, backward: bool) -> Iterator[tuple[AnyComparison, ...]]:
        """Yield, for some sizes of panels, all comparisons that must hold; nothing where there is no such form."""
        ...

    def write(self, panel: int, *, backward: bool) -> None:
        """Write the nodes that have panels of so many rows."""
        ...


class UseStoredPanels(InPlacePass):
    """Let layers read their parameters panel by panel, and use up gradients so.

    Requires a graph with static shapes whose parameters are loaded from a store.
    """

    def __init__(self, keeps_bits: Callable[[AnyComparison], bool]) -> None:
        """Set what says whether panels have the bits of a whole product."""
        super().__init__()
        self._keeps_bits = keeps_bits

    def call(self, model: ir.Model) -> PassResult:
        """Write the nodes, and what repeats their comparison."""
        graph = model.graph
        done: dict[AnyComparison, None] = {}
        for handle in list(graph.inputs):
            layer: _Layer | None = LinearLayer.of(graph, handle) or ConvLayer.of(graph, handle)
            if layer is not None:
                done |= dict.fromkeys(self._written(layer))
        note_comparisons(model, done)
        return PassResult(model, modified=bool(done))

    def _written(self, layer: _Layer) -> tuple[AnyComparison, ...]:
        """Write a layer's nodes where they keep the bits, and return the comparisons that are to be repeated (P3)."""
        for backward in (True, False):
            for comparisons in layer.comparisons(backward=backward):
                repeated = tuple(comparison.where_it_trains for comparison in comparisons)
                if all(map(self._keeps_bits, dict.fromkeys((*comparisons, *repeated)))):
                    layer.write(comparisons[0].panel_rows, backward=backward)
                    return repeated
        return ()
