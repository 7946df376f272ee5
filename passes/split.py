"""Split large weight gradients, so that no whole one is ever in RAM.

At batch 1 a weight gradient is larger than all activations together: 9.4 MB of ResNet-18's 14.5 MB of transient peak.
It lives only to be added to its accumulation buffer, so it can as well be computed and added row by row.

Rules:
    S1. A gradient of more than `part_bytes` bytes that one InPlaceAccumulatorV2 or Accumulate alone reads, directly or
        through Identity nodes, Reshapes that keep its rows and one Transpose of a matrix, is split if a rule below
        knows the node that makes it.
    S2. dW of a ConvGrad or ConvWeightGradient without groups: the output channels are split. Parts get slices of dY,
        and of W where the node reads it; what else the node makes (dX, and dB, however large) stays with the node,
        which only loses the output.
    S3. Gemm (no C), MatMul and FusedMatMul of matrices: the rows of the plain or transposed product are split: they are
        rows or columns of one operand, and parts get slices of that.
    S4. GatherGrad or GatherGradient along axis 0 is not split but replaced: AccumulateRows adds the rows that the batch
        used.
        Where AddRows adds such rows to the whole gradient of another reader, they are added to each part: for this the
        product of the parts waits, if its operands are smaller than the gradient.
    S5. Parts are of equal size but for one row, and never of a single row: ONNX Runtime multiplies a vector by other
        kernels than a matrix, which round differently. They are as small as asked for, or larger where smaller ones
        would add up in another order than the whole product does with so many threads; none where all would. A
        gradient has at most 512 of them, for their nodes take memory, too.
    S6. Accumulate nodes of one buffer form a chain; the last one takes over the accumulator's output.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from itertools import starmap

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from poet_onnx.description.names import POET_DOMAIN, POET_VERSION
from poet_onnx.graph.operators import MICROSOFT_DOMAIN, ONNX_DOMAINS
from poet_onnx.graph.operators.sgemm import terms_at_once
from poet_onnx.graph.operators.windows import strips
from poet_onnx.passes.node_builder import initializer

_MOST_PARTS = 512
"""Of a gradient: a session takes some 20 KB for the nodes of each."""

_CONVOLUTIONS = {("ConvGrad", MICROSOFT_DOMAIN): 1, ("ConvWeightGradient", POET_DOMAIN): 0}
"""Gradients of convolutions, and which output is the weight's."""


@dataclass(frozen=True)
class _Gradient:
    """A weight gradient on its way into its buffer.

    Attributes:
        maker: the node that computes it.
        between: views, the Transpose and the AddRows that lead from there to the accumulator, first to last.
        accumulator: the InPlaceAccumulatorV2 or Accumulate node.
        rows: of the gradient as the accumulator gets it.
        row_elements: elements of one of them.
        parts: rows of each part; none of a gather's gradient.
    """

    maker: ir.Node
    between: tuple[ir.Node, ...]
    accumulator: ir.Node
    rows: int
    row_elements: int
    parts: tuple[int, ...] = ()

    @property
    def adding(self) -> ir.Node | None:
        """Return the node that adds rows of a gather's gradient to this one, if there is one."""
        return next((node for node in self.between if node.op_type == "AddRows"), None)

    @property
    def transposed(self) -> bool:
        """Return whether the accumulator gets the transposed matrix."""
        return any(node.op_type == "Transpose" for node in self.between)


class SplitWeightGradients(InPlacePass):
    """Compute and accumulate weight gradients in parts."""

    def __init__(self, part_bytes: int, *, threads: int, spared: Container[str] = ()) -> None:
        """Set what is split.

        Args:
            part_bytes: size above which gradients are split; parts are no larger where rows and S5 permit it.
            threads: inside an operator, with which parts have the bits of the whole (S5).
            spared: names of buffers of gradients that stay whole.
        """
        super().__init__()
        self._part_bytes = part_bytes
        self._threads = threads
        self._spared = spared

    def call(self, model: ir.Model) -> PassResult:
        """Split every gradient that the rules cover."""
        found = [gradient for node in model.graph if (gradient := self._gradient(node)) is not None]
        for gradient in found:
            _Splitter(model.graph, gradient).run()
        if found:
            model.graph.opset_imports[POET_DOMAIN] = POET_VERSION
        return PassResult(model, modified=bool(found))

    def _gradient(self, node: ir.Node) -> _Gradient | None:
        """Return the gradient that a node accumulates, if it is to be split (S1)."""
        if not _accumulates_whole(node) or _has_output(node, 1):
            return None
        value = node.inputs[1]
        between: list[ir.Node] = []
        while value is not None and len(value.uses()) == 1 and not value.is_graph_output():
            maker = value.producer()
            if maker is None:
                return None
            if not _passes_on(maker, transposed=any(step.op_type == "Transpose" for step in between)):
                return self._splittable(maker, value, tuple(reversed(between)), node)
            between.append(maker)
            value = maker.inputs[0]
        return None

    def _splittable(
        self, maker: ir.Node, value: ir.Value, between: tuple[ir.Node, ...], accumulator: ir.Node
    ) -> _Gradient | None:
        buffer = accumulator.inputs[0]
        shape, size_bytes = _shape(buffer), _size_bytes(buffer)
        if not shape or size_bytes <= self._part_bytes or buffer is None or buffer.name in self._spared:
            return None
        rows = shape[0]
        gradient = _Gradient(maker, between, accumulator, rows, math.prod(shape[1:]))
        plain = not between and value.shape == buffer.shape
        if _rows_of_gather(maker):
            return gradient if plain and maker.attributes.get_int("axis", 0) == 0 else None
        if rows < 4:
            return None
        if (maker.op_type, maker.domain) in _CONVOLUTIONS:
            is_weight = value is maker.outputs[_CONVOLUTIONS[maker.op_type, maker.domain]]
            splits = plain and is_weight and maker.attributes.get_int("group", 1) == 1
        else:
            splits = _is_matrix_product(maker, value) and _keeps_rows(gradient) and _may_wait(gradient, size_bytes)
        parts = self._parts(gradient, size_bytes // rows) if splits else ()
        return replace(gradient, parts=parts) if parts else None

    def _parts(self, gradient: _Gradient, row_bytes: int) -> tuple[int, ...]:
        """Return the rows of each part (S5); none if only the whole has its bits."""
        rows = gradient.rows
        most = min(-(-rows // max(2, self._part_bytes // row_bytes)), rows // 2, _MOST_PARTS)
        for count in range(most, 1, -1):
            size, larger = divmod(rows, count)
            if all(_adds_up_alike(gradient, each, self._threads) for each in {size, size + (larger > 0)}):
                return tuple(size + (number < larger) for number in range(count))
        return ()


def _adds_up_alike(gradient: _Gradient, rows: int, threads: int) -> bool:
    """Return whether each sum in so many rows of a gradient takes the terms at once that it takes in the whole."""
    for width, terms in _products(gradient):
        if gradient.transposed:  # its rows are the product's columns
            orders = {*terms_at_once(width, gradient.rows, terms, threads), *terms_at_once(width, rows, terms, threads)}
            if len(orders) > 1 or 0 in orders:
                return False
        else:
            whole = terms_at_once(gradient.rows, width, terms, threads)
            if 0 in whole or terms_at_once(rows, width, terms, threads) != whole:
                return False
    return True


def _products(gradient: _Gradient) -> list[tuple[int, int]]:
    """Return, for each product that makes a gradient, its other side and how many terms its sums have."""
    maker, depth = gradient.maker, gradient.row_elements
    first = _shape(maker.inputs[0])
    if maker.op_type == "ConvGrad":
        return [(depth, math.prod(first[2:]))]  # an image after the other
    if maker.op_type == "ConvWeightGradient":  # some rows of columns after the others, of a strip after the other
        most = min(max(maker.attributes.get_int("columns", 1), 1), depth)
        images, rows = (maker.attributes.get_int(name, 1) for name in ("images", "rows"))
        return [(width, terms) for width in {most, depth % most} if width for terms in set(strips(first, images, rows))]
    made, is_turned = _shape(maker.outputs[0]), bool(maker.attributes.get_int("transA", 0))
    return [(made[0] if gradient.transposed else made[1], first[0] if is_turned else first[1])]


def _rows_of_gather(maker: ir.Node) -> list[ir.Value | None]:
    """Return the indices and the rows of a gather's gradient; nothing of another node."""
    operators = {("GatherGrad", MICROSOFT_DOMAIN): slice(1, 3), ("GatherGradient", POET_DOMAIN): slice(0, 2)}
    found = operators.get((maker.op_type, maker.domain))
    return [] if found is None else list(maker.inputs[found])


def _accumulates_whole(node: ir.Node) -> bool:
    return node.op_type == "InPlaceAccumulatorV2" or (
        node.op_type == "Accumulate"
        and node.domain == POET_DOMAIN
        and math.prod(_shape(node.inputs[0])) == math.prod(_shape(node.inputs[1]))
    )


def _passes_on(node: ir.Node, *, transposed: bool) -> bool:
    """Return whether a node only hands its first input on: a view that keeps the rows, or one Transpose of a matrix.

    One that adds rows of a gather's gradient to it may stand behind these.
    """
    if node.op_type == "AddRows" and node.domain == POET_DOMAIN:
        return not transposed and len(_shape(node.outputs[0])) == 2
    if node.domain not in ONNX_DOMAINS:
        return False
    if node.op_type == "Transpose":
        permutation = node.attributes.get_ints("perm", [1, 0])
        return not transposed and list(permutation) == [1, 0]
    if node.op_type == "Reshape":
        return _shape(node.inputs[0])[:1] == _shape(node.outputs[0])[:1]
    return node.op_type == "Identity"


def _keeps_rows(gradient: _Gradient) -> bool:
    """Return whether rows of the product are rows, or with a Transpose columns, of what is accumulated."""
    shapes = [_shape(node.outputs[0]) for node in gradient.between] + [_shape(gradient.accumulator.inputs[0])]
    return not gradient.transposed or all(len(shape) == 2 for shape in shapes)


def _may_wait(gradient: _Gradient, size_bytes: int) -> bool:
    """Return whether the gradient need not be made before rows that are to be added are there (S4)."""
    return gradient.adding is None or sum(map(_size_bytes, gradient.maker.inputs)) < size_bytes


def _is_matrix_product(node: ir.Node, value: ir.Value) -> bool:
    """Return whether a node multiplies two matrices and nothing else (S3)."""
    if value.shape is None or len(value.shape) != 2 or any(len(_shape(operand)) != 2 for operand in node.inputs[:2]):
        return False
    if node.op_type == "Gemm" and node.domain in ONNX_DOMAINS:
        return len(node.inputs) < 3 or node.inputs[2] is None
    if node.op_type == "FusedMatMul" and node.domain == MICROSOFT_DOMAIN:
        return not any(node.attributes.get_int(name, 0) for name in ("transBatchA", "transBatchB"))
    return node.op_type == "MatMul" and node.domain in ONNX_DOMAINS


class _Splitter:
    """Writes the nodes that take a gradient's place."""

    def __init__(self, graph: ir.Graph, gradient: _Gradient) -> None:
        self.graph = graph
        self.gradient = gradient
        self.buffer = gradient.accumulator.inputs[0]
        self.nodes: list[ir.Node] = []
        self.flag: ir.Value | None = None

    def run(self) -> None:
        """Put the new nodes behind the maker, and take the accumulator and what led to it out of the graph."""
        gradient = self.gradient
        maker = gradient.maker
        if rows := _rows_of_gather(maker):
            self._accumulate(0, "AccumulateRows", rows, [])
        else:
            first = 0
            for number, count in enumerate(gradient.parts):
                part = self._part(number, first, count)
                offset = ir.AttrInt64("offset", first * gradient.row_elements)
                self._accumulate(number, "Accumulate", [part], [offset])
                first += count
        if self.flag is None:
            return
        output = gradient.accumulator.outputs[0]
        name = output.name
        self.flag.type, self.flag.shape = output.type, output.shape
        output.replace_all_uses_with(self.flag, replace_graph_outputs=True)
        self.graph.insert_after(gradient.adding or maker, self.nodes)
        obsolete = [gradient.accumulator, *reversed(gradient.between)]
        self.graph.remove(obsolete, safe=True)
        self.flag.name = name
        self._drop_output(maker)

    def _part(self, number: int, first: int, count: int) -> ir.Value:
        """Write the nodes that compute some rows of the gradient, as its accumulator would get them."""
        maker = self.gradient.maker
        if (maker.op_type, maker.domain) in _CONVOLUTIONS:
            d_y, x, *weights = maker.inputs
            read = [self._slice(d_y, 1, number, first, count), x]
            read += [self._slice(weight, 0, number, first, count) for weight in weights]
            left_out = [None] * _CONVOLUTIONS[maker.op_type, maker.domain]
            return self._copy(maker, number, read, [*left_out, [count, *_shape(self.buffer)[1:]]])
        left, right = maker.inputs[:2]
        flipped = bool(maker.attributes.get_int("transB" if self.gradient.transposed else "transA", 0))
        if self.gradient.transposed:
            columns = self._slice(right, 0 if flipped else 1, number, first, count)
            width = self.gradient.row_elements
            value = self._copy(maker, number, [left, columns], [[width, count]])
        else:
            lines = self._slice(left, 1 if flipped else 0, number, first, count)
            value = self._copy(maker, number, [lines, right], [[count, self.gradient.row_elements]])
        for node in self.gradient.between:
            if node.op_type == "Transpose":
                value = self._copy(node, number, [value], [[count, self.gradient.row_elements]])
            elif node.op_type == "AddRows":
                inputs = [value, *node.inputs[1:]]
                value = self._copy(node, number, inputs, [[count, self.gradient.row_elements]], first=first)
        return value

    def _copy(
        self,
        node: ir.Node,
        number: int,
        inputs: Sequence[ir.Value | None],
        shapes: Sequence[list[int] | None],
        **changed: int,
    ) -> ir.Value:
        """Write a copy of a node with other inputs and attributes; an output without a shape is left out."""
        assert self.buffer is not None
        outputs = [
            ir.Value(name="") if shape is None else self._value(f"{original.name}/part_{number}", self.buffer, shape)
            for original, shape in zip(node.outputs, shapes, strict=False)
        ]
        copy = ir.Node(
            node.domain,
            node.op_type,
            inputs,
            [
                *(each for name, each in node.attributes.items() if name not in changed),
                *starmap(ir.AttrInt64, changed.items()),
            ],
            outputs=outputs,
            name=f"{node.name}/part_{number}",
        )
        self.nodes.append(copy)
        return outputs[-1]

    def _slice(self, value: ir.Value | None, axis: int, number: int, first: int, count: int) -> ir.Value:
        assert value is not None
        maker = self.gradient.maker
        bounds = [self._constant(limit) for limit in (first, first + count, axis)]
        shape = [count if place == axis else size for place, size in enumerate(_shape(value))]
        side = next(index for index, other in enumerate(maker.inputs) if other is value)
        output = self._value(f"{maker.name}/slice_{side}_{number}", value, shape)
        name = f"{maker.name}/slice_{side}_{number}"
        self.nodes.append(ir.Node("", "Slice", [value, *bounds], outputs=[output], name=name))
        return output

    def _accumulate(self, number: int, op_type: str, parts: list[ir.Value | None], attributes: list[ir.Attr]) -> None:
        """Write an accumulating node behind those of the same buffer (S6)."""
        old = self.gradient.accumulator
        overwrite = old.inputs[2]
        after = [] if self.flag is None else [self.flag]
        name = f"{old.name}/part_{number}"
        self.flag = ir.Value(name=f"{old.outputs[0].name}/part_{number}", type=ir.TensorType(ir.DataType.BOOL))
        self.flag.shape = ir.Shape([1])
        inputs = [self.buffer, *parts, overwrite, *after]
        self.nodes.append(ir.Node(POET_DOMAIN, op_type, inputs, attributes, outputs=[self.flag], name=name))

    def _value(self, name: str, like: ir.Value, shape: list[int]) -> ir.Value:
        return ir.Value(name=name, type=like.type, shape=ir.Shape(shape))

    def _constant(self, number: int) -> ir.Value:
        name = f"poet/int64/{number}"
        known = self.graph.initializers.get(name)
        return initializer(self.graph, name, np.array([number], np.int64)) if known is None else known

    def _drop_output(self, maker: ir.Node) -> None:
        """Take the gradient's output off the node that made it, and the node off the graph if nothing is left (S2)."""
        left = [output for output in maker.outputs if output.uses() or output.is_graph_output()]
        if not left:
            self.graph.remove(maker, safe=True)
            return
        maker.outputs[1].name = ""


def _shape(value: ir.Value | None) -> list[int]:
    if value is None or value.shape is None:
        return []
    return [size for size in value.shape if isinstance(size, int)]


def _size_bytes(value: ir.Value | None) -> int:
    if value is None or value.dtype is None or value.shape is None:
        return 0
    return int(math.prod(_shape(value)) * value.dtype.itemsize)


def _has_output(node: ir.Node, index: int) -> bool:
    return len(node.outputs) > index and bool(node.outputs[index].name)
