"""Splits that torch's exporters write as a sequence of tensors become plain splits."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from poet_onnx.passes.node_builder import initializer


def split_plainly(model: ir.Model) -> None:
    """Replace each SplitToSequence whose single parts are taken by a Split; changes the model.

    Sequences that are used otherwise stay: they are refused later, by name.

    Args:
        model: with shapes known where lengths are not given.
    """
    graph = model.graph
    for node in list(graph):
        if node.op_type == "SplitToSequence":
            _replace(graph, node)


def _replace(graph: ir.Graph, node: ir.Node) -> None:
    readers = [use.node for use in node.outputs[0].uses()]
    places = [_place(reader) for reader in readers]
    lengths = _lengths(node)
    if lengths is None or any(place is None for place in places):
        return
    axis = ir.AttrInt64("axis", node.attributes.get_int("axis", 0))
    count = initializer(graph, f"{node.name}/lengths", np.array(lengths, np.int64))
    split = ir.Node("", "Split", [node.inputs[0], count], [axis], num_outputs=len(lengths), name=node.name)
    graph.insert_before(node, split)
    for number, part in enumerate(split.outputs):
        part.name = f"{node.name}/part_{number}"
    for reader, place in zip(readers, places, strict=True):
        assert place is not None
        old, part = reader.outputs[0], split.outputs[place]
        part.type, part.shape = old.type, old.shape
        if old.is_graph_output() and not part.is_graph_output():
            part.name, old.name = old.name, f"{old.name}/taken"  # the caller knows it by this name
        old.replace_all_uses_with(part, replace_graph_outputs=True)
        graph.remove(reader, safe=True)
    graph.remove(node, safe=True)


def _lengths(node: ir.Node) -> list[int] | None:
    """Return the length of each part, None if that is not known or parts lose their dimension."""
    given, wanted = node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else None
    tensor = ir.convenience.get_const_tensor(wanted) if wanted is not None else None
    if tensor is None or given is None or given.shape is None:
        return None
    lengths = [int(number) for number in tensor.numpy().reshape(-1)]
    size = given.shape[node.attributes.get_int("axis", 0)]
    if len(tensor.shape) > 0 or not isinstance(size, int):
        return lengths
    return [min(lengths[0], size - start) for start in range(0, size, lengths[0])]


def _place(reader: ir.Node) -> int | None:
    """Return which part a node takes, None if that is not known."""
    tensor = None
    if reader.op_type == "SequenceAt" and reader.inputs[1] is not None:
        tensor = ir.convenience.get_const_tensor(reader.inputs[1])
    return None if tensor is None else int(tensor.numpy())
