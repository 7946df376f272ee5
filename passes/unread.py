"""Initializers that nobody reads any more: ONNX Runtime drops them when it loads a model, and warns about each."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult


class RemoveUnread(InPlacePass):
    """Remove initializers that no node reads and that are no outputs; inputs, with their default values, stay."""

    def call(self, model: ir.Model) -> PassResult:
        """Remove them."""
        initializers = model.graph.initializers
        unread = [
            name
            for name, value in initializers.items()
            if not (value.uses() or value.is_graph_output() or value.is_graph_input())
        ]
        for name in unread:
            del initializers[name]
        return PassResult(model, modified=bool(unread))
