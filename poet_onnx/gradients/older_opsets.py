"""Forward models of opsets so old that operators mean something else in them: converted to a newer one."""

from __future__ import annotations

import onnx_ir as ir
from google.protobuf.message import EncodeError  # type: ignore[import-untyped, unused-ignore]
from onnx import version_converter
from onnx.shape_inference import InferenceError

from poet_onnx.errors import InputError
from poet_onnx.passes.node_builder import replace_nodes

OLDEST_OPSET, OPSET = 13, 17
"""The oldest version of ONNX's operators whose gradients are known, and the one that older ones are converted to."""

_FIRST_COORDINATES = 11
"""The opset from which on a Resize says which elements it takes."""

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
        newer = ir.from_proto(version_converter.convert_version(proto, OPSET))
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
    for node in list(newer.graph):
        if node.op_type == "Resize" and version < _FIRST_COORDINATES:
            _keep_coordinates(node)
        elif node.op_type == "Hardmax":
            _keep_axes(node, newer.graph)
    return newer


def _keep_coordinates(node: ir.Node) -> None:
    """Say of a Resize, or an Upsample, how it was computed before it could say so; the converter leaves that out.

    The nearest element is that below where a size grows, and that above where it shrinks (`GetNearestPixelFunction` in
    onnxruntime/core/providers/cpu/tensor/upsamplebase.h of github.com/microsoft/onnxruntime, v1.19.2).

    Raises:
        InputError: if it shrinks one size and leaves or makes another one larger, which a Resize of today cannot.
    """
    node.attributes["coordinate_transformation_mode"] = ir.AttrString("coordinate_transformation_mode", "asymmetric")
    if node.attributes.get_string("mode", "nearest") != "nearest":
        return
    tensor = ir.convenience.get_const_tensor(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else None
    scales = [] if tensor is None else [float(scale) for scale in tensor.numpy().reshape(-1) if scale != 1]
    grows, shrinks = any(scale > 1 for scale in scales), any(scale < 1 for scale in scales)
    if tensor is None or (grows and shrinks):
        raise InputError(
            f"The {node.op_type} '{node.name or node.outputs[0].name}' of the nearest element"
            f" {'has scales that are computed' if tensor is None else 'makes one size larger and another one smaller'},"
            f" which it does otherwise from opset {_FIRST_COORDINATES} on: export the model with opset {OLDEST_OPSET}"
            " or later."
        )
    node.attributes["nearest_mode"] = ir.AttrString("nearest_mode", "ceil" if shrinks else "floor")


def _keep_axes(node: ir.Node, graph: ir.Graph) -> None:
    """Let a Hardmax choose among all elements from its axis on, as it did before opset 13."""
    axis = node.attributes.get_int("axis", 1)
    shape = ir.Node("", "Shape", [node.inputs[0]])
    flat = ir.Node("", "Flatten", [node.inputs[0]], [ir.AttrInt64("axis", axis)])
    chosen = ir.Node("", "Hardmax", [flat.outputs[0]], [ir.AttrInt64("axis", 1)], name=node.name)
    back = ir.Node("", "Reshape", [chosen.outputs[0], shape.outputs[0]])
    replace_nodes(graph, [node], [shape, flat, chosen, back], node.outputs)
