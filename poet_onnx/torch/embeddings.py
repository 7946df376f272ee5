"""Embeddings of torch in what its legacy exporter writes, where they look like any other `table[index]`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from poet_onnx.gradients.forward.patterns import is_op
from poet_onnx.gradients.module_names import is_call_of, module_of
from poet_onnx.graph.extract.ranges import IS_EMBEDDING

if TYPE_CHECKING:
    from torch import nn


def mark_embeddings(model: ir.Model, module: nn.Module) -> None:
    """Say of a layer's node that torch refuses a negative index there; changes the model."""
    from torch.nn import Embedding

    names = [name for name, each in module.named_modules() if type(each).forward is Embedding.forward]
    for node in model.graph:
        if is_op(node, "Gather") and any(is_call_of(module_of(node), name) for name in names):
            node.metadata_props[IS_EMBEDDING] = "1"
