"""Forward models of opsets so old that operators mean something else in them: converted to a newer one."""

from __future__ import annotations

import onnx_ir as ir
from google.protobuf.message import EncodeError  # type: ignore[import-untyped, unused-ignore]
from onnx import version_converter
from onnx.shape_inference import InferenceError

from poet_onnx.errors import InputError

OLDEST_OPSET, OPSET = 13, 17
"""The oldest version of ONNX's operators whose gradients are known, and the one that older ones are converted to."""

_INITIALIZERS_ALONE = 4
"""The version of the file format from which on an initializer need not be an input."""


def converted(model: ir.Model) -> ir.Model:
    """Return a model whose operators mean what they mean in the oldest known opset or later.

    Raises:
        InputError: if onnx cannot convert it.
    """
    version = model.opset_imports.get("", OPSET)
    if version >= OLDEST_OPSET:
        return model
    try:
        ir.external_data.load_to_model(model)  # the converter leaves out what is in other files
        proto = ir.to_proto(model)
        proto.ir_version = max(proto.ir_version, _INITIALIZERS_ALONE)
        return ir.from_proto(version_converter.convert_version(proto, OPSET))
    except (
        version_converter.ConvertError,
        InferenceError,
        RuntimeError,
        ValueError,
        EncodeError,
    ) as error:  # also above 2 GiB
        reason = str(error).strip().splitlines()[0].rpartition(" failed: ")[2].rstrip(".")
        raise InputError(
            f"The model is of ONNX opset {version}, and onnx cannot convert it to {OPSET} ({reason}):"
            f" export it with opset {OLDEST_OPSET} or later."
        ) from error
