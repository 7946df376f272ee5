"""Loads an ONNX file; says in one sentence why where it cannot be used."""

from __future__ import annotations

import os
from pathlib import Path

import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped, unused-ignore]

from poet_onnx.errors import InputError
from poet_onnx.shapes.declared import check_kind, describe


def load_model(path: str | os.PathLike[str]) -> ir.Model:
    """Load an ONNX model; weights in external files stay there and are read when they are needed.

    Args:
        path: of a binary ONNX file.

    Raises:
        InputError: no such file, not an ONNX model, a truncated one, or external data that is missing or too short.
    """
    file = Path(path)
    try:
        if file.is_dir():
            raise InputError(f"{file} is a directory: give the ONNX file in it.")
        if not file.stat().st_size:
            raise InputError(f"{file} is empty: export the model again.")
        model = ir.load(file)
    except OSError as problem:
        raise InputError(f"{file} cannot be read: {problem.strerror or problem}.") from problem
    except ir.serde.SerdeError as problem:
        cause: BaseException = problem
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = " ".join(str(cause).split()).rstrip(".")
        raise InputError(f"{file} is not a valid ONNX model: {reason}.") from problem
    except (DecodeError, ValueError, TypeError, KeyError, AttributeError) as problem:
        raise InputError(f"{file} is not an ONNX model, or it is truncated: export the model again.") from problem
    if not model.opset_imports or not model.ir_version:
        raise InputError(f"{file} is not an ONNX model, or it is truncated: it names no operator set.")
    if not len(model.graph):
        raise InputError(f"{file} holds a model without nodes: export the model again.")
    _check_external_data(model, file)
    return model


def _check_external_data(model: ir.Model, file: Path) -> None:
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if not isinstance(tensor, ir.ExternalTensor):
            continue
        data = Path(tensor.base_dir, tensor.location)
        try:
            size_bytes = data.stat().st_size
        except OSError as problem:
            raise InputError(
                f"The external data of initializer '{name}' cannot be read: {data}: {problem.strerror};"
                f" put the data file beside {file.name}."
            ) from problem
        needed_bytes = (tensor.offset or 0) + (tensor.length or tensor.nbytes)
        if size_bytes < needed_bytes:
            raise InputError(
                f"{data} is truncated: it has {size_bytes} bytes, and initializer '{name}' needs {needed_bytes}."
            )


def check_structure(model: ir.Model) -> None:
    """Check that a model consists of plain nodes on tensors of numbers.

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
