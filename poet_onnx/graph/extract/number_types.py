"""Types of numbers that ONNX Runtime has no CPU kernels for, told before a plan is made."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from poet_onnx.errors import InputError
from poet_onnx.graph.operators import ONNX_DOMAINS
from poet_onnx.graph.shapes.declared import describe

TO_FLOAT = "export the model in float32, in torch by module.float() and without autocast"
"""What to do about other types of numbers."""

_MOVE = ("Cast", "Identity", "Reshape", "Transpose", "Gather")
"""Operators whose CPU kernels take bfloat16 (measured with 1.19.2; others such as Relu, Mul and MatMul do not)."""


def check_number_types(model: ir.Model, *, module_of: Callable[[ir.Node], str] = lambda _: "") -> None:
    """Check that no node computes in bfloat16: stored weights may be, where a node casts them before they are used.

    Args:
        model: a forward model or a training graph.
        module_of: returns the name of the torch module that a node is in; empty if nothing tells.

    Raises:
        InputError: naming the first such tensor.
    """
    for node in model.graph.all_nodes():
        if node.op_type in _MOVE and node.domain in ONNX_DOMAINS:
            continue
        for value in (*node.inputs, *node.outputs):
            if value is not None and _is_bfloat16(value):
                module = module_of(node)
                where = f" in the module '{module}'" if module else ""
                raise InputError(
                    f"Tensor '{value.name}' of {describe(node)}{where} is bfloat16, which ONNX Runtime cannot compute"
                    f" with on the CPU: {TO_FLOAT}, and where `forward` casts to bfloat16, let it cast to float32."
                )


def _is_bfloat16(value: ir.Value) -> bool:
    maker = value.producer()
    is_cast = maker is not None and maker.op_type == "Cast" and maker.domain in ONNX_DOMAINS
    to = maker.attributes.get_int("to", 0) if maker is not None and is_cast else 0
    return ir.DataType.BFLOAT16 in (value.dtype, to)
