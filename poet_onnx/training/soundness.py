"""What a session takes for granted of a model, checked when it is loaded: the model may come from a stranger."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from poet_onnx.errors import InputError
from poet_onnx.shapes.declared import describe

Array = npt.NDArray[np.generic]


def check_sound(model: ir.Model, role: str) -> None:
    """Check that every value of a model comes from somewhere and has a name of its own, and that constants have data.

    Args:
        model: as it was loaded.
        role: what to call it in errors.

    Raises:
        InputError: if it is otherwise, in one sentence that names the node or value.
    """
    graph = model.graph
    constants = [value for value in graph.initializers.values() if not value.is_graph_input()]
    names: set[str] = set()
    for value in (*graph.inputs, *constants, *(value for node in graph for value in node.outputs if value.name)):
        if not value.name or value.name in names:
            raise InputError(f"The {role} has two values named '{value.name}', or one without a name: export it again.")
        names.add(value.name)
    for name, value in graph.initializers.items():
        constant_array(name, value.const_value)
    _check_made(graph, role, set(graph.initializers.values()))
    for function in model.functions.values():
        _check_made(function, role, set())
    if not graph.outputs:
        raise InputError(f"The {role} has no outputs: export it again.")
    returned = [value.name or "" for value in graph.outputs]
    for name in returned:
        if name not in names or returned.count(name) > 1:
            raise InputError(f"Output '{name}' of the {role} is made by nothing, or is there twice: export it again.")


def constant_array(name: str, tensor: ir.TensorProtocol | None) -> Array:
    """Return the numbers of an initializer.

    Raises:
        InputError: if it has none, or others than its type and shape say.
    """
    try:
        array: Array | None = None if tensor is None else tensor.numpy()
    except (ValueError, TypeError, AssertionError, OverflowError, MemoryError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"The data of initializer '{name}' cannot be read: {reason}: export the model again."
        ) from error
    if array is None:
        raise InputError(f"Initializer '{name}' has no data: export the model again.")
    return array


def infer_types(model: ir.Model) -> None:
    """Write the types and shapes that ONNX can tell into a model; where it cannot, the model stays as it is."""
    log = logging.getLogger(ShapeInferencePass.__module__)  # it would print what stopped it
    was, log.disabled = log.disabled, True
    try:
        ShapeInferencePass(check_type=False, strict_mode=False)(model)
    finally:
        log.disabled = was


def _check_made(graph: ir.Graph | ir.Function, role: str, outer: set[ir.Value]) -> None:
    """Check that nodes read what is there when their turn comes."""
    known = {*outer, *graph.inputs}
    for node in graph:
        for value in node.inputs:
            if value is not None and value not in known:
                raise InputError(
                    f"In the {role}, {describe(node)} reads '{value.name}', which nothing makes before it."
                )
        if not node.outputs:
            raise InputError(f"In the {role}, {describe(node)} has no outputs.")
        if any(attribute.type == ir.AttributeType.UNDEFINED for attribute in node.attributes.values()):
            raise InputError(f"In the {role}, {describe(node)} has an attribute of an unknown type.")
        for inner in _subgraphs(node):
            _check_made(inner, role, {*known, *inner.initializers.values()})
        known.update(node.outputs)


def _subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    for attribute in node.attributes.values():
        graphs: Iterable[ir.Graph] = ()
        if attribute.type == ir.AttributeType.GRAPH:
            graphs = (attribute.as_graph(),)
        elif attribute.type == ir.AttributeType.GRAPHS:
            graphs = attribute.as_graphs()
        yield from graphs
