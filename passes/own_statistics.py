"""Running statistics of their own for every batch normalization.

ONNX Runtime's artifact generator merges initializers of equal values, running statistics too, which are no constants:
layers that start with the same ones would all move one tensor, and the evaluation graph would read others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from poet_onnx.errors import InputError
from poet_onnx.passes.frozen_batch_norm import STATISTICS, batch_norms
from poet_onnx.passes.metadata import read_json

STATISTICS_KEY = "poet.running_statistics"


class OwnStatistics(InPlacePass):
    """Undo the merging of running statistics with others and with constants.

    Rules:
        S1. Each batch normalization reads the statistics of its names; several may have the same.
        S2. Whatever else read a running statistic reads a constant of the same value.
        S3. `poet.running_statistics` in the model's metadata keeps the names, so that the same can be done to the model
            that a rewritten one was made from.

    Requires a model that is not rewritten. Where nothing was merged, nothing changes.
    """

    def __init__(self, names: Mapping[str, Sequence[str]]) -> None:
        """Set the names of mean and variance, by the name of what the batch normalization makes."""
        super().__init__()
        self._names = {made: tuple(names) for made, names in names.items()}

    def call(self, model: ir.Model) -> PassResult:
        """Give every node the initializers that its statistics are."""
        graph = model.graph
        nodes = list(batch_norms(model))
        before = {value for node in nodes for index in STATISTICS if (value := node.inputs[index]) is not None}
        changed = False
        for node in nodes:
            for index, name in zip(STATISTICS, self._names.get(node.outputs[0].name or "", ()), strict=False):
                value = node.inputs[index]
                if value is not None and value.is_initializer() and value.name != name:
                    node.replace_input_with(index, _copied(graph, value, name))
                    changed = True
        for value in {node.inputs[index] for node in nodes for index in STATISTICS}:
            if value is not None and value.is_initializer():
                others = [(node, index) for node, index in value.uses() if node not in nodes or index not in STATISTICS]
                for node, index in others:
                    node.replace_input_with(index, _copied(graph, value, f"{value.name}/constant"))
                changed |= bool(others)
        for value in before:
            if value.is_initializer() and not value.uses() and value.name:
                graph.initializers.pop(value.name)
        if self._names:
            model.metadata_props[STATISTICS_KEY] = json.dumps(self._names, sort_keys=True)
        return PassResult(model, modified=changed)


def own_names(nodes: Iterable[ir.Node], twin: Callable[[ir.Node], ir.Node | None]) -> dict[str, list[str]]:
    """Return the names of mean and variance of the batch normalizations that share a statistic, by what they make.

    They are those of the same node of the forward model, else named beside the scale, as torch names them.

    Args:
        nodes: of the training graph.
        twin: returns a node's counterpart in a forward model.
    """
    names = {}
    for node in nodes:
        if any(_is_shared(node.inputs[index]) for index in STATISTICS):
            forward = twin(node)
            names[node.outputs[0].name or ""] = [
                _derived(node, kind) if forward is None else _given(forward, index)
                for index, kind in zip(STATISTICS, ("running_mean", "running_var"), strict=True)
            ]
    return names


def read_names(model: ir.Model) -> dict[str, list[str]]:
    """Return the names that a model's metadata keep (S3).

    Raises:
        InputError: if the metadata is damaged.
    """
    names = read_json(model, STATISTICS_KEY, {})
    if not isinstance(names, dict) or not all(
        isinstance(pair, list) and all(isinstance(name, str) and name for name in pair) for pair in names.values()
    ):
        raise InputError(f"The model's metadata '{STATISTICS_KEY}' is damaged: rewrite the original again.")
    return names


def _is_shared(value: ir.Value | None) -> bool:
    return value is not None and value.is_initializer() and len(value.uses()) > 1


def _given(node: ir.Node, index: int) -> str:
    value = node.inputs[index]
    return "" if value is None else value.name or ""


def _derived(node: ir.Node, kind: str) -> str:
    scale = node.inputs[1]
    if scale is not None and scale.is_graph_input() and scale.name:
        return f"{scale.name.rpartition('.')[0]}.{kind}"
    return f"{node.name or node.outputs[0].name}/{kind}"


def _copied(graph: ir.Graph, value: ir.Value, name: str) -> ir.Value:
    """Return the initializer of a name, and make it of another's value if there is none."""
    if name not in graph.initializers:
        copy = ir.Value(name=name, type=value.type, shape=value.shape, const_value=value.const_value)
        graph.register_initializer(copy)
    return graph.initializers[name]
