"""What a graph's inputs may hold where operators take their numbers for labels or indices.

Rules:
    N1. A loss takes the numbers of its classes, from 0, and the one that it ignores.
    N2. Gather takes rows of a table (a parameter or constant) from 0, as torch's embedding does: a negative index would
        train a row at the table's end without a word. GatherElements, ScatterElements and OneHot do too, as torch's
        gather, scatter and one_hot.
    N3. Elsewhere negative indices count from the end, as in ONNX. Indices with several coordinates are held to the
        largest axis.
    N4. Lengths of sequences are 0 up to the longest.
    N5. A number counts where operators that move or convert it can bring it to such a place, or add, subtract and
        multiply it with constant integers. A bound holds for exactly the part of an input that is read so, such as a
        column. Behind other arithmetic, where a size is not known, and where it cannot be told which part it is,
        nothing is bound: kernels refuse an index that is out of range.
    N6. A computed index counts from 0 where an exporter says that it is torch's embedding or index_select, and in
        GatherElements. Elsewhere it may be one of torch's `x[index - 1]`, which counts from the end where it is
        negative: the files look alike. One that OneHot reads is not bound, for it may stand for no class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import onnx_ir as ir

from poet_onnx.graph.extract.known import integer_of
from poet_onnx.graph.extract.lines import AS_IT_IS
from poet_onnx.graph.extract.parts import JOINS, MOVES, parts_of_inputs
from poet_onnx.graph.input_ranges import Range, Ranges
from poet_onnx.graph.operators import KNOWN_DOMAINS, vocabulary

IS_EMBEDDING = "poet.embedding"
"""Key of a node's metadata that says: torch refuses a negative index here."""

_CALL = "pkg.torch.onnx.fx_node"
_FROM_0 = ("aten.embedding.default]", "aten.index_select.default]")
"""Calls of torch, as its dynamo exporter writes them, that take no negative index."""

_MOST_AXES = 64


def find_ranges(graph: ir.Graph) -> Ranges:
    """Return what is known of a graph's inputs; shapes that the graph does not say are not known."""
    found: dict[str, dict[Range, None]] = {}
    for node in graph:
        place, rule = _READERS.get(node.op_type, (0, None))
        numbers = _input(node, place)
        if rule is None or numbers is None or node.domain not in KNOWN_DOMAINS:
            continue
        parts = parts_of_inputs(numbers)
        allowed = rule(node) if parts else None
        for source, part, line in parts:
            known = allowed if line == AS_IT_IS or allowed is None else _computed(node, allowed)
            before = None if known is None else line.before(known)
            if before is not None:
                found.setdefault(source.name or "", {})[replace(before, part=part)] = None
    return {name: tuple(ranges) for name, ranges in found.items()}


def _computed(node: ir.Node, allowed: Range) -> Range | None:
    """Return what a number may be that is computed, given what one may be that an input holds."""
    if node.op_type == "OneHot":
        return None
    if node.op_type in ("Gather", "Scatter", "ScatterElements") and not _is_embedding(node):
        return replace(allowed, lowest=-allowed.highest - 1)
    return allowed


def _is_embedding(node: ir.Node) -> bool:
    called = node.metadata_props.get(_CALL, "")
    return IS_EMBEDDING in node.metadata_props or any(each in called for each in _FROM_0)


def _origins(numbers: ir.Value) -> list[ir.Value]:
    """Return the values that numbers come from: inputs, constants, and what other operators than moves make."""
    seen, pending, found = {numbers}, [numbers], []
    while pending:
        value = pending.pop()
        node = value.producer()
        if node is None or node.domain not in KNOWN_DOMAINS or node.op_type not in MOVES | JOINS:
            found.append(value)
            continue
        before = node.inputs if node.op_type in JOINS else node.inputs[:1]
        new = [source for source in before if source is not None and source not in seen]
        seen.update(new)
        pending += new
    return found


def _input(node: ir.Node, place: int) -> ir.Value | None:
    return node.inputs[place] if place < len(node.inputs) else None


def _size(node: ir.Node, place: int, axis: int) -> int | None:
    """Return a size of an input if the graph says it."""
    value = _input(node, place)
    shape = () if value is None or value.shape is None else tuple(value.shape)
    size = shape[axis] if -len(shape) <= axis < len(shape) else None
    return size if isinstance(size, int) else None


def _integer(value: ir.Value | None) -> int | None:
    """Return the number that a constant holds."""
    tensor = None if value is None or value.is_graph_input() else ir.convenience.get_const_tensor(value)
    if tensor is None or tensor.size != 1 or not tensor.dtype.is_integer():
        return None
    return int(tensor.numpy().reshape(()))


def _classes(node: ir.Node) -> Range | None:
    """Return what a loss of scores and labels takes; of ONNX Runtime's own, an input is the label to be ignored."""
    size, given = _size(node, 0, 1), _input(node, 3) if "Internal" in node.op_type else None
    ignored = integer_of(node, "ignore_index") if "ignore_index" in node.attributes else None
    if given is not None:
        ignored = _integer(given)
    if size is None or (given is not None and ignored is None):
        return None
    return Range(0, size - 1, ignored)


def _words(node: ir.Node) -> Range:
    """Return what a loss of a language model takes, whose scores nobody makes as a whole."""
    words, ignored = node.attributes["matrix"].as_ints()[0], integer_of(node, "ignore_index")
    return Range(0, words - 1, ignored if integer_of(node, "ignoring") else None)


def _rows(node: ir.Node) -> Range | None:
    data, size = _input(node, 0), _size(node, 0, integer_of(node, "axis"))
    if data is None or size is None:
        return None
    is_table = _is_embedding(node) or all(value.producer() is None for value in _origins(data))
    return Range(0 if is_table else -size, size - 1)


def _elements(node: ir.Node) -> Range | None:
    size = _size(node, 0, integer_of(node, "axis"))
    return None if size is None else Range(0, size - 1)


def _coordinates(node: ir.Node) -> Range | None:
    first, count = integer_of(node, "batch_dims"), _size(node, 1, -1)
    sizes = [_size(node, 0, first + place) for place in range(min(count or 0, _MOST_AXES))]
    known = [size for size in sizes if size is not None]
    return Range(-max(known), max(known) - 1) if known and len(known) == count else None


def _one_hot(node: ir.Node) -> Range | None:
    depth = _integer(_input(node, 1))
    return None if depth is None else Range(0, depth - 1)


def _lengths(axis: str, node: ir.Node) -> Range | None:
    longest = _size(node, 0, integer_of(node, axis))
    return None if longest is None else Range(0, longest)


_READERS: dict[str, tuple[int, Callable[[ir.Node], Range | None]]] = {
    "SoftmaxCrossEntropyLoss": (1, _classes),
    "SoftmaxCrossEntropyLossInternal": (1, _classes),
    "NegativeLogLikelihoodLoss": (1, _classes),
    "NegativeLogLikelihoodLossInternal": (1, _classes),
    "NegativeLogLikelihoodLossInternal2": (1, _classes),
    **dict.fromkeys((vocabulary.LOSS, vocabulary.WITH_GRADIENT), (vocabulary.LABELS, _words)),
    "Gather": (1, _rows),
    "GatherElements": (1, _elements),
    "ScatterElements": (1, _elements),
    "Scatter": (1, _elements),
    "GatherND": (1, _coordinates),
    "ScatterND": (1, _coordinates),
    "OneHot": (0, _one_hot),
    **dict.fromkeys(("RNN", "GRU", "LSTM", "GRUTraining", "LSTMTraining"), (4, partial(_lengths, "layout"))),
    "ReverseSequence": (1, partial(_lengths, "time_axis")),
}
"""Which input holds the numbers, and what they may be, by operator."""
