"""Make adapters a part of the weights beside which they stand."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from poet_onnx.errors import InputError
from poet_onnx.graph.extract.contents import constant_array
from poet_onnx.training.adapters import Adapters

Array = npt.NDArray[np.generic]


def merge_adapters(model: ir.Model, adapters: Adapters, values: Mapping[str, Array]) -> dict[str, Array]:
    """Take adapters out of a forward graph, and return what it is to be filled with: merged weights in their place.

    Args:
        model: with the adapters, whose nodes are cut off, or without; changed in place.
        adapters: beside its weights.
        values: parameters and running statistics by name.

    Raises:
        InputError: if a weight is not there, or cannot be merged.
    """
    graph = model.graph
    names = {value.name for value in (*graph.inputs, *graph.initializers.values())}
    if not names.isdisjoint(adapters.parameters):
        _cut(graph, adapters)
    filled = {name: array for name, array in values.items() if name not in adapters.parameters}
    for adapter in adapters.each:
        weight = graph.initializers.get(adapter.weight)
        if weight is None:
            raise InputError(
                f"The model has no weight '{adapter.weight}', beside which an adapter was trained: give the forward "
                "model that was trained."
            )
        base = constant_array(adapter.weight, weight.const_value)
        first, second = (np.asarray(values[name], np.float32) for name in (adapter.first, adapter.second))
        delta = adapter.delta(first, second, adapters.lora.scale)
        if delta.shape != base.shape:
            raise InputError(
                f"'{adapter.weight}' has shape {list(base.shape)} in the forward model, but its adapter is for "
                f"{list(delta.shape)}: give the forward model that was trained."
            )
        filled[adapter.weight] = np.asarray(base, np.float32) + delta
    return filled


def _cut(graph: ir.Graph, adapters: Adapters) -> None:
    """Let what is read behind adapters be read before them; nodes that nobody reads are left."""
    made = {value.name: value for node in graph for value in node.outputs}
    for name in (name for adapter in adapters.each for name in adapter.sums):
        total = made.get(name)
        node = None if total is None else total.producer()
        base = None if node is None else node.inputs[0]
        if total is None or base is None:
            raise InputError(f"The model has no tensor '{name}', to which an adapter adds: give the evaluation graph.")
        total.replace_all_uses_with(base, replace_graph_outputs=True)
        total.name, base.name = None, name
