"""Whether a model hangs together: what ONNX demands, and what whoever walks through the model relies on."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Set
from graphlib import CycleError, TopologicalSorter

import onnx
import onnx_ir as ir

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.errors import InputError, listed
from poet_onnx.files.external_data import replace_tensors
from poet_onnx.graph.operators import ONNX_DOMAINS
from poet_onnx.graph.shapes.declared import describe

MOST_NODES = 1_000_000
"""Nodes of a model whose functions are put in the place of their calls: functions of functions can make any number."""

_MOST_LEVELS = 32
_MOST_SHOWN = 6
_MOST_DIMS = 32  # of an array in every version of numpy
_MOST_ELEMENTS = 2**60
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def check_wellformed(model: ir.Model) -> None:
    """Check that a model hangs together; what its operators need is checked where they are looked at.

    Raises:
        InputError: versions that nobody knows, names with control characters, tensors that are read but never made or
            made twice, tensors whose elements are not there, functions that call themselves.
    """
    _check_versions(model)
    for text in _texts(model):
        if isinstance(text, bytes):  # what protobuf gives for a string that is none
            raise InputError(f"The model has a text that is not in UTF-8, {text[:40]!r}: export the model again.")
    for name in _names(model):
        if _CONTROL.search(name):
            raise InputError(f"The name {name!r} in the model has a control character: rename it and export again.")
    graphs = (model.graph, *(function.graph for function in model.functions.values()))
    for graph in graphs:
        _check_flow(graph, frozenset())
    _check_calls(model)
    for graph in graphs:
        for node in graph.all_nodes():
            _check_attributes(node, graph.opset_imports)
    replace_tensors(model, _checked)


def check_proto(proto: onnx.ModelProto) -> None:
    """Check what onnx_ir does not tell: what is said twice, of which it believes the last, and depth.

    Raises:
        InputError: sparse initializers, two initializers of one name in a graph, two operator sets of one domain, too
            many graphs in graphs, maps.
    """
    versions: dict[str, int] = {}
    for operators in proto.opset_import:
        domain = "" if operators.domain in ONNX_DOMAINS else operators.domain
        if versions.setdefault(domain, operators.version) != operators.version:
            raise InputError(
                f"The model uses operator sets {versions[domain]} and {operators.version} of domain "
                f"'{domain or 'ai.onnx'}': export it for one."
            )
    _check_initializers(proto.graph)
    for function in proto.functions:
        _check_initializers_in(function.node)


def _check_initializers(graph: onnx.GraphProto, level: int = 0) -> None:
    if level > _MOST_LEVELS:
        raise InputError(f"Graphs of the model are inside one another at more than {_MOST_LEVELS} levels.")
    names: set[str] = set()
    for tensor in graph.initializer:
        if tensor.name in names:
            raise InputError(f"The model has two initializers {tensor.name!r}: export the model again.")
        names.add(tensor.name)
    for value in (*graph.input, *graph.output, *graph.value_info):
        if _is_map(value.type):
            raise InputError(
                f"{value.name!r} of the model is a map, as ZipMap makes one, but only tensors of numbers can be trained"
                " or planned: export the model without it, in skl2onnx with options={'zipmap': False}."
            )
    if graph.sparse_initializer:
        shown = listed((repr(tensor.values.name) for tensor in graph.sparse_initializer), _MOST_SHOWN)
        raise InputError(
            f"The model has sparse initializers ({shown}), which cannot be trained or planned:"
            " write them as dense ones, or export the model again without pruning them."
        )
    _check_initializers_in(graph.node, level)


def _is_map(kind: onnx.TypeProto) -> bool:
    """Return whether a type is a map, or holds some."""
    if kind.HasField("sequence_type"):
        return _is_map(kind.sequence_type.elem_type)
    return bool(kind.HasField("map_type"))


def _check_initializers_in(nodes: Iterable[onnx.NodeProto], level: int = 0) -> None:
    for node in nodes:
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs:
                _check_initializers(graph, level + 1)


def _check_versions(model: ir.Model) -> None:
    if not model.opset_imports or not model.ir_version:
        raise InputError("The model names no operator set, or no version of ONNX: export it again.")
    if not 0 < model.ir_version <= onnx.IR_VERSION:
        raise InputError(
            f"The model is in IR version {model.ir_version}, but onnx {onnx.__version__} reads up to "
            f"{onnx.IR_VERSION}: install a newer onnx, or export the model for an older one."
        )
    newest = onnx.defs.onnx_opset_version()
    for imports in (model.opset_imports, *(function.opset_imports for function in model.functions.values())):
        for domain, number in imports.items():
            if number < 1 or (domain in ONNX_DOMAINS and number > newest):
                raise InputError(
                    f"The model uses operator set {number} of domain '{domain or 'ai.onnx'}', but onnx "
                    f"{onnx.__version__} knows {f'1 to {newest}' if domain in ONNX_DOMAINS else 'none below 1'}: "
                    "export the model for an operator set that it knows."
                )


def _texts(model: ir.Model) -> Iterator[object]:
    """Yield every name in a model, and what is written for people."""
    yield from _names(model)
    yield from (model.producer_name, model.producer_version, model.domain)
    described: list[ir.Model | ir.Function | ir.Graph | ir.Node | ir.Value] = [model, *model.functions.values()]
    for graph in _graphs(model):
        described += (graph, *graph.inputs, *graph.initializers.values())
        for node in graph:
            described += (node, *node.outputs)
    for each in described:
        yield each.doc_string
        for key, value in each.metadata_props.items():
            yield from (key, value)


def _names(model: ir.Model) -> Iterator[str]:
    """Yield every name in a model."""
    yield from model.opset_imports
    for function in model.functions.values():
        yield from (function.domain, function.name, function.overload, *function.attributes)
        yield from function.opset_imports
    for graph in _graphs(model):
        yield graph.name or ""
        yield from graph.initializers
        for value in (*graph.inputs, *graph.outputs):
            yield from _names_of(value)
        for node in graph:
            yield from (node.name or "", node.domain, node.op_type, node.overload, *node.attributes)
            for read_or_made in (*node.inputs, *node.outputs):
                if read_or_made is not None:
                    yield from _names_of(read_or_made)


def _names_of(value: ir.Value) -> Iterator[str]:
    yield value.name or ""
    for dim in value.shape or ():
        if isinstance(dim, ir.SymbolicDim):
            yield str(dim.value or "")


def _graphs(model: ir.Model) -> Iterator[ir.Graph]:
    yield from model.graphs()
    for function in model.functions.values():
        yield function.graph
        yield from function.graph.subgraphs()


def _check_flow(graph: ir.Graph, outside: Set[ir.Value]) -> None:
    """Check that everything is made once, before it is read.

    Args:
        graph: the model's, a subgraph, or of a function.
        outside: what there is outside of a subgraph.
    """
    _check_names(graph)
    there = {*outside, *graph.inputs, *graph.initializers.values()}
    for node in graph:
        _check_there(node.inputs, there, f"{describe(node)} reads it")
        if not any(value.name for value in node.outputs) and node.domain != POET_DOMAIN:  # a Mark has none
            raise InputError(f"The {describe(node)} has no outputs: export the model again.")
        for name, attribute in node.attributes.items():
            if not name or attribute.type is ir.AttributeType.UNDEFINED:
                raise InputError(f"Attribute '{name}' of {describe(node)} has no type or no name: export again.")
        for subgraph in _subgraphs(node):
            _check_flow(subgraph, there)
        there.update(node.outputs)
    _check_there(graph.outputs, there, "the graph gives it out")


def _check_names(graph: ir.Graph) -> None:
    """Check that inputs, initializers and what nodes make have names of their own, and initializers have data."""
    names: set[str] = set()
    constants = [value for value in graph.initializers.values() if not value.is_graph_input()]
    for value in (*graph.inputs, *constants, *(value for node in graph for value in node.outputs if value.name)):
        if not value.name or value.name in names:
            raise InputError(
                f"The model has two values named '{value.name or ''}', or one without a name: export the model again."
            )
        names.add(value.name)
    for value in constants:
        if value.const_value is None:
            raise InputError(f"Initializer '{value.name}' has no data: export the model again.")
    returned = [value.name for value in graph.outputs]
    for name in returned:
        if not name or returned.count(name) > 1:
            raise InputError(
                f"The model has two outputs '{name or ''}', or one without a name: export the model again."
            )


def _check_there(values: Iterable[ir.Value | None], there: Set[ir.Value], reader: str) -> None:
    for value in values:
        if value is not None and value not in there:
            raise InputError(
                f"Tensor '{value.name}' is not there when {reader}: it is no input, no initializer, and no node before "
                "makes it; export the model again, from torch's dynamo exporter with optimize=False."
            )


def _check_attributes(node: ir.Node, opsets: Mapping[str, int]) -> None:
    """Check that the attributes of an operator of ONNX are of its types: onnx's own code may crash over others."""
    version = opsets.get("", opsets.get("ai.onnx", 0))
    if node.domain not in ONNX_DOMAINS or not onnx.defs.has(node.op_type, version):
        return
    known = onnx.defs.get_schema(node.op_type, version, "").attributes if node.attributes else {}
    for name, attribute in node.attributes.items():
        kind = ir.AttributeType[str(known[name].type).rpartition(".")[2]] if name in known else attribute.type
        if attribute.type is not kind:
            raise InputError(
                f"Attribute '{name}' of {describe(node)} is of type {attribute.type.name}, not {kind.name}:"
                " export the model again."
            )


def _subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    for attribute in node.attributes.values():
        if attribute.type is ir.AttributeType.GRAPH and not attribute.is_ref():
            yield attribute.as_graph()
        elif attribute.type is ir.AttributeType.GRAPHS and not attribute.is_ref():
            yield from attribute.as_graphs()


def _check_calls(model: ir.Model) -> None:
    """Check that no function calls itself, and that all calls together make a number of nodes that can be handled."""
    calls = {
        identifier: [each for node in function.all_nodes() if (each := node.op_identifier()) in model.functions]
        for identifier, function in model.functions.items()
    }
    sizes: dict[ir.OperatorIdentifier, int] = {}
    try:
        for identifier in TopologicalSorter(calls).static_order():
            sizes[identifier] = _size(model.functions[identifier], sizes)
    except CycleError as problem:
        names = " -> ".join(name for _, name, _ in problem.args[1])
        raise InputError(f"Functions of the model call themselves ({names}): export the model without them.") from None
    nodes = _size(model.graph, sizes)
    if nodes > MOST_NODES:
        raise InputError(
            f"With functions in the place of their calls the model has {nodes:.3g} nodes, more than the {MOST_NODES} "
            "that can be handled: export it without functions."
        )


def _size(graph: ir.Graph | ir.Function, sizes: dict[ir.OperatorIdentifier, int]) -> int:
    """Return the number of nodes with functions in the place of their calls, or of many if it is beyond all bounds."""
    return min(sum(sizes.get(node.op_identifier(), 1) for node in graph.all_nodes()), 2**63)


def _checked(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """Check that a tensor inside the model has the elements that its type and shape need."""
    if not isinstance(tensor, (ir.serde.TensorProtoTensor, ir.StringTensor)):
        return tensor
    dims = [*tensor.shape.numpy()]
    if min(dims, default=0) < 0 or len(dims) > _MOST_DIMS or math.prod(max(1, size) for size in dims) > _MOST_ELEMENTS:
        raise InputError(f"Tensor '{tensor.name}' has a shape that no tensor can have, {_shortened(dims)}.")
    elements = math.prod(dims)
    complete = (
        len(tensor.string_data()) == elements
        if isinstance(tensor, ir.StringTensor)
        else _complete(tensor.raw, elements)
    )
    if not complete:
        raise InputError(
            f"Tensor '{tensor.name}' of shape {dims} does not have the {elements} elements that it needs, or they are "
            "of another type: export the model again."
        )
    return tensor


def _shortened(dims: list[int]) -> str:
    return str(dims) if len(dims) <= _MOST_DIMS else f"of {len(dims)} dimensions"


def _complete(proto: onnx.TensorProto, elements: int) -> bool:
    """Return whether a tensor's data are as many as its type and shape need."""
    known = proto.data_type in onnx.TensorProto.DataType.values() and proto.data_type != onnx.TensorProto.UNDEFINED
    if not known:
        raise InputError(f"Tensor '{proto.name}' is of the unknown element type {proto.data_type}.")
    dtype = ir.DataType(proto.data_type)
    packed = math.ceil(elements * dtype.itemsize)
    if proto.HasField("raw_data"):
        return len(proto.raw_data) == packed
    stored = len(getattr(proto, onnx.helper.tensor_dtype_to_field(proto.data_type)))
    if dtype in (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128):
        return stored == 2 * elements
    return stored == elements or (dtype.itemsize < 1 and stored == packed)
