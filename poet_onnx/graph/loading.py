"""Models as users give them: a file, a protobuf message, or a model in memory."""

from __future__ import annotations

import os

import onnx
import onnx_ir as ir

from poet_onnx.errors import InputError
from poet_onnx.files.external_data import hold_external, refuse_external
from poet_onnx.graph.extract import check_wellformed, declare_known_ir, load_model, read_proto


def as_model(model_or_path: str | os.PathLike[str] | onnx.ModelProto | ir.Model) -> ir.Model:
    """Return a model that may be changed: loaded from a file, read from a protobuf message, or copied.

    Raises:
        InputError: if there is no such file, or it is no ONNX model or one that does not hang together.
    """
    if isinstance(model_or_path, ir.Model):
        check_wellformed(model_or_path)
        model = model_or_path.clone()
        declare_known_ir(model)
        hold_external(model)
    elif isinstance(model_or_path, onnx.ModelProto):
        model = read_proto(model_or_path, "The ModelProto")
        refuse_external(model, "a ModelProto")
    elif isinstance(model_or_path, (str, os.PathLike)):
        model = load_model(model_or_path)
    else:
        raise InputError(
            f"A model cannot be a {type(model_or_path).__name__}: give a path, an onnx.ModelProto or an onnx_ir.Model."
        )
    return model
