"""What passes have in common that need plain nodes on tensors of numbers."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import InPlacePass

from poet_onnx.graph.extract import check_structure


class StructuredPass(InPlacePass):
    """A pass for models that consist of plain nodes on tensors of numbers; any other is refused."""

    def requires(self, model: ir.Model) -> None:
        """The model is such a one."""
        check_structure(model)
