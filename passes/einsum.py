"""Einsum with a letter for each index, and two operands at a time: so what it makes and takes is known to a plan."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from poet_onnx.errors import InputError
from poet_onnx.graph.operators import ONNX_DOMAINS
from poet_onnx.graph.operators.einsum import indices_of, sizes_of
from poet_onnx.graph.shapes import infer
from poet_onnx.passes.node_builder import Replacement, replace_nodes

MOST_TRIED = 5
"""Operands of which all orders are tried, 180; of more, each step takes the two whose product is smallest."""


class NameIndices(InPlacePass):
    """Write a letter for each index of an Einsum: so what the kernel takes besides is known. Requires known shapes."""

    def call(self, model: ir.Model) -> PassResult:
        """Write the equations."""
        modified = False
        for node in model.graph:
            if node.op_type != "Einsum" or node.domain not in ONNX_DOMAINS:
                continue
            shapes = [value.shape for value in node.inputs if value is not None]
            equation = node.attributes["equation"].as_string()
            if "." not in equation and "->" in equation:
                continue
            terms, result = indices_of(equation, [len(shape) for shape in shapes if shape is not None])
            node.attributes["equation"] = ir.AttrString("equation", f"{','.join(terms)}->{result}")
            modified = True
        return PassResult(model, modified=modified)


class ReduceOperands(InPlacePass):
    """Take dimensions from operands of Einsum that its product need not know.

    A dimension of size 1 that is repeated goes by a Reshape: ONNX infers a size of 1 for an index that the first
    operand has so, and ONNX Runtime then plans no memory for the result. An index that neither another operand nor the
    result has goes by a ReduceSum: the kernel would sum over it in memory that it then has for the result.
    """

    def call(self, model: ir.Model) -> PassResult:
        """Write such Einsums with the nodes before; a sum that is all there is takes the Einsum's place."""
        found, modified = _einsums(model.graph, 1), False
        if found:
            inferred = infer(model)
            for node in found:
                modified |= _Reduction(model.graph, node, inferred).write()
        return PassResult(model, modified=modified)


class _Reduction(Replacement):
    """An Einsum, and what takes its place if its product need not know all dimensions of its operands."""

    refused = InputError

    def write(self) -> bool:
        """Write the nodes; return whether there are any."""
        shapes = [self.shape(index) for index in range(len(self.node.inputs))]
        terms, result = indices_of(self.attributes["equation"], [len(shape) for shape in shapes])
        sizes, values = sizes_of(terms, shapes), []
        for index in range(len(terms)):
            others = "".join([*terms[:index], *terms[index + 1 :], result])
            terms[index], value = self._operand(index, terms[index], sizes, others)
            values.append(value)
        if values == list(self.node.inputs):
            return False
        equation = f"{','.join(terms)}->{result}"
        self.give(0, values[0] if terms == [result] else self.op("Einsum", *values, equation=equation))
        self.finish()
        return True

    def _operand(self, index: int, term: str, sizes: Mapping[str, int], others: str) -> tuple[str, ir.Value]:
        """Return the letters that are left of an operand, and what is left of it; `others` are all other letters."""
        value, shape = self.input(index), self.shape(index)
        whole = [axis for axis, letter in enumerate(term) if shape[axis] == sizes[letter]]
        if len(whole) < len(term):
            term = "".join(term[axis] for axis in whole)
            value = self.reshape(value, *(shape[axis] for axis in whole))
        alone = [axis for axis, letter in enumerate(term) if letter not in others and term.count(letter) == 1]
        if alone:
            term = "".join(letter for axis, letter in enumerate(term) if axis not in alone)
            value = self.reduce_sum(value, alone, keep=False)
        return term, value


class PairOperands(InPlacePass):
    """Write an Einsum of several operands as a chain of Einsums of two.

    ONNX Runtime contracts the operands from left to right: where neighbours have few indices in common it makes a
    product of all others, which is no tensor of the graph. So would the gradient, whose first operand is the result's.
    """

    def call(self, model: ir.Model) -> PassResult:
        """Write the chains."""
        found = _einsums(model.graph, 3)
        types = infer(model).types if found else {}
        for node in found:
            shapes = [types[value.name or ""].shape for value in node.inputs if value is not None]
            replace_nodes(model.graph, [node], _chain(node, shapes), [node.outputs[0]])
        return PassResult(model, modified=bool(found))


def _einsums(graph: ir.Graph, operands: int) -> list[ir.Node]:
    """Return the Einsums of so many operands or more."""
    return [
        node
        for node in graph
        if node.op_type == "Einsum" and node.domain in ONNX_DOMAINS and len(node.inputs) >= operands
    ]


@dataclass(frozen=True)
class _Operand:
    """What is still to be multiplied.

    Attributes:
        term: its letters.
        shape: its dimensions.
    """

    term: str
    shape: tuple[int, ...]

    def times(self, other: _Operand, wanted: str) -> tuple[_Operand, int]:
        """Return the product, and how many numbers are multiplied for it.

        Args:
            other: the second operand.
            wanted: letters that are not summed over, in any order.
        """
        sizes = sizes_of((self.term, other.term), (self.shape, other.shape))
        term = "".join(letter for letter in dict.fromkeys(self.term + other.term) if letter in wanted)
        return _Operand(term, tuple(sizes[letter] for letter in term)), math.prod(sizes.values())


def _chain(node: ir.Node, shapes: Sequence[tuple[int, ...]]) -> list[ir.Node]:
    """Return nodes of two operands each that compute what a node of several does, the last one its result."""
    terms, result = indices_of(node.attributes["equation"].as_string(), [len(shape) for shape in shapes])
    operands = [_Operand(term, shape) for term, shape in zip(terms, shapes, strict=True)]
    values, chain = list(node.inputs), []
    for number, (first, second) in enumerate(_cheapest(operands, result)[1]):
        rest = [place for place in range(len(operands)) if place not in (first, second)]
        product, _ = operands[first].times(operands[second], result + "".join(operands[place].term for place in rest))
        term = product.term if rest else result
        equation = f"{operands[first].term},{operands[second].term}->{term}"
        name = f"{node.name}/pair_{number}" if rest else node.name
        pair = ir.Node(
            "",
            "Einsum",
            [values[first], values[second]],
            [ir.AttrString("equation", equation)],
            num_outputs=1,
            name=name,
        )
        pair.outputs[0].name = f"{name}_output"
        chain.append(pair)
        operands = [*(operands[place] for place in rest), product]
        values = [*(values[place] for place in rest), pair.outputs[0]]
    return chain


def _cheapest(operands: Sequence[_Operand], result: str) -> tuple[tuple[int, int], list[tuple[int, int]]]:
    """Return the order with the smallest products on the way, and of such with the fewest multiplications.

    Args:
        operands: two or more.
        result: letters of the whole product.

    Returns:
        Numbers in the products on the way and multiplications; and the places of the operands of each product, which
        goes behind those that are left.
    """
    found = []
    for first, second in combinations(range(len(operands)), 2):
        rest = [operand for place, operand in enumerate(operands) if place not in (first, second)]
        product, multiplied = operands[first].times(
            operands[second], result + "".join(operand.term for operand in rest)
        )
        made = math.prod(product.shape) if rest else 0
        found.append(((made, multiplied), [(first, second)], [*rest, product]))
    if len(operands) > MOST_TRIED:
        found = [min(found, key=lambda each: each[0])]
    whole = []
    for (made, multiplied), order, left in found:
        (more, times), following = _cheapest(left, result) if len(left) > 1 else ((0, 0), [])
        whole.append(((made + more, multiplied + times), [*order, *following]))
    return min(whole, key=lambda each: each[0])
