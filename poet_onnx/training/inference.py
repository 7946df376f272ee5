"""Make a plain ONNX model for inference of a forward graph and trained values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass, RemoveUnusedOpsetsPass

from poet_onnx.errors import InputError
from poet_onnx.gradients.parameters import show_weights
from poet_onnx.graph.extract.contents import infer_types
from poet_onnx.graph.operators import ONNX_DOMAINS
from poet_onnx.passes.pen import let_stand_for
from poet_onnx.passes.roles import is_accumulator
from poet_onnx.training.adapter_merging import merge_adapters
from poet_onnx.training.adapters import Adapters
from poet_onnx.training.outputs import model_outputs

Array = npt.NDArray[np.generic]


def make_inference_model(
    model: ir.Model,
    values: Mapping[str, Array],
    *,
    outputs: Sequence[str] | None = None,
    cut_loss: bool,
    merged: Adapters | None = None,
) -> None:
    """Give a forward graph trained values and let it infer; changes the model.

    Args:
        model: with parameters as inputs or initializers.
        values: parameters and running statistics by name.
        outputs: names of what is to be computed; default the model's outputs.
        cut_loss: whether a loss stands behind the model's outputs.
        merged: adapters that become a part of the weights.

    Raises:
        InputError: if an output is not there or not known, or nothing is trained that the model reads.
    """
    graph = model.graph
    if any(map(is_accumulator, graph)):
        raise InputError("The model accumulates gradients: give the forward model, not the training graph.")
    if outputs is not None:
        _set_outputs(graph, outputs)
    elif cut_loss:
        _set_outputs(graph, model_outputs(model))
    infer_only(model)
    show_weights(graph, own=values)
    if merged is not None:
        values = merge_adapters(model, merged, values)
    _fill(graph, values)
    RemoveUnusedNodesPass()(model)
    for value in [value for value in graph.inputs if not value.uses() and not value.is_graph_output()]:
        graph.inputs.remove(value)
    RemoveUnusedOpsetsPass()(model)
    infer_types(model)  # what was inside of the model may have had no type, and an output must have one


def infer_only(model: ir.Model) -> None:
    """Let batch normalizations use their running statistics and Dropout keep everything; changes the model.

    Raises:
        InputError: if the model reads statistics of a batch.
    """
    for node in list(model.graph):
        if node.domain in ONNX_DOMAINS and node.op_type == "BatchNormalization":
            _use_running_statistics(model.graph, node)
        elif node.domain in ONNX_DOMAINS and node.op_type == "Dropout" and len(node.inputs) > 2:
            node.replace_input_with(2, None)


def _set_outputs(graph: ir.Graph, names: Sequence[str]) -> None:
    made = {value.name: value for node in graph for value in node.outputs if value.name}
    if isinstance(names, str) or not names or len(set(names)) < len(names):
        raise InputError(f"The outputs to export are {names!r}: give a list of one name or more, each once.")
    for name in names:
        if name not in made:
            raise InputError(f"No node of the model makes an output '{name}'.")
    graph.outputs[:] = [made[name] for name in names]


def _use_running_statistics(graph: ir.Graph, node: ir.Node) -> None:
    """Replace a batch normalization by one that only reads its statistics."""
    old = node.outputs[0]
    for other in node.outputs[1:]:
        if other.uses() or other.is_graph_output():
            raise InputError(
                f"'{other.name}', the statistics of batch normalization '{node.name}', is read by the model, which "
                "inference does not compute."
            )
    kept = [node.attributes[name] for name in ("epsilon", "momentum") if name in node.attributes]
    new = ir.Node(node.domain, node.op_type, node.inputs, kept, name=node.name)
    graph.insert_before(node, new)
    let_stand_for(new.outputs[0], old)
    graph.remove(node, safe=True)


def _fill(graph: ir.Graph, values: Mapping[str, Array]) -> None:
    places = {value.name or "": value for value in (*graph.inputs, *graph.initializers.values())}
    known = [name for name in values if name in places]
    if not known:
        raise InputError("The model has none of the trained parameters: give the forward model that was trained.")
    for name in known:
        value, array = places[name], values[name]
        if value.shape is not None and tuple(value.shape) != array.shape:
            raise InputError(
                f"'{name}' has shape {list(value.shape)} in the forward model, but {list(array.shape)} was trained: "
                "give the forward model that was trained."
            )
        value.const_value = ir.tensor(np.array(array), name=name)
        value.type, value.shape = ir.TensorType(value.const_value.dtype), ir.Shape(array.shape)
        if value.is_graph_input():
            graph.inputs.remove(value)
        graph.initializers[name] = value
