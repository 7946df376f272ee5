"""Loads an ONNX file; says in one sentence why where it cannot be used."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped, unused-ignore]

from poet_onnx.errors import InputError
from poet_onnx.files.embedded import LEAST_FILE_BYTES, SparseModel
from poet_onnx.files.external_data import hold_external
from poet_onnx.graph.extract.makers import other_kind
from poet_onnx.graph.extract.wellformed import check_proto, check_wellformed
from poet_onnx.graph.shapes.declared import check_kind, describe

KNOWN_IR_VERSION = 10
"""The newest that all supported runtimes read: onnxruntime-training 1.19.2 reads up to 10, 1.23 of onnxruntime to 11,
1.31 to 13 (measured). Later ones add element types of eight bits and fewer, and where nodes run (onnx/onnx.proto)."""


def load_model(path: str | os.PathLike[str]) -> ir.Model:
    """Load an ONNX model; weights in external files stay there and are read when they are needed.

    Args:
        path: of a binary ONNX file.

    Raises:
        InputError: no such file, not an ONNX model, one that does not hang together, or external data that are missing,
            too short or not in the model's folder.
    """
    file = Path(path)
    try:
        status = file.stat()
        if file.is_dir():
            raise InputError(f"{file} is a directory: give the ONNX file in it.")
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"{file} is a device, pipe or socket: give an ONNX file.")
        if not status.st_size:
            raise InputError(f"{file} is empty: export the model again.")
        sparse = _sparse(file) if status.st_size >= LEAST_FILE_BYTES else None
        proto = onnx.load(file, format="protobuf", load_external_data=False) if sparse is None else sparse.proto
        folders = tuple(dict.fromkeys((file.parent.resolve(), file.resolve().parent)))
    except OSError as problem:
        raise InputError(f"{file} cannot be read: {problem.strerror or problem}.") from problem
    except (DecodeError, ValueError) as problem:
        if "\0" in str(file):
            raise InputError(f"{str(file)!r} is not an ONNX model: no file has such a name.") from problem
        with file.open("rb") as opened:
            raise InputError(f"{file} {other_kind(opened.read(16))}.") from problem
    if not proto.opset_import or not proto.ir_version:
        raise InputError(f"{file} is not an ONNX model, or it is truncated: it names no operator set.")
    if not proto.graph.node:
        raise InputError(f"{file} holds a model without nodes: export the model again.")
    model = read_proto(proto, f"{file}")
    if sparse is not None:
        sparse.hold(model)
    hold_external(model, folders)
    return model


def _sparse(file: Path) -> SparseModel | None:
    """Return a model with large tensors in its file; None for a file that a parser is to judge."""
    try:
        return SparseModel(file)
    except (InputError, DecodeError):
        return None


def read_proto(proto: onnx.ModelProto, source: str) -> ir.Model:
    """Return the model in a protobuf message, whose external data have not been looked at.

    Args:
        proto: the message.
        source: what to call it in errors.

    Raises:
        InputError: if it does not hang together.
    """
    try:
        check_proto(proto)
        model = ir.from_proto(proto)
    except (
        RuntimeError,
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        AssertionError,
        ArithmeticError,
    ) as problem:
        cause: BaseException = problem
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = " ".join(str(cause).split()).rstrip(".")
        raise InputError(f"{source} is not a valid ONNX model: {reason}.") from problem
    check_wellformed(model)
    declare_known_ir(model)
    return model


def declare_known_ir(model: ir.Model) -> None:
    """Let a model be of an IR version that runtimes read, so that all that is made of it is; changes the model."""
    model.ir_version = min(model.ir_version, KNOWN_IR_VERSION)


def check_structure(model: ir.Model) -> None:
    """Check that a model that hangs together consists of plain nodes on tensors of numbers.

    Raises:
        InputError: calls of model functions, subgraphs, sequences, maps, optionals, strings, names used twice.
    """
    for value in (*model.graph.inputs, *model.graph.outputs):
        check_kind(value, "The graph input" if value.is_graph_input() else "The graph output")
    made: set[str] = set(model.graph.initializers) | {value.name or "" for value in model.graph.inputs}
    for node in model.graph:
        if node.op_identifier() in model.functions:
            raise InputError(
                f"The {describe(node)} calls a function of the model: run poet_onnx.passes.normalize() on it,"
                " which puts the function's nodes in its place."
            )
        for attribute in node.attributes.values():
            if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
                raise InputError(
                    f"The {describe(node)} holds a subgraph: only graphs without control flow can be scheduled;"
                    " export the model with fixed shapes and unrolled loops."
                )
        for value in node.outputs:
            if value.name and value.name in made:
                raise InputError(f"Tensor '{value.name}', made by {describe(node)}, has a name that is already in use.")
            made.add(value.name or "")
            if value.name:
                check_kind(value, f"Made by {describe(node)}, tensor")
