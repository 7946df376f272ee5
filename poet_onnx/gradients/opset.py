"""Models of old versions of ONNX's operators, raised to the oldest in which gradients are written."""

from __future__ import annotations

import onnx
import onnx.version_converter
import onnx_ir as ir

from poet_onnx.errors import InputError

OLDEST_OPSET = 13

_INITIALIZERS_ALONE = 4
"""The version of the file format from which on an initializer need not be an input."""


def raise_opset(model: ir.Model) -> ir.Model:
    """Return a model whose ONNX operators are of version 13 at least: the model itself, or a converted one.

    Args:
        model: a forward model.

    Raises:
        InputError: if ONNX's own converter cannot raise it.
    """
    version = model.opset_imports.get("", OLDEST_OPSET)
    if version >= OLDEST_OPSET:
        return model
    proto = ir.to_proto(model)
    proto.ir_version = max(proto.ir_version, _INITIALIZERS_ALONE)
    try:
        raised = onnx.version_converter.convert_version(proto, OLDEST_OPSET)
    except (onnx.version_converter.ConvertError, RuntimeError, ValueError) as error:  # ValueError: more than 2 GiB
        reason = " ".join(str(error).split()).removesuffix(".")
        raise InputError(
            f"The model's operators are of ONNX opset {version}, and ONNX cannot convert them to {OLDEST_OPSET}"
            f" ({reason}): export it with opset {OLDEST_OPSET} or later."
        ) from error
    return ir.from_proto(raised)
