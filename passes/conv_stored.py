"""Convolutions on panels of the filters that a store has, in place of loads of all of them.

Rules (stored_panels.py has more):
    C1. Where the filters have one convolution in the forward pass, one node that makes the gradient of its images, and
        one update by their own gradient, which a ConvWeightGradient makes, or of single pixels a product, these become
        a ConvStored and a ConvStoredBackward: neither filters nor gradient are ever whole.
    C2. Where only convolutions read them, these become ConvStored nodes.
    C3. So it is with images of two dimensions, without groups, and where what panels take is less than what whole
        filters do: images' columns are whole, where ONNX Runtime's own convolution may have a part of them at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import onnx_ir as ir

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.graph.operators import ONNX_DOMAINS
from poet_onnx.graph.operators.conv_stored import BACKWARD, PANEL_FILTERS
from poet_onnx.graph.operators.linear import most_rows, piece_rows
from poet_onnx.graph.operators.windows import rows_of
from poet_onnx.passes.panel_comparison import CONVOLUTION, FILTERS, IMAGE, ConvComparison, Windows
from poet_onnx.passes.panel_layers import (
    is_product,
    loads_of,
    made_behind,
    product_behind,
    remove_unread,
    takes_transposed,
)
from poet_onnx.passes.views import VIEWS, replace_node, seen, sizes_of

_TIMES = (1, 2)
"""As many filters as a panel usually has: several threads share a product, of which each then has enough."""

_STRIP = ("images", "rows")
"""Attributes of gradients, which ops/kernels/window.h explains."""

_FILTERS = 1
"""Input of a convolution."""


@dataclass(frozen=True)
class _Backward:
    """The gradients of a convolution, and the update.

    Attributes:
        node: that makes the gradient of the images, or a view of it, and reads what it is computed of first.
        d_y: what that is computed of.
        made: the gradient.
        loaded: nodes between the loads and it.
        gradient: nodes from the product that is the filters' gradient to the update, first to last.
        strip: how many images and rows of windows both gradients take at a time.
        update: in the store.
    """

    node: ir.Node
    d_y: ir.Value
    made: ir.Value
    loaded: tuple[ir.Node, ...]
    gradient: tuple[ir.Node, ...]
    strip: tuple[int, int]
    update: ir.Node


class ConvLayer:
    """All convolutions with filters, which nodes load."""

    def __init__(self, handle: ir.Value, loads: list[ir.Node], convolutions: list[ir.Node], others: list[ir.Node]):
        self._handle = handle
        self._loads = loads
        self._convolutions = convolutions
        self._others = others
        self._shape = sizes_of(loads[0].outputs[0])
        self._backward = self._found_backward()

    @classmethod
    def of(cls, graph: ir.Graph, handle: ir.Value) -> ConvLayer | None:
        """Return the convolutions with the filters of a handle; None where there are none that could work on panels."""
        loads = loads_of(handle)
        convolutions: list[ir.Node] = []
        others: list[ir.Node] = []
        for load in loads:
            value = load.outputs[0]
            if len(load.inputs) > 1 or takes_transposed(load) or len(sizes_of(value)) != 4 or value.is_graph_output():
                return None
            for node, index in value.uses():
                (convolutions if index == _FILTERS and _is_convolution(node) else others).append(node)
        return cls(handle, loads, convolutions, others) if convolutions else None

    def comparisons(self, *, backward: bool) -> Iterator[tuple[ConvComparison, ...]]:
        """Yield, for some sizes of panels, all comparisons that must hold; nothing where there is no such form."""
        if (self._backward is None) if backward else self._others:
            return
        for panel in (times * PANEL_FILTERS for times in _TIMES):
            made = [self._comparison(node, panel) for node in self._convolutions]
            if all(self._saves(comparison, backward=backward) for comparison in made):
                yield (*made, *(self._gradients(made[0], self._backward) if backward and self._backward else ()))

    def write(self, panel: int, *, backward: bool) -> None:
        """Write the nodes (C1, C2)."""
        matrix = ir.AttrInt64s("matrix", (self._shape[0], math.prod(self._shape[1:])))
        attributes: list[ir.Attr] = [matrix, ir.AttrInt64("panel_rows", panel)]
        if backward and self._backward is not None:
            self._write_backward(self._backward, attributes)
        for node in self._convolutions:
            biases = [value for value in node.inputs[2:3] if value is not None]
            own = [*_windows(node).attributes, ir.AttrInt64("biased", len(biases))]
            inputs = [node.inputs[0], self._handle, *biases]
            replace_node(node, "ConvStored", inputs, [*attributes, *own], [node.outputs[0]])
        for load in self._loads:
            assert load.graph is not None
            load.graph.remove(load, safe=True)

    def _write_backward(self, found: _Backward, attributes: list[ir.Attr]) -> None:
        (convolution,) = self._convolutions
        operator = found.update.op_type.replace("UpdateStored", BACKWARD)
        graph = found.node.graph
        assert graph is not None
        inputs = [found.d_y, convolution.inputs[0], found.update.inputs[1], self._handle]
        strip = [ir.AttrInt64(name, number) for name, number in zip(_STRIP, found.strip, strict=True)]
        own = [*_windows(convolution).attributes, *strip]
        replace_node(found.node, operator, inputs, [*attributes, *own], [found.made, found.update.outputs[0]])
        made_of = [value for value in found.gradient[0].inputs if value is not None]
        unread = [*reversed((*found.gradient, found.update)), *reversed(found.loaded)]
        graph.remove(unread, safe=True)
        remove_unread(graph, made_of, (*VIEWS, "Transpose"))

    def _comparison(self, node: ir.Node, panel: int) -> ConvComparison:
        image, windows, biases = node.inputs[0], _windows(node), node.inputs[2:3]
        assert image is not None
        ends = tuple(node.attributes.get_ints("pads", (0, 0, 0, 0)))[2:]
        is_biased = bool(biases) and biases[0] is not None
        shape, filters = sizes_of(image), self._shape[0]
        return ConvComparison(CONVOLUTION, shape, filters, panel, windows, ends, is_biased=is_biased)

    def _gradients(self, made: ConvComparison, found: _Backward) -> tuple[ConvComparison, ...]:
        shape, filters, panel, windows = made.image, made.filters, made.panel_rows, made.windows
        images, rows = found.strip
        spread = ConvComparison(IMAGE, shape, filters, panel, windows, images=images, rows=rows)
        return spread, replace(spread, product=FILTERS)

    def _saves(self, made: ConvComparison, *, backward: bool) -> bool:
        """Return whether panels take less than whole filters, or their gradient, and the columns beside them (C3)."""
        depth, windows = made.depth, made.image[0] * math.prod(made.windows.pixels)
        rows = most_rows(made.filters, made.panel_rows)
        if backward:
            taken = rows + 2 * windows + piece_rows(made.filters, depth, made.panel_rows)
            return taken < made.filters + windows
        beside = windows if made.filters > math.prod(made.windows.pixels) else 0
        return rows + windows < made.filters + beside

    def _found_backward(self) -> _Backward | None:
        """Return what C1 asks for, if it is there."""
        updates = [node for node, _ in self._handle.uses() if node not in self._loads]
        if len(updates) != 1 or len(self._convolutions) != 1 or len(self._others) != 1:
            return None
        (convolution,), (update,), (other,) = self._convolutions, updates, self._others
        x = convolution.inputs[0]
        if x is None or not update.op_type.startswith("UpdateStored") or len(update.inputs) > 3:
            return None
        spread = _spread(convolution, other)
        if spread is None or bool(update.attributes.get_int("offset", 0)) or takes_transposed(update):
            return None
        node, d_y, made, loaded = spread
        gradient = _weight_gradient(update.inputs[0], d_y, x, convolution)
        strip = _strip(node, d_y)
        if sizes_of(made) != sizes_of(x) or not gradient or _strip(gradient[0], d_y) != strip:
            return None
        return _Backward(node, d_y, made, loaded, gradient, strip, update)


def _is_convolution(node: ir.Node) -> bool:
    """Return whether a node is a convolution of images of two dimensions, without groups and with pads that it says."""
    attributes = node.attributes
    is_plain = attributes.get_int("group", 1) == 1 and attributes.get_string("auto_pad", "NOTSET") == "NOTSET"
    is_one = node.op_type == "Conv" and node.domain in ONNX_DOMAINS and is_plain
    return is_one and "output_shape" not in attributes and len(sizes_of(node.outputs[0])) == 4


def _slides_so(node: ir.Node, windows: Windows) -> bool:
    """Return whether a gradient of a convolution has its windows, and no groups."""
    ways = {name: tuple(node.attributes.get_ints(name, ())) for name in vars(windows)}
    return ways == vars(windows) and node.attributes.get_int("group", 1) == 1


def _windows(node: ir.Node) -> Windows:
    """Return the windows of a Conv."""
    filters, ones = node.inputs[_FILTERS], (1, 1)
    assert filters is not None
    strides, dilations = (tuple(node.attributes.get_ints(name, ones)) for name in ("strides", "dilations"))
    begins = tuple(node.attributes.get_ints("pads", (0, 0, 0, 0)))[:2]
    kernel = tuple(node.attributes.get_ints("kernel_shape", sizes_of(filters)[2:]))
    return Windows(kernel, strides, dilations, begins, sizes_of(node.outputs[0])[2:])


def _strip(node: ir.Node, d_y: ir.Value) -> tuple[int, int]:
    """Return how many images and rows of windows a gradient takes at a time: a product has all of one image."""
    if node.domain != POET_DOMAIN:
        return 1, rows_of(sizes_of(d_y)[2:])[0]
    images, rows = (node.attributes.get_int(name, 1) for name in _STRIP)
    return images, rows


def _spread(convolution: ir.Node, node: ir.Node) -> tuple[ir.Node, ir.Value, ir.Value, tuple[ir.Node, ...]] | None:
    """Return the node that makes the gradient of a convolution's images of its filters.

    It comes with what it is computed of, the gradient, and nodes that stand between it and what loads the filters.
    """
    windows = _windows(convolution)
    if (node.op_type, node.domain) == ("ConvDataGradient", POET_DOMAIN):
        d_y = node.inputs[0]
        return (node, d_y, node.outputs[0], ()) if d_y is not None and _slides_so(node, windows) else None
    # Of single pixels it is the product of the filters as a matrix, transposed, and dY as one.
    product = _only_reader(node.outputs[0])
    is_view = _is_point(convolution) and node.op_type == "Reshape"
    if not is_view or product is None or not is_product(product, transposes=(1, 0)):
        return None
    view, d_y = _only_reader(product.outputs[0]), product.inputs[1]
    if product.inputs[0] is not node.outputs[0] or view is None or view.op_type != "Reshape" or d_y is None:
        return None
    whole = _viewed(d_y, sizes_of(convolution.outputs[0]))
    if whole is None or sizes_of(whole)[0] != 1:
        return None
    return view, whole, view.outputs[0], (node, product)


def _viewed(value: ir.Value, shape: tuple[int, ...]) -> ir.Value | None:
    """Return what a value is a view of, if that has a shape."""
    maker = value.producer()
    while sizes_of(value) != shape:
        if maker is None or maker.op_type not in VIEWS or maker.domain not in ONNX_DOMAINS or maker.inputs[0] is None:
            return None
        value = maker.inputs[0]
        maker = value.producer()
    return value


def _is_point(convolution: ir.Node) -> bool:
    windows = _windows(convolution)
    return windows.kernel == windows.strides == (1, 1) and not any(convolution.attributes.get_ints("pads", ()))


def _weight_gradient(value: ir.Value | None, d_y: ir.Value, x: ir.Value, convolution: ir.Node) -> tuple[ir.Node, ...]:
    """Return the nodes that make the gradient of a convolution's filters, first to last; none where it is another one.

    Of single pixels it is the product of dY and X as matrices.
    """
    through = ("Identity", "Reshape")
    if _is_point(convolution) and sizes_of(d_y)[0] == 1:
        found = product_behind(value, through, transposes=(0, 1))
        rows, columns = found[0].inputs[:2] if found else (None, None)
        if rows is None or columns is None:
            return ()
        are_views = seen(rows) is seen(d_y) and seen(columns) is seen(x)
        return found if are_views and sizes_of(rows)[:1] == sizes_of(d_y)[1:2] else ()
    found = made_behind(value, through)
    if not found or (found[0].op_type, found[0].domain) != ("ConvWeightGradient", POET_DOMAIN):
        return ()
    maker = found[0]
    read = [each for each in maker.inputs if each is not None]
    are_same = [seen(each) for each in read] == [seen(d_y), seen(x)] and sizes_of(read[0]) == sizes_of(d_y)
    return found if _slides_so(maker, _windows(convolution)) and are_same else ()


def _only_reader(value: ir.Value) -> ir.Node | None:
    uses = list(value.uses())
    return uses[0][0] if len(uses) == 1 and not value.is_graph_output() else None
