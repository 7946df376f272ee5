"""A model that compares products by panels with whole ones on the machine that runs it (ops/kernels/panels.h)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import onnx_ir as ir

from poet_onnx.description.metadata import POET_DOMAIN, POET_VERSION
from poet_onnx.graph.operators.linear import compared_rows

ACROSS, ALONG, GRADIENT = 0, 1, 2
"""A product with the transposed matrix, with the matrix, or that which is the matrix's gradient."""

OPERATORS = ("Gemm", "MatMul", "FusedMatMul")
"""That make whole products, as ops/kernels/runtime_product.h counts them."""

_OPSET, _IR_VERSION = 13, 8


@dataclass(frozen=True)
class Comparison:
    """A product by panels that is to have the bits of a whole one.

    Attributes:
        product: ACROSS, ALONG or GRADIENT.
        samples: shape of what is multiplied, without its last axis.
        matrix: its shape.
        panel_rows: rows that are taken at a time.
        operator: of the whole product.
        is_transposed: whether the whole product is one with a matrix that lies transposed, or is made transposed.
        is_biased: whether a bias is added.
    """

    product: int
    samples: tuple[int, ...]
    matrix: tuple[int, int]
    panel_rows: int
    operator: str
    is_transposed: bool
    is_biased: bool

    @property
    def where_it_trains(self) -> Comparison:
        """Return the comparison that the machine makes which trains: of fewer rows, if the matrix is large."""
        rows, columns = self.matrix
        return replace(self, matrix=(compared_rows(rows, columns, self.panel_rows), columns))

    def __str__(self) -> str:
        """Return it as the name of a value: what is said of it where it does not hold."""
        samples = "x".join(map(str, self.samples))
        rows, columns = self.matrix
        way = ("transposed matrix", "matrix", "gradient of a matrix")[self.product]
        how = f"{self.operator}{' with a bias' * self.is_biased}{', transposed' * self.is_transposed}"
        return f"{samples} samples and a {way} of {rows}x{columns} in panels of {self.panel_rows} rows ({how})"


def comparing_model(comparisons: Iterable[Comparison]) -> bytes:
    """Return a model of which each output says whether a comparison holds; its name says which."""
    given = ir.Value(name="any", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1]))
    nodes = []
    for each in comparisons:
        whole = OPERATORS.index(each.operator)
        numbers = {"product": each.product, "panel_rows": each.panel_rows, "whole": whole}
        numbers |= {"transposed": int(each.is_transposed), "biased": int(each.is_biased)}
        attributes: list[ir.Attr] = [ir.AttrInt64(name, value) for name, value in numbers.items()]
        attributes += [ir.AttrInt64s("samples", each.samples), ir.AttrInt64s("matrix", each.matrix)]
        same = ir.Value(name=str(each), type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([1]))
        nodes.append(ir.Node(POET_DOMAIN, "ComparePanels", [given], attributes, outputs=[same], name=str(each)))
    outputs = [node.outputs[0] for node in nodes]
    opsets = {"": _OPSET, POET_DOMAIN: POET_VERSION}
    graph = ir.Graph([given], outputs, nodes=nodes, opset_imports=opsets, name="panels")
    made: bytes = ir.to_proto(ir.Model(graph, ir_version=_IR_VERSION)).SerializeToString()
    return made
