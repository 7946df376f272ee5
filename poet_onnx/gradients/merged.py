"""Which equal parameters are one, in the files of torch's legacy exporter, and which it merged.

Of a module in eval mode it keeps the first of equal tensors, and writes an Identity with the name of each other. Those
that have a parameter's name are parameters of their own: weights that the module itself ties are in the file once. Of
what has a name that the exporter gave it, as all that Keras writes by torch, the numbers tell: two weights of many
different numbers are hardly equal. Of others, such as the zeros of biases, the layer tells that they belong to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx_ir as ir

from poet_onnx.gradients.evidence import MOVES, RECURRENT, WITH_WEIGHTS, is_drawn, unmoved
from poet_onnx.gradients.forward.patterns import is_op
from poet_onnx.gradients.paths import REAL
from poet_onnx.gradients.torch_words import is_of_torch
from poet_onnx.graph.operators import ONNX_DOMAINS
from poet_onnx.passes.frozen_batch_norm import STATISTICS
from poet_onnx.passes.node_builder import initializer

_NORM = "BatchNormalization"

_GENERATED = "onnx::"
"""How names begin that torch's legacy exporter makes itself."""


def part_merged(model: ir.Model, warn: Callable[[str], None]) -> None:
    """Make parameters of their own again of those that were merged, and let readers of one parameter read it itself.

    Args:
        model: without functions; changed in place.
        warn: called with a sentence about what was parted.
    """
    if not is_of_torch(model):
        return
    graph = model.graph
    copies = [
        (node, source)
        for node in graph
        if node.op_type == "Identity" and node.domain in ONNX_DOMAINS and (source := node.inputs[0]) is not None
        if source.is_initializer() and source.dtype in REAL and len(source.uses()) > 1
        if source.const_value is not None and not node.outputs[0].is_graph_output()
    ]
    copies.sort(key=lambda each: not is_drawn(each[1]))  # biases are told by weights
    parted: set[str] = set()
    for node, source in copies:
        copy, read = node.outputs[0], source
        if _is_another(copy, source):
            parted.add(source.name or "")
            read = _own(graph, copy, source)
        copy.replace_all_uses_with(read)
        graph.remove(node, safe=True)
    if parted:
        _warn_of_parted(sorted(parted), warn)


def _warn_of_parted(names: list[str], warn: Callable[[str], None]) -> None:
    shown = ", ".join(f"'{name}'" for name in names[:3])
    warn(f"The exporter merged parameters of equal numbers into {shown}: each is one by itself again.")


def _own(graph: ir.Graph, copy: ir.Value, source: ir.Value) -> ir.Value:
    """Return an initializer of a copy's name."""
    name, copy.name = copy.name or "", None
    assert source.const_value is not None
    return initializer(graph, name, source.const_value.numpy())


def _is_another(copy: ir.Value, source: ir.Value) -> bool:
    """Return whether a copy is a parameter of its own."""
    if not (copy.name or "").startswith(_GENERATED):
        return True
    return not is_drawn(source) and not set(_places(copy)) & set(_places(source))


def part_biases(graph: ir.Graph, warn: Callable[[str], None]) -> None:
    """Make biases of their own of one that layers of other weights read: tf2onnx merges all equal tensors.

    Args:
        graph: without functions; changed in place.
        warn: called with a sentence about what was parted.
    """
    parted: list[str] = []
    for value in list(graph.initializers.values()):
        uses = sorted(value.uses(), key=lambda use: (use.node.name or "", use.idx))
        if len(uses) < 2 or value.dtype not in REAL or value.const_value is None or is_drawn(value):
            continue
        layers = [weight_beside(node, index) for node, index in uses]
        if "" in layers or len(set(layers)) < 2:
            continue
        parted.append(value.name or "")
        for number, layer in enumerate([each for each in dict.fromkeys(layers) if each != layers[0]]):
            own = initializer(graph, f"{value.name}/{number + 1}", value.const_value.numpy())
            for (node, index), each in zip(uses, layers, strict=True):
                if each == layer:
                    node.replace_input_with(index, own)
    if parted:
        _warn_of_parted(parted, warn)


def part_statistics(graph: ir.Graph) -> None:
    """Give batch normalizations running statistics of their own where something else reads their numbers, too.

    A new layer's variance has the numbers of its scale and its mean those of its shift, so that exporters merge them.

    Args:
        graph: without functions; changed in place.
    """
    for node in graph:
        for index, kind in zip(STATISTICS, ("running_mean", "running_var"), strict=True):
            value = inputs[index] if is_op(node, _NORM) and len(inputs := node.inputs) > index else None
            while value is not None and (copy := value.producer()) is not None and is_op(copy, "Identity"):
                value = copy.inputs[0]
            if value is None or not value.is_initializer() or value.const_value is None:
                continue
            if any(not is_op(reader, _NORM) or place not in STATISTICS for reader, place in value.uses()):
                own = initializer(graph, f"{node.name}/{kind}", value.const_value.numpy())
                node.replace_input_with(index, own)


def weight_beside(node: ir.Node, index: int) -> str:
    """Return the name of the weight of the layer in which a node reads a bias; empty where that is not known."""
    if node.domain not in ONNX_DOMAINS:
        return ""
    if (node.op_type in ("Conv", "ConvTranspose", "Gemm") and index == 2) or (node.op_type in RECURRENT and index == 3):
        weight = node.inputs[1]
        return "" if weight is None else _initializer_behind(weight)
    other = node.inputs[1 - index] if node.op_type == "Add" else None
    layer = unmoved(other).producer() if other is not None else None
    if layer is None or layer.op_type not in WITH_WEIGHTS:
        return ""
    return next((name for each in layer.inputs[:2] if each is not None and (name := _initializer_behind(each))), "")


def _places(value: ir.Value) -> Iterator[tuple[str, str]]:
    """Yield what reads a tensor: the operator, and the weight of the layer whose values it changes, where known."""
    for node, index in value.uses():
        others = [each for place, each in enumerate(node.inputs) if place != index and each is not None]
        for other in others if node.op_type != "Identity" else ():
            layer = _weight_behind(other)
            if layer:
                yield node.op_type, layer


def _weight_behind(value: ir.Value | None) -> str:
    """Return the name of the weight that a value was computed with; empty where that is not known."""
    while value is not None and (node := value.producer()) is not None and node.domain in ONNX_DOMAINS:
        stored = [name for each in node.inputs if each is not None and (name := _initializer_behind(each))]
        if node.op_type in WITH_WEIGHTS:
            return stored[0] if stored else ""
        if node.op_type not in (*MOVES, "Add", "Sub", "Mul", "Div"):
            return ""
        value = next((each for each in node.inputs if each is not None and not _initializer_behind(each)), None)
    return ""


def _initializer_behind(value: ir.Value) -> str:
    """Return the name of the initializer that a value is, moved or not; empty where it is computed of others."""
    origin = unmoved(value)
    return origin.name or "" if origin.is_initializer() else ""
