"""A model that compares products by panels with whole ones on the machine that runs it (ops/kernels/panels.h)."""

from __future__ import annotations

import base64
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeAlias

import onnx
import onnx_ir as ir

from poet_onnx.description.names import PANELS_KEY, POET_DOMAIN, POET_VERSION
from poet_onnx.graph.operators.conv_stored import compared_filters
from poet_onnx.graph.operators.linear import compared_rows

ACROSS, ALONG, GRADIENT = 0, 1, 2
"""A product with the transposed matrix, with the matrix, or that which is the matrix's gradient."""

OPERATORS = ("Gemm", "MatMul", "FusedMatMul")
"""That make whole products, as ops/kernels/runtime_product.h counts them."""

CONVOLUTION, IMAGE, FILTERS = 0, 1, 2
"""A convolution, the gradient of its images, or that of its filters."""

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
    compares: ClassVar[str] = "ComparePanels"

    @property
    def attributes(self) -> list[ir.Attr]:
        """Return those of the node that compares."""
        numbers = {"product": self.product, "panel_rows": self.panel_rows, "whole": OPERATORS.index(self.operator)}
        numbers |= {"transposed": int(self.is_transposed), "biased": int(self.is_biased)}
        return _attributes(numbers, {"samples": self.samples, "matrix": self.matrix})

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


@dataclass(frozen=True)
class Windows:
    """How windows slide over images of two dimensions. Attributes: as of a Conv; `pixels` are how many there are."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]
    pixels: tuple[int, ...]

    @property
    def attributes(self) -> list[ir.Attr]:
        """Return those of a node that slides so."""
        return _attributes({}, vars(self))


@dataclass(frozen=True)
class ConvComparison:
    """A convolution by panels, or a gradient of it, that is to have the bits of a whole one.

    Attributes:
        product: CONVOLUTION, IMAGE or FILTERS.
        image: shape of the images.
        filters: how many there are.
        panel_rows: of them that are taken at a time.
        windows: that slide over the images.
        ends: padding behind the image.
        images: whose windows the whole gradient takes at a time.
        rows: of windows that it takes at a time where it is one image.
        is_biased: whether a bias is added.
    """

    product: int
    image: tuple[int, ...]
    filters: int
    panel_rows: int
    windows: Windows
    ends: tuple[int, ...] = (0, 0)
    images: int = 1
    rows: int = 1
    is_biased: bool = False
    compares: ClassVar[str] = "CompareConvolution"

    @property
    def depth(self) -> int:
        """Return how many numbers a filter has."""
        return self.image[1] * math.prod(self.windows.kernel)

    @property
    def attributes(self) -> list[ir.Attr]:
        """Return those of the node that compares."""
        numbers = {"product": self.product, "panel_rows": self.panel_rows}
        numbers |= {"images": self.images, "rows": self.rows, "biased": int(self.is_biased)}
        lists = {"matrix": (self.filters, self.depth), "image": self.image, "ends": self.ends}
        return [*_attributes(numbers, lists), *self.windows.attributes]

    @property
    def where_it_trains(self) -> ConvComparison:
        """Return the comparison that the machine makes which trains: of fewer filters, if they are large."""
        return replace(self, filters=compared_filters(self.filters, self.depth, self.panel_rows))

    def __str__(self) -> str:
        """Return it as the name of a value: what is said of it where it does not hold."""
        way = ("convolution", "gradient of images", "gradient of filters")[self.product]
        image, kernel, strides, dilations, begins, ends = (
            "x".join(map(str, each))
            for each in (
                self.image,
                self.windows.kernel,
                self.windows.strides,
                self.windows.dilations,
                self.windows.begins,
                self.ends,
            )
        )
        how = f"strides {strides}, dilations {dilations}, pads {begins} and {ends}"
        how += f", {self.images} images of {self.rows} rows together" if self.product != CONVOLUTION else ""
        how += ", with a bias" * self.is_biased
        return f"{way} of {image} with {self.filters} filters of {kernel} in panels of {self.panel_rows} ({how})"


AnyComparison: TypeAlias = Comparison | ConvComparison


def comparing_model(comparisons: Iterable[AnyComparison], more: bytes = b"") -> bytes:
    """Return a model of which each output says whether a comparison holds; its name says which.

    Args:
        comparisons: that it makes.
        more: a model of others that it makes, too; empty for none.
    """
    given = ir.Value(name="any", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1]))
    made = {str(each): (each.compares, each.attributes) for each in comparisons}
    for node in ir.from_proto(onnx.ModelProto.FromString(more)).graph if more else ():
        made[node.name or ""] = node.op_type, list(node.attributes.values())
    nodes = []
    for name, (operator, attributes) in made.items():
        same = ir.Value(name=name, type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([1]))
        nodes.append(ir.Node(POET_DOMAIN, operator, [given], attributes, outputs=[same], name=name))
    outputs = [node.outputs[0] for node in nodes]
    opsets = {"": _OPSET, POET_DOMAIN: POET_VERSION}
    graph = ir.Graph([given], outputs, nodes=nodes, opset_imports=opsets, name="panels")
    model: bytes = ir.to_proto(ir.Model(graph, ir_version=_IR_VERSION)).SerializeToString()
    return model


def note_comparisons(model: ir.Model, comparisons: Collection[AnyComparison]) -> None:
    """Let a model have, besides what it has, what repeats comparisons where it trains; changes its metadata."""
    if comparisons:
        model.graph.opset_imports[POET_DOMAIN] = POET_VERSION
        known = base64.b64decode(model.metadata_props.get(PANELS_KEY, ""))
        model.metadata_props[PANELS_KEY] = base64.b64encode(comparing_model(comparisons, known)).decode()


def _attributes(numbers: Mapping[str, int], lists: Mapping[str, Sequence[int]]) -> list[ir.Attr]:
    single = [ir.AttrInt64(name, value) for name, value in numbers.items()]
    return [*single, *(ir.AttrInt64s(name, values) for name, values in lists.items())]
