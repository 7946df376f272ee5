"""Rotary embedding in one node.

Rules:
    Y1. x * cos + r(x) * sin becomes one node, where r(x) is the second half of each row, negated, and then the first;
        or, of neighbours, the second one, negated, and then the first. Halves are slices or parts of a split.
    Y2. Where x is the first part of each row of another value, and the result has the rest of the row behind it, the
        node is of the whole row.
    Y3. What is between is read by nobody else. Nothing that is trained leads to cos or sin, which have a row for each
        row of x, or one for several. All are float32.
    Y4. Where x is transposed heads and tokens, which nobody else reads, and all heads have the same angles, the result
        is transposed instead.
    Y5. RotaryEmbedding of four dimensions, whose tables are constants with a row for each token, becomes the node, too.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from poet_onnx.graph.operators import ONNX_DOMAINS
from poet_onnx.graph.operators.rotary import ROTATE, fits
from poet_onnx.passes.fused.reading import (
    integers_in,
    is_float,
    is_frozen,
    led_to_by,
    made_alone,
    made_by,
    only_reader,
    other_input,
)
from poet_onnx.passes.fused.transposed import before_transposition, transpose_behind
from poet_onnx.passes.node_builder import initializer, seen_as
from poet_onnx.passes.panel_layers import remove_unread
from poet_onnx.passes.views import VIEWS, replace_node, seen, sizes_of

_RANK, _OPERANDS = 4, 3
_PARTS = ("Add", "Mul", "Concat", "Neg", "Slice", "Split", "Unsqueeze", "Reshape")


@dataclass(frozen=True)
class _Rotation:
    """A rotation as it was found.

    Attributes:
        last: node that makes the result.
        x: whose rows are rotated.
        cos, sin: tables.
        is_interleaved: pairs are neighbours.
        rotated: how many numbers of a row are rotated.
    """

    last: ir.Node
    x: ir.Value
    cos: ir.Value
    sin: ir.Value
    is_interleaved: bool
    rotated: int


@dataclass(frozen=True)
class _Part:
    """Numbers of each row of a value: from a place on, to another one, each so many."""

    whole: ir.Value
    first: int
    end: int
    step: int


class UseRotate(InPlacePass):
    """Write the nodes (Y1 to Y5). Requires a graph with static shapes, without casts that do nothing."""

    def __init__(self, trained: Collection[str] = ()) -> None:
        super().__init__()
        self._trained = frozenset(trained)

    def call(self, model: ir.Model) -> PassResult:
        """Write them."""
        graph = model.graph
        learning = led_to_by(graph, self._trained)
        modified = False
        for node in list(graph):
            if node.domain not in ONNX_DOMAINS or node.op_type not in ("Add", "RotaryEmbedding"):
                continue
            found = _rotation(node) if node.op_type == "Add" else _of_operator(graph, node, self._trained)
            if found is not None and found.cos not in learning and found.sin not in learning:
                self._write(graph, found)
                modified = True
        return PassResult(model, modified=modified)

    def _write(self, graph: ir.Graph, found: _Rotation) -> None:
        numbers = {"rotated": found.rotated, "interleaved": int(found.is_interleaved), "inverse": 0, "heads": 0}
        attributes = [ir.AttrInt64(name, number) for name, number in numbers.items()]
        made, read = found.last.outputs[0], [value for value in found.last.inputs if value is not None]
        replace_node(found.last, ROTATE, [found.x, found.cos, found.sin], attributes, [made])
        remove_unread(graph, read, _PARTS)
        if before_transposition(found.x) is None:
            return
        (use,) = found.x.uses()
        if all(_are_of_all_heads(table) for table in (found.cos, found.sin)):
            for index, table in enumerate((found.cos, found.sin), start=1):
                use.node.replace_input_with(index, _of_tokens_first(graph, table))
                remove_unread(graph, [table], VIEWS)
            transpose_behind(use.node)


def _rotation(add: ir.Node) -> _Rotation | None:
    """Return the rotation whose sum a node computes (Y1), of the whole row where only a part is rotated (Y2)."""
    first, second = add.inputs
    for straight, turned in ((first, second), (second, first)):
        found = _sum_of(add, straight, turned)
        if found is not None:
            return _of_whole_row(found) or found
    return None


def _sum_of(add: ir.Node, straight: ir.Value | None, turned: ir.Value | None) -> _Rotation | None:
    scaled, crossed = made_alone(straight, "Mul"), made_alone(turned, "Mul")
    if scaled is None or crossed is None:
        return None
    for swapped, sin in (crossed.inputs, crossed.inputs[::-1]):
        source = _swapped(swapped)
        if source is None or source[0] not in scaled.inputs:
            continue
        x, are_neighbours = source
        cos, width = other_input(scaled, x), sizes_of(x)[-1]
        if cos is None or sin is None or not (is_float(cos) and is_float(sin)) or sizes_of(cos) != sizes_of(sin):
            return None
        is_fit = sizes_of(cos)[-1:] == (width,) and fits(sizes_of(x), sizes_of(cos), width)
        return _Rotation(add, x, cos, sin, are_neighbours, width) if is_fit else None
    return None


def _swapped(value: ir.Value | None) -> tuple[ir.Value, bool] | None:
    """Return what a value has the numbers of, each pair's swapped and one negated, and whether pairs are neighbours."""
    joined = made_alone(value, "Concat", "Reshape")
    are_neighbours = joined is not None and joined.op_type == "Reshape"
    if joined is not None and are_neighbours:
        joined = made_alone(joined.inputs[0], "Concat")
    if joined is None or value is None or not _joins_two(joined):
        return None
    ends = [_stacked(each) if are_neighbours else each for each in joined.inputs]
    negated = made_alone(ends[0], "Neg")
    second, first = _part_of(negated.inputs[0] if negated is not None else None), _part_of(ends[1])
    if second is None or first is None or sizes_of(value) != sizes_of(first.whole):
        return None
    whole, width = first.whole, sizes_of(first.whole)[-1]
    half = width // 2
    if are_neighbours:
        is_swap = (second, first) == (_Part(whole, 1, width, 2), _Part(whole, 0, width, 2))
        is_swap = is_swap and sizes_of(joined.outputs[0])[-2:] == (half, 2)
    else:
        is_swap = (second, first) == (_Part(whole, half, width, 1), _Part(whole, 0, half, 1))
    return (whole, are_neighbours) if is_swap and width % 2 == 0 else None


def _stacked(value: ir.Value | None) -> ir.Value | None:
    """Return what a value has a new dimension of."""
    maker = made_alone(value, "Unsqueeze")
    return maker.inputs[0] if maker is not None else None


def _joins_two(joined: ir.Node) -> bool:
    """Return whether a node puts two values of floats behind each other along the last axis."""
    value = joined.outputs[0]
    is_last = is_float(value) and joined.attributes.get_int("axis", 0) in (-1, len(sizes_of(value)) - 1)
    return is_last and len(joined.inputs) == 2


def _part_of(value: ir.Value | None) -> _Part | None:
    """Return which part of the rows of another value a value is."""
    maker = made_by(value, "Slice", "Split")
    whole = maker.inputs[0] if maker is not None else None
    if maker is None or whole is None or value is None or not (is_float(whole) and is_float(value)):
        return None
    rank, width = len(sizes_of(whole)), sizes_of(whole)[-1]
    if maker.op_type == "Split":
        if maker.attributes.get_int("axis", 0) not in (-1, rank - 1):
            return None
        sizes = [sizes_of(each)[-1] for each in maker.outputs]
        first = sum(sizes[: value.index() or 0])
        return _Part(whole, first, first + sizes[value.index() or 0], 1)
    given = [integers_in(each) for each in maker.inputs[1:]]
    if any(each is None or len(each) != 1 for each in given):
        return None
    numbers = [each[0] for each in given if each is not None]
    start, end, axis, step = [*numbers, *(0, 1)[len(numbers) - 2 :]]
    if len(numbers) < 3 or axis not in (-1, rank - 1) or step < 1:
        return None
    start, end, step = slice(start, end, step).indices(width)
    return _Part(whole, start, end, step)


def _of_whole_row(found: _Rotation) -> _Rotation | None:
    """Return a rotation of whole rows of which a part is rotated (Y2)."""
    made, part = found.last.outputs[0], _part_of(found.x)
    joined = only_reader(made, "Concat")
    if joined is None or part is None or not _joins_two(joined) or joined.inputs[0] is not made:
        return None
    rest = _part_of(joined.inputs[1])
    width = sizes_of(part.whole)[-1]
    is_first = (part.first, part.end, part.step) == (0, found.rotated, 1)
    if rest is None or rest.whole is not part.whole or not is_first:
        return None
    is_rest = (rest.first, rest.end, rest.step) == (found.rotated, width, 1)
    return replace(found, last=joined, x=part.whole) if is_rest else None


def _four_sizes(table: ir.Value) -> tuple[int, ...]:
    return (1,) * (_RANK - len(sizes_of(table))) + sizes_of(table)


def _are_of_all_heads(table: ir.Value) -> bool:
    return _four_sizes(table)[1] == 1


def _of_tokens_first(graph: ir.Graph, table: ir.Value) -> ir.Value:
    """Return a table for rows of [batch, tokens, heads, width], made once."""
    batch, _, tokens, width = _four_sizes(table)
    shape, source = (batch, tokens, 1, width), seen(table)
    name = f"{source.name}/tokens_first"
    if table.const_value is not None:
        return graph.initializers.get(name) or _viewed(graph, name, table, shape)
    return seen_as(graph, source, name, shape)


def _of_operator(graph: ir.Graph, node: ir.Node, trained: Collection[str]) -> _Rotation | None:
    """Return the rotation of ONNX's operator (Y5)."""
    if len([value for value in node.inputs if value is not None]) != _OPERANDS:
        return None
    x, cos, sin = node.inputs
    if x is None or cos is None or sin is None or not is_float(x) or len(sizes_of(x)) != _RANK:
        return None
    if not (is_frozen(cos, trained) and is_frozen(sin, trained)) or sizes_of(cos) != sizes_of(sin):
        return None
    if len(sizes_of(cos)) != _RANK - 1:
        return None
    rotated = node.attributes.get_int("rotary_embedding_dim", 0) or sizes_of(x)[-1]
    batch, tokens, half = sizes_of(cos)
    shape = (batch, 1, tokens, half)  # the same for all heads
    if half != rotated // 2 or not fits(sizes_of(x), shape, rotated):
        return None
    tables = [_viewed(graph, f"{node.name}/{name}", table, shape) for name, table in (("cos", cos), ("sin", sin))]
    return _Rotation(node, x, tables[0], tables[1], bool(node.attributes.get_int("interleaved", 0)), rotated)


def _viewed(graph: ir.Graph, name: str, table: ir.Value, shape: tuple[int, ...]) -> ir.Value:
    assert table.const_value is not None
    return initializer(graph, name, table.const_value.numpy().reshape(shape))
