"""Make a forward graph infer: what needs onnx_ir, of models that `rewrite` has not made."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from pathlib import Path

import onnx_ir as ir

from poet_onnx.description.names import OUTPUTS_KEY
from poet_onnx.errors import InputError
from poet_onnx.files.external_data import FileTensor, embed, replace_tensors
from poet_onnx.gradients.batch_axis import free_batch
from poet_onnx.gradients.differentiate import take_parameters
from poet_onnx.gradients.outputs import model_outputs
from poet_onnx.gradients.parameters import show_weights
from poet_onnx.graph.extract import plain_attributes
from poet_onnx.graph.extract.artifacts import is_accumulator
from poet_onnx.graph.extract.contents import infer_types
from poet_onnx.graph.operators import ONNX_DOMAINS, spec_of
from poet_onnx.passes.node_builder import let_stand_for


def forward_model(
    model: ir.Model, own: Collection[str], *, outputs: Sequence[str] | None, cut_loss: bool
) -> tuple[bytes, Path]:
    """Return a forward model as one that `rewrite` made is, and the folder of its external data.

    Args:
        model: with parameters as inputs or initializers; changed in place.
        own: names of parameters and running statistics, whose values are not written.
        outputs: names of what is to be computed; default the model's outputs.
        cut_loss: whether a loss stands behind the model's outputs.

    Raises:
        InputError: if an output is not known, or what the model reads is not computed in inference.
    """
    graph = model.graph
    check_forward(graph)
    if outputs is None and cut_loss:
        outputs = model_outputs(model)
        model.metadata_props[OUTPUTS_KEY] = json.dumps(outputs)
    if outputs is not None:
        wanted = set(outputs)
        graph.outputs[:] = [value for node in graph for value in node.outputs if value.name in wanted]
    infer_only(model)
    show_weights(graph, own=own)
    take_parameters(graph, [name for name in graph.initializers if name in own])
    infer_types(model)  # what was inside of the model may have had no type, and an output must have one
    free_batch(model, [value.name or "" for value in graph.outputs], own)
    return _payload(model)


def check_forward(graph: ir.Graph) -> None:
    """Refuse a graph that trains.

    Raises:
        InputError: if it changes parameters, or adds to gradients.
    """
    for node in graph:
        if is_accumulator(node) or spec_of(node.domain, node.op_type, plain_attributes(node)).update:
            raise InputError("The model trains: give the forward or evaluation graph, not the training graph.")


def _payload(model: ir.Model) -> tuple[bytes, Path]:
    """Return a model as bytes, and the folder of its external data."""
    held: list[FileTensor] = []

    def note(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        if isinstance(tensor, FileTensor):
            held.append(tensor)
        return tensor

    replace_tensors(model, note)
    weights = [value.const_value for value in model.graph.initializers.values()]
    folders = {Path(tensor.base_dir) for tensor in held}
    if len(folders) > 1 or len(held) > sum(isinstance(weight, FileTensor) for weight in weights):
        embed(model)  # only weights of one folder can be referred to
    payload: bytes = ir.to_proto(model).SerializeToString(deterministic=True)
    return payload, next(iter(folders), Path())


def infer_only(model: ir.Model) -> None:
    """Let batch normalizations use their running statistics and Dropout keep everything; changes the model.

    Raises:
        InputError: if the model reads statistics of a batch.
    """
    for node in list(model.graph):
        if node.domain in ONNX_DOMAINS and node.op_type == "BatchNormalization":
            _use_running_statistics(model.graph, node)
        elif node.domain in ONNX_DOMAINS and node.op_type == "Dropout":
            _keep_everything(model.graph, node)


def _keep_everything(graph: ir.Graph, node: ir.Node) -> None:
    """Replace a Dropout by one that does not train, and makes no mask where nobody reads it."""
    if len(node.outputs) > 1 and (node.outputs[1].uses() or node.outputs[1].is_graph_output()):
        if len(node.inputs) > 2:
            node.replace_input_with(2, None)
        return
    _replace(graph, node, node.inputs[:2], list(node.attributes.values()))


def _use_running_statistics(graph: ir.Graph, node: ir.Node) -> None:
    """Replace a batch normalization by one that only reads its statistics."""
    for other in node.outputs[1:]:
        if other.uses() or other.is_graph_output():
            raise InputError(
                f"'{other.name}', the statistics of batch normalization '{node.name}', is read by the model, which "
                "inference does not compute."
            )
    kept = [node.attributes[name] for name in ("epsilon", "momentum") if name in node.attributes]
    _replace(graph, node, node.inputs, kept)


def _replace(graph: ir.Graph, node: ir.Node, inputs: Sequence[ir.Value | None], kept: Sequence[ir.Attr]) -> None:
    """Replace a node by one of the same operator that makes the first output alone."""
    new = ir.Node(node.domain, node.op_type, inputs, kept, name=node.name)
    graph.insert_before(node, new)
    let_stand_for(new.outputs[0], node.outputs[0])
    graph.remove(node, safe=True)
