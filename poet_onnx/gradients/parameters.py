"""Which tensors of a forward model are its parameters, under whatever form an exporter left them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np
import onnx_ir as ir

from poet_onnx.errors import InputError
from poet_onnx.gradients.paths import REAL
from poet_onnx.graph.operators import ONNX_DOMAINS
from poet_onnx.passes.pen import initializer

WEIGHTS = {
    **dict.fromkeys(("Conv", "ConvTranspose", "Gemm"), (1, 2)),
    **dict.fromkeys(
        ("BatchNormalization", "LayerNormalization", "InstanceNormalization", "GroupNormalization"), (1, 2)
    ),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), (1, 2, 3)),
    **dict.fromkeys(("RMSNormalization", "PRelu"), (1,)),
    "MatMul": (0, 1),
    "Gather": (0,),
}
"""Inputs at which a constant is a weight."""

STATISTICS = {"BatchNormalization": (3, 4)}
"""Inputs that the forward pass moves, and no gradient."""

ANONYMOUS = ("onnx::", "val_")
"""How torch's exporters name what they compute beforehand, such as a weight that they transposed."""

LARGEST_WEIGHT = 1e3
"""A number beyond it is that of a mask."""


@dataclass(frozen=True)
class Parameters:
    """The real tensors that a model brings along.

    Attributes:
        trained: names of what is trained, in the model's order.
        frozen: names of what stays as it is.
        tied: transposed copies that read their original from now on, by name.
    """

    trained: tuple[str, ...]
    frozen: tuple[str, ...]
    tied: tuple[tuple[str, str], ...] = ()


def show_weights(graph: ir.Graph, own: Collection[str] = ()) -> tuple[tuple[str, str], ...]:
    """Make initializers of weights that are Constant nodes, and let transposed copies read their original.

    Args:
        graph: without functions; changed in place.
        own: names of what is no copy, whatever it looks like.

    Returns:
        The copies that are gone, each with its original.
    """
    _lift_weights(graph)
    return tuple(_tie_transposed(graph, own))


def find_parameters(
    model: ir.Model, train: Sequence[str] | None, freeze: Sequence[str], warn: Callable[[str], None]
) -> Parameters:
    """Choose what is trained; weights that are Constant nodes become initializers, transposed copies go.

    Without patterns, all real initializers are parameters that are no mask and no number of the exporter's own.

    Args:
        model: without functions; changed in place.
        train: patterns of names of what is trained; None for all parameters.
        freeze: patterns of names of what is not.
        warn: called with a sentence about what may not be meant so.

    Raises:
        InputError: a pattern has no match.
    """
    graph = model.graph
    _part_merged(graph, warn)
    tied = show_weights(graph)
    _warn_of_merged(graph, warn)
    statistics = {value for node in graph for value in _inputs(node, STATISTICS)}
    real = [
        value
        for value in graph.initializers.values()
        if value.dtype in REAL and value.uses() and value not in statistics and value.name
    ]
    names = [value.name or "" for value in real]
    given = {"train": () if train is None else train, "freeze": freeze}
    for what, patterns in given.items():
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                shown = ", ".join(names[:6]) or "none"
                raise InputError(f"No parameter is named '{pattern}', which {what} names; the model has {shown}.")
    trained = [
        name
        for name, value in zip(names, real, strict=True)
        if (_may_be_trained(value) if train is None else matches(name, train)) and not matches(name, freeze)
    ]
    return Parameters(tuple(trained), tuple(name for name in names if name not in set(trained)), tied)


def _part_merged(graph: ir.Graph, warn: Callable[[str], None]) -> None:
    """Make parameters of their own again of those that torch's legacy exporter merged, because they were equal.

    Of a module in eval mode it keeps the first of equal parameters, and writes an Identity with the name of each other.
    Tied weights have no Identity: the module itself has them once.
    """
    copies = [
        (node, source)
        for node in graph
        if node.op_type == "Identity" and node.domain in ONNX_DOMAINS and (source := node.inputs[0]) is not None
        if source.is_initializer() and source.dtype in REAL and len(source.uses()) > 1
        if source.const_value is not None and not node.outputs[0].is_graph_output()
    ]
    for node, source in copies:
        output = node.outputs[0]
        name, output.name = output.name or "", None
        own = ir.Value(name=name, type=source.type, shape=source.shape, const_value=source.const_value)
        output.replace_all_uses_with(own)
        graph.remove(node, safe=True)
        graph.register_initializer(own)
    if copies:
        shown = ", ".join(sorted({f"'{source.name}'" for _, source in copies})[:3])
        warn(f"The exporter merged parameters of equal numbers into {shown}: each is trained by itself again.")


def _warn_of_merged(graph: ir.Graph, warn: Callable[[str], None]) -> None:
    """Warn of a vector that several normalizations read: exporters merge those that are equal before training."""
    for value in graph.initializers.values():
        readers = {node.name: node for node, _ in value.uses() if node.op_type.endswith("Normalization")}
        if len(readers) > 1 and value.dtype in REAL:
            warn(
                f"'{value.name}' belongs to {len(readers)} normalizations, such as '{min(readers, key=str)}', and is"
                " trained as one: if it should not be, export the model without optimization (optimize=False)."
            )
            return


def as_patterns(given: str | Sequence[str]) -> Sequence[str]:
    """Return patterns of names, of which a single one may be given as it is."""
    return [given] if isinstance(given, str) else given


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a name fits one of some patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _may_be_trained(value: ir.Value) -> bool:
    """Return whether a real initializer is taken for a parameter where nobody says."""
    tensor = value.const_value
    if tensor is None or (tensor.size <= 1 and (value.name or "").startswith(ANONYMOUS)):
        return False
    array = np.asarray(tensor.numpy())
    low, high = array.min(initial=0), array.max(initial=0)
    return bool(-low < LARGEST_WEIGHT and high < LARGEST_WEIGHT)  # false for what is no number


def _inputs(node: ir.Node, places: Mapping[str, tuple[int, ...]]) -> list[ir.Value]:
    """Return the inputs of a node that stand at certain places of its operator."""
    indices = places.get(node.op_type, ()) if node.domain in ONNX_DOMAINS else ()
    return [value for index in indices if index < len(node.inputs) and (value := node.inputs[index]) is not None]


def _lift_weights(graph: ir.Graph) -> None:
    """Make initializers of Constant nodes that are weights."""
    for node in list(graph):
        for value in _inputs(node, WEIGHTS):
            maker = value.producer()
            tensor = ir.convenience.get_const_tensor(value) if maker is not None else None
            if maker is None or maker.op_type != "Constant" or tensor is None or tensor.dtype not in REAL:
                continue
            name = value.name
            lifted = ir.Value(
                name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()), const_value=tensor
            )
            value.replace_all_uses_with(lifted, replace_graph_outputs=True)
            graph.remove(maker, safe=True)
            graph.register_initializer(lifted)


def _tie_transposed(graph: ir.Graph, own: Collection[str]) -> Iterable[tuple[str, str]]:
    """Let what an exporter transposed beforehand read its original, where that is in the model as well."""
    originals: dict[tuple[int, ...], list[ir.Value]] = {}
    for value in graph.initializers.values():
        tensor = value.const_value
        named = not (value.name or "").startswith(ANONYMOUS)
        if tensor is not None and len(tensor.shape) == 2 and tensor.dtype in REAL and named:
            originals.setdefault(tuple(tensor.shape.numpy()), []).append(value)
    for value in list(graph.initializers.values()):
        tensor = value.const_value
        name = value.name or ""
        copied = name.startswith(ANONYMOUS) and name not in own
        if tensor is None or len(tensor.shape) != 2 or not copied or tensor.dtype not in REAL:
            continue
        array = np.asarray(tensor.numpy())
        if (array == array.flat[0]).all():
            continue
        for original in originals.get(tuple(tensor.shape.numpy())[::-1], ()):
            if original.const_value is None or not np.array_equal(np.asarray(original.const_value.numpy()).T, array):
                continue
            node = ir.Node("", "Transpose", [original], [ir.AttrInt64s("perm", [1, 0])], name=f"{name}/Transpose")
            node.outputs[0].name = f"{name}/transposed"
            node.outputs[0].type, node.outputs[0].shape = value.type, value.shape
            value.replace_all_uses_with(node.outputs[0])
            graph.initializers.pop(name)
            first = next(iter(graph))
            graph.insert_before(first, node)
            yield name, original.name or ""
            break


def fold_transposed(graph: ir.Graph, trained: Collection[str]) -> None:
    """Store frozen weights as they are read: what transposes one, and is all that reads it, becomes an initializer.

    A step would transpose it anew each time, and keep the copy for the gradient of what it is multiplied with.

    Args:
        graph: changed in place.
        trained: names of initializers that change.
    """
    for node in [node for node in graph if node.op_type == "Transpose" and node.domain in ONNX_DOMAINS]:
        source, output = node.inputs[0], node.outputs[0]
        known = source is not None and source.is_initializer() and source.name not in trained
        if source is None or not known or len(source.uses()) > 1 or output.is_graph_output():
            continue
        tensor = source.const_value
        if tensor is None or tensor.dtype not in REAL:
            continue
        perm = node.attributes.get_ints("perm", None)
        array = np.ascontiguousarray(np.transpose(tensor.numpy(), perm))
        name = output.name or ""
        output.name = None
        output.replace_all_uses_with(initializer(graph, name, array))
        graph.remove(node, safe=True)
        graph.initializers.pop(source.name or "")
