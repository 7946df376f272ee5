"""Which parts of a graph's inputs a value holds, where operators move or convert numbers, or compute with constants.

A part is followed back through one operator after another, as positions along axes. Where an operator does not tell
which of its numbers it takes, such as a gather by indices that are computed, nothing is said of what stands before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from poet_onnx.graph.extract.known import (
    Dims,
    constant_of,
    dims_of,
    integer_of,
    integers_of,
    is_given,
    rank_of,
    size_of,
)
from poet_onnx.graph.extract.lines import AS_IT_IS, Line
from poet_onnx.graph.input_ranges import END, Part
from poet_onnx.graph.operators import KNOWN_DOMAINS

MOVES = frozenset(
    word
    for line in (
        "Identity Cast Reshape Flatten Squeeze Unsqueeze Transpose Slice Split SplitTraining Expand Tile Gather",
        "GatherElements GatherND ReverseSequence Gate Pad",
    )
    for word in line.split()
)
"""Operators that move or convert the numbers of their first input."""

JOINS = frozenset(("Concat", "ConcatTraining"))
"""Operators that put the numbers of all of their inputs side by side."""

_MOST_STEPS = 4096
"""So many parts are followed for a value; a strange graph could have one for each subset of its nodes."""

_MOST_POSITIONS = 64
"""So many positions that are no regular row become a part each."""

Found = tuple[ir.Value, Part, Line]
Positions = dict[int, range]
"""What a part has of the axes of which it has not everything."""
Step = Iterable[tuple[ir.Value, Positions]]


def parts_of_inputs(value: ir.Value) -> list[Found]:
    """Return the graph inputs that a value's numbers come from, and of each the part; all that can be told.

    Beside them stands what was computed of the numbers on the way.
    """
    pending: list[Found] = [(value, (), AS_IT_IS)]
    seen, found = set(pending), []
    while pending:
        last, part, line = pending.pop()
        if last.is_graph_input():
            found.append((last, part, line))
            continue
        before = ((source, each, line.after(own)) for source, each, own in _before(last, part))
        new = [each for each in before if each not in seen and each[-1].is_usable]
        seen.update(new)
        pending += new
        if len(seen) > _MOST_STEPS:
            return []
    return found


def _before(value: ir.Value, part: Part) -> Iterable[Found]:
    """Return what an operator takes the part of its output from; nothing where that cannot be told."""
    node = value.producer()
    if node is None or not node.inputs or node.domain not in KNOWN_DOMAINS:
        return
    if node.op_type in _LINES:
        for source, positions, line in _computed(node, value, dict(part)):
            if (each := _written(source, positions)) is not None:
                yield source, each, line
    elif not part and node.op_type in _KEEPING_ALL:
        if node.inputs[0] is not None:
            yield node.inputs[0], (), AS_IT_IS
    elif node.op_type in _RULES:
        for source, positions in _RULES[node.op_type](node, value, dict(part)):
            if (each := _written(source, positions)) is not None:
                yield source, each, AS_IT_IS


def _written(value: ir.Value, positions: dict[int, range]) -> Part | None:
    """Return a part without the axes of which it has everything; None for an empty one."""
    part = []
    for axis, row in sorted(positions.items()):
        ascending = row if row.step > 0 else row[::-1]
        if not ascending:
            return None
        if len(ascending) == 1:
            ascending = range(ascending[0], ascending[0] + 1)
        if ascending != range(size_of(value, axis) or END):
            part.append((axis, ascending))
    return tuple(part)


def _same(node: ir.Node, _: ir.Value, part: Positions) -> Step:
    return _first(node, part)


def _first(node: ir.Node, part: Positions | None) -> Step:
    source = node.inputs[0]
    return [] if source is None or part is None else [(source, part)]


def _renamed(node: ir.Node, part: Positions, axes: dict[int, int] | None) -> Step:
    """Return the part of a node's first input, whose axes are given by those of the output."""
    if axes is None or not part.keys() <= axes.keys():
        return []
    return _first(node, {axes[axis]: row for axis, row in part.items()})


def _transposed(node: ir.Node, output: ir.Value, part: Positions) -> Step:
    given, rank = integers_of(node, "perm", len(node.inputs)), rank_of(output)
    order = given if given is not None or rank is None else range(rank)[::-1]
    return _renamed(node, part, None if order is None else dict(enumerate(order)))


def _squeezed(node: ir.Node, _: ir.Value, part: Positions) -> Step:
    source, gone = node.inputs[0], integers_of(node, "axes", 1)
    rank = rank_of(source)
    if rank is None:
        return []
    if gone is None and len(node.inputs) < 2:
        gone = [axis for axis in range(rank) if source is not None and size_of(source, axis) == 1]
    if gone is None:
        return []
    kept = [axis for axis in range(rank) if axis not in gone and axis - rank not in gone]
    return _renamed(node, part, dict(enumerate(kept)))


def _unsqueezed(node: ir.Node, output: ir.Value, part: Positions) -> Step:
    rank, new = rank_of(output), integers_of(node, "axes", 1)
    if rank is None or new is None:
        return []
    old = [axis for axis in range(rank) if axis not in new and axis - rank not in new]
    axes = {axis: place for place, axis in enumerate(old)}
    return _renamed(node, {axis: row for axis, row in part.items() if axis in axes}, axes)


def _reshaped(node: ir.Node, output: ir.Value, part: Positions) -> Step:
    """Follow the axes before and behind those that are put together or apart."""
    before, after = dims_of(node.inputs[0]), dims_of(output)
    if before is None or after is None:
        return []
    old, new = ([axis for axis, size in enumerate(dims) if size != 1] for dims in (before, after))
    first = _equal([before[axis] for axis in old], [after[axis] for axis in new])
    old_rest, new_rest = old[first:][::-1], new[first:][::-1]
    last = _equal([before[axis] for axis in old_rest], [after[axis] for axis in new_rest])
    pairs = (*zip(new[:first], old, strict=False), *zip(new_rest[:last], old_rest, strict=False))
    return _renamed(node, part, dict(pairs))


def _equal(one: Sequence[object], other: Sequence[object]) -> int:
    """Return how many sizes are the same from the first one on."""
    pairs = zip(one, other, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a is None or a != b), min(len(one), len(other)))


def _repeated(node: ir.Node, output: ir.Value, part: Positions) -> Step:
    """Follow the axes that are not repeated."""
    before, after = dims_of(node.inputs[0]), dims_of(output)
    if before is None or after is None:
        return []
    more = len(after) - len(before)
    axes = {
        axis: axis - more
        for axis in range(more, len(after))
        if after[axis] is not None and after[axis] == before[axis - more]
    }
    # Of an axis that has one position before it is repeated, every position is that one.
    single = [axis for axis in range(len(after)) if axis < more or before[axis - more] == 1]
    return _renamed(node, {axis: row for axis, row in part.items() if axis not in single}, axes)


def _padded(node: ir.Node, _: ir.Value, part: Positions) -> Step:
    pads = integers_of(node, "pads", 1)
    return _first(node, part) if not part and pads is not None and min(pads, default=0) >= 0 else []


def _reversed(node: ir.Node, _: ir.Value, part: Positions) -> Step:
    return [] if integer_of(node, "time_axis") in part else _first(node, part)


def _sliced(node: ir.Node, output: ir.Value, part: Positions) -> Step:
    source, rank = node.inputs[0], rank_of(node.inputs[0], output)
    starts, ends = integers_of(node, "starts", 1), integers_of(node, "ends", 2)
    if source is None or not rank or starts is None or ends is None:
        return []
    axes, steps = integers_of(node, "axes", 3), integers_of(node, "steps", 4)
    if (axes is None and is_given(node, "axes", 3)) or (steps is None and is_given(node, "steps", 4)):
        return []
    taken = dict(part)
    every = zip(axes or range(len(starts)), starts, ends, steps or [1] * len(starts), strict=False)
    for axis, start, end, step in every:
        place = axis % rank
        row = _row(size_of(source, place), start, end, step)
        if row is None:
            return []
        taken[place] = _of(row, taken.get(place))
    return _first(node, taken)


def _row(size: int | None, start: int, end: int, step: int) -> range | None:
    """Return the positions of a slice; None where they depend on a size that is not known."""
    if step == 0 or (size is None and (start < 0 or end < 0 or step < 0)):
        return None
    return range(END if size is None else size)[start:end:step]


def _of(row: range, positions: range | None) -> range:
    """Return positions among those of a row."""
    return row if positions is None else row[positions.start : positions.stop : positions.step]


def _split(node: ir.Node, output: ir.Value, part: Positions) -> Step:
    rank = rank_of(node.inputs[0], output)
    if not rank:
        return []
    axis = integer_of(node, "axis") % rank
    sizes = [size_of(each, axis) for each in node.outputs[: output.index() or 0]]
    own = size_of(output, axis)
    if own is None or not all(size is not None for size in sizes):
        return []
    begin = sum(size for size in sizes if size is not None)
    return _first(node, {**part, axis: _of(range(begin, begin + own), part.get(axis))})


def _gathered(node: ir.Node, _: ir.Value, part: Positions) -> Iterator[tuple[ir.Value, Positions]]:
    """Follow constant indices: each row of positions that they name is a part."""
    source, indices = node.inputs[0], constant_of(node.inputs[1] if len(node.inputs) > 1 else None)
    rank = rank_of(source)
    if source is None or indices is None or not rank:
        return
    axis = integer_of(node, "axis") % rank
    last, size = axis + indices.ndim, size_of(source, axis)
    chosen = indices[tuple(_slice(part.get(place)) for place in range(axis, last))]
    if size is None and chosen.size and chosen.min() < 0:
        return
    others = {
        place if place < axis else place - indices.ndim + 1: row
        for place, row in part.items()
        if not axis <= place < last
    }
    for row in _rows({int(index) % size if size else int(index) for index in chosen.flat}):
        yield source, {**others, axis: row}


def _rows(positions: set[int]) -> list[range]:
    """Return positions as one row if it is a regular one, else one by one; none if they are too many for that."""
    found = sorted(positions)
    if len(found) > 1:
        row = range(found[0], found[-1] + 1, found[1] - found[0])
        if list(row) == found:
            return [row]
    return [range(each, each + 1) for each in found] if len(found) <= _MOST_POSITIONS else []


def _slice(row: range | None) -> slice:
    return slice(None) if row is None else slice(row.start, row.stop, row.step)


def _joined(node: ir.Node, output: ir.Value, part: Positions) -> Iterator[tuple[ir.Value, Positions]]:
    rank = rank_of(output, *node.inputs)
    axis = integer_of(node, "axis") % rank if rank else 0
    begin: int | None = 0
    for source in node.inputs:
        size = None if source is None else size_of(source, axis)
        if source is not None and axis not in part:
            yield source, part
        elif source is not None and begin is not None and size is not None:
            yield source, {**part, axis: _within(part[axis], begin, begin + size)}
        begin = None if begin is None or size is None else begin + size


def _within(row: range, begin: int, end: int) -> range:
    """Return the positions of a row from one place to another, counted from the first."""
    first, last = (max(0, -((row.start - place) // row.step)) for place in (begin, end))
    inside = row[first:last]
    return range(inside.start - begin, inside.stop - begin, inside.step)


def _computed(node: ir.Node, output: ir.Value, part: Positions) -> Iterator[tuple[ir.Value, Positions, Line]]:
    """Follow the operand of integers that stands beside a constant."""
    constants = [constant_of(each) for each in node.inputs]
    known = [place for place, each in enumerate(constants) if each is not None]
    if len(node.inputs) != len(known) + 1:
        return
    (place,) = {*range(len(node.inputs))} - {*known}
    source, numbers = node.inputs[place], constants[known[0]] if known else np.zeros((), np.int64)
    if source is None or numbers is None or not {source.dtype, output.dtype} & _SIGNED:
        return
    for positions, number in _beside(numbers, dims_of(source), dims_of(output), part):
        line = _LINES[node.op_type](number, place)
        if line.is_usable:
            yield source, positions, line


def _beside(
    numbers: npt.NDArray[np.integer], before: Dims | None, after: Dims | None, part: Positions
) -> Iterator[tuple[Positions, int]]:
    """Yield each number of a constant operand, and the part of the other operand that it meets."""
    keeps_axes = numbers.ndim == 0 or (before is not None and before == after)
    if numbers.size and (numbers == numbers.flat[0]).all():
        if keeps_axes or not part:
            yield part, int(numbers.flat[0])
        return
    varying = [axis for axis in range(-numbers.ndim, 0) if numbers.shape[axis] != 1]
    if len(varying) != 1 or not keeps_axes or before is None or not 0 < numbers.size <= _MOST_POSITIONS:
        return
    axis = len(before) + varying[0]
    if axis >= 0 and before[axis] == numbers.size:
        for place in part.get(axis, range(numbers.size)):
            yield {**part, axis: range(place, place + 1)}, int(numbers.flat[place])


_SIGNED = {ir.DataType.INT32, ir.DataType.INT64}
"""Types in which arithmetic with indices does not wrap around."""

_LINES: dict[str, Callable[[int, int], Line]] = {
    "Add": lambda number, _: Line(1, number),
    "Sub": lambda number, place: Line(1, -number) if place == 0 else Line(-1, number),
    "Mul": lambda number, _: Line(number),
    "Neg": lambda _, __: Line(-1),
}
"""What is computed of the operand at a place, beside a constant number, by operator."""

_RULES: dict[str, Callable[[ir.Node, ir.Value, Positions], Step]] = {
    **dict.fromkeys(("Identity", "Cast", "Gate"), _same),
    **dict.fromkeys(("Reshape", "Flatten"), _reshaped),
    **dict.fromkeys(("Expand", "Tile"), _repeated),
    **dict.fromkeys(("Split", "SplitTraining"), _split),
    **dict.fromkeys(JOINS, _joined),
    "Squeeze": _squeezed,
    "Unsqueeze": _unsqueezed,
    "Transpose": _transposed,
    "Slice": _sliced,
    "Gather": _gathered,
    "Pad": _padded,
    "ReverseSequence": _reversed,
}
"""What the part of an output is of the inputs, by operator."""

_KEEPING_ALL = _RULES.keys() - {"Split", "SplitTraining", *JOINS, "Slice", "Gather", "Pad"}
"""Operators whose output as a whole is of the first input as a whole."""
