"""Finds the type of every tensor in node order, with ONNX's own inference and rules for what it does not know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx.shape_inference
import onnx_ir as ir

from poet_onnx.errors import InputError
from poet_onnx.operators import traits
from poet_onnx.shapes.runtime_rules import MICROSOFT, ONNX, POET
from poet_onnx.shapes.types import Array, Rule, RuleError, Site, TensorType
from poet_onnx.shapes.values import LARGEST_VALUE, evaluate

ONNX_DOMAINS = ("", "ai.onnx")

PLAIN = {getattr(ir.AttributeType, kind + more) for kind in ("INT", "FLOAT", "STRING") for more in ("", "S")}
"""Attributes that are the same where their values are."""


@dataclass
class Inferred:
    """What is known of a model's tensors.

    Attributes:
        types: by tensor name.
        values: of small constants, by tensor name.
    """

    types: dict[str, TensorType] = field(default_factory=dict)
    values: dict[str, Array] = field(default_factory=dict)


def describe(node: ir.Node) -> str:
    """Return a node as errors name it."""
    return f"node '{node.name or (node.outputs[0].name if node.outputs else '')}' (operator {node.op_type})"


def fixed_dims(model: ir.Model, dims: Mapping[str, int]) -> None:
    """Check that the named dimensions exist in the graph's inputs and that their sizes make sense.

    Raises:
        InputError: a name that no input has, or a size below 1.
    """
    known = {
        dim.value
        for value in model.graph.inputs
        for dim in value.shape or ()
        if isinstance(dim, ir.SymbolicDim) and dim.value is not None
    }
    for name, size in dims.items():
        if size < 1:
            raise InputError(f"Dimension '{name}' cannot be {size}: give a size of at least 1.")
        if name not in known:
            names = ", ".join(sorted(known)) or "none: all of its inputs have fixed sizes"
            raise InputError(f"The model has no dimension named '{name}'; its named dimensions are {names}.")


def declared_type(value: ir.Value, dims: Mapping[str, int]) -> TensorType | None:
    """Return the type that the model declares for a value, or None where it is not complete."""
    if value.dtype is None or value.shape is None or not isinstance(value.type, ir.TensorType):
        return None
    shape = [dim if isinstance(dim, int) else dims.get(dim.value or "") for dim in value.shape]
    if any(size is None for size in shape):
        return None
    return TensorType(value.dtype, tuple(int(size) for size in shape if size is not None))


def infer(model: ir.Model, dims: Mapping[str, int] | None = None) -> Inferred:
    """Find the element type and the shape of every tensor of a model, in node order.

    Args:
        model: without functions and subgraphs.
        dims: sizes of named dimensions.

    Raises:
        InputError: a tensor whose size cannot be known, an unknown operator, a tensor that is not a tensor of numbers.
    """
    return _Inference(model, dims or {}).run()


def has_rule(node: ir.Node) -> bool:
    """Return whether ONNX or a rule of ours describes a node's operator, not just the model's own value_info."""
    return node.domain != "com.microsoft" or node.op_type in MICROSOFT


def _written(graph: ir.Graph) -> set[str]:
    """Return the tensors that nodes write in place, themselves or through views: no constants, whatever they hold."""
    written: set[str] = set()
    for node in reversed(graph):
        entry = traits(node.domain, node.op_type, {name: a.value for name, a in node.attributes.items()})
        views = [source for source, target in entry.aliases if _name(node.outputs, target) in written]
        written |= {_name(node.inputs, index) for index in (*entry.writes, *views)} - {""}
    return written


def _name(values: Sequence[ir.Value | None], index: int) -> str:
    value = values[index] if index < len(values) else None
    return (value.name if value is not None else None) or ""


class _Inference:
    def __init__(self, model: ir.Model, dims: Mapping[str, int]) -> None:
        fixed_dims(model, dims)
        self.graph = model.graph
        self.dims = dims
        self.found = Inferred()
        self.written = _written(model.graph)
        self.opsets = dict(model.opset_imports)
        self.known: dict[tuple[object, ...], list[TensorType | None]] = {}
        self.imports = [onnx.helper.make_opsetid(domain, version) for domain, version in self.opsets.items()]

    def run(self) -> Inferred:
        for value in self.graph.inputs:
            self.found.types[value.name or ""] = self._input(value)
        for name, value in self.graph.initializers.items():
            self._initializer(name, value)
        for node in self.graph:
            self._node(node)
        return self.found

    def _input(self, value: ir.Value) -> TensorType:
        check_kind(value, "The graph input")
        found = declared_type(value, self.dims)
        if found is not None:
            return found
        if value.shape is None:
            raise InputError(f"The graph input '{value.name}' declares no shape: export the model with static shapes.")
        for index, dim in enumerate(value.shape):
            if isinstance(dim, ir.SymbolicDim) and dim.value not in self.dims:
                if dim.value is None:
                    raise InputError(
                        f"Dimension {index} of the graph input '{value.name}' is not fixed and has no name:"
                        " export the model with static shapes."
                    )
                raise InputError(
                    f"Dimension {index} of the graph input '{value.name}' is not fixed: give the size of '{dim.value}',"
                    f" such as --dim {dim.value}=8."
                )
        raise InputError(f"The graph input '{value.name}' declares no element type: export the model again.")

    def _initializer(self, name: str, value: ir.Value) -> None:
        tensor = value.const_value
        if tensor is None:
            raise InputError(f"The initializer '{name}' has no data: export the model again.")
        if tensor.dtype == ir.DataType.STRING:
            raise InputError(f"The initializer '{name}' holds strings: only tensors of numbers can be scheduled.")
        shape = tuple(int(size) for size in tensor.shape if isinstance(size, int))
        self.found.types[name] = TensorType(tensor.dtype, shape)
        small = tensor.size <= LARGEST_VALUE
        constant = not value.is_graph_input() and name not in self.written
        if small and constant and not isinstance(tensor, ir.ExternalTensor):
            self.found.values[name] = tensor.numpy()

    def _node(self, node: ir.Node) -> None:
        site = self._site(node)
        types = self._types(node, site)
        for value, inferred in zip(node.outputs, types, strict=False):
            if not value.name:
                continue
            kind = inferred or declared_type(value, self.dims)
            if kind is None:
                raise InputError(
                    f"The size of tensor '{value.name}', made by {describe(node)}, is not known before the step runs:"
                    " export the model with static shapes."
                )
            if kind.dtype == ir.DataType.STRING:
                raise InputError(
                    f"Tensor '{value.name}', made by {describe(node)}, holds strings:"
                    " only tensors of numbers can be scheduled."
                )
            self.found.types[value.name] = kind
        for value, constant in zip(node.outputs, self._values(node, site, types), strict=False):
            if value.name and constant is not None:
                self.found.values[value.name] = constant

    def _site(self, node: ir.Node) -> Site:
        types: list[TensorType | None] = []
        for value in node.inputs:
            name = value.name if value is not None else None
            if name and name not in self.found.types:
                made_later = value is not None and value.producer() is not None
                why = "made only later: sort the model's nodes" if made_later else "made by nothing in the model"
                raise InputError(f"Tensor '{name}', read by {describe(node)}, is {why}.")
            types.append(self.found.types[name] if name else None)

        def source_types(index: int) -> Sequence[TensorType | None]:
            value = node.inputs[index]
            producer = value.producer() if value is not None else None
            inputs = producer.inputs if producer is not None else ()
            return [self.found.types.get(v.name or "") if v is not None else None for v in inputs]

        return Site(
            op_type=node.op_type,
            attributes={name: attribute.value for name, attribute in node.attributes.items()},
            types=types,
            values=[self.found.values.get(v.name or "") if v is not None else None for v in node.inputs],
            declared=[declared_type(value, self.dims) for value in node.outputs],
            source_types=source_types,
        )

    def _types(self, node: ir.Node, site: Site) -> Sequence[TensorType | None]:
        rule, schema = self._rule(node), None
        if rule is None:
            schema = self._schema(node)
        try:
            types: Sequence[TensorType | None]
            if rule is not None:
                types = rule(site)
            elif schema is not None:
                types = self._like_others(node, site, schema)
            else:
                types = site.declared
        except (RuleError, IndexError) as problem:
            name = next((value.name for value in node.outputs if value.name), "")
            raise InputError(
                f"The size of tensor '{name}', made by {describe(node)}, is not known: {problem}."
            ) from None
        return list(types) + [None] * (len(node.outputs) - len(types))

    @staticmethod
    def _rule(node: ir.Node) -> Rule | None:
        if node.domain in ONNX_DOMAINS:
            return ONNX.get(node.op_type) or MICROSOFT.get(node.op_type)
        return {"com.microsoft": MICROSOFT, "poet": POET}.get(node.domain, {}).get(node.op_type)

    def _schema(self, node: ir.Node) -> onnx.defs.OpSchema | None:
        """Return ONNX's schema of a node, or None for an ONNX Runtime operator that only the model describes."""
        if node.domain == "poet":
            raise InputError(
                f"The model was already rewritten by poet-onnx (it has {describe(node)}): give the original model."
            )
        domain = "" if node.domain in ONNX_DOMAINS else node.domain
        version = self.opsets.get(node.domain, self.opsets.get(domain))
        if version is None:
            raise InputError(f"The model imports no version of domain '{node.domain}', which {describe(node)} needs.")
        try:
            return onnx.defs.get_schema(node.op_type, version, domain)
        except onnx.defs.SchemaError:
            if node.domain == "com.microsoft" and all(declared_type(v, self.dims) for v in node.outputs if v.name):
                return None
        where = f"domain '{node.domain}'" if domain else f"ONNX opset {version}"
        raise InputError(f"The operator of {describe(node)} is unknown in {where}.")

    def _like_others(self, node: ir.Node, site: Site, schema: onnx.defs.OpSchema) -> list[TensorType | None]:
        """Return what ONNX infers for a node, asked once for all that look the same: large graphs repeat a few."""
        values = [None if array is None else (array.dtype.str, array.shape, array.tobytes()) for array in site.values]
        attributes = sorted(
            (name, attribute.type, attribute.value if attribute.type in PLAIN else id(attribute))
            for name, attribute in node.attributes.items()
        )
        named = [bool(value.name) for value in node.outputs]
        key = node.domain, node.op_type, *map(tuple, (attributes, site.types, values, named))
        if key not in self.known:
            self.known[key] = self._onnx(node, site, schema)
        return self.known[key]

    def _onnx(self, node: ir.Node, site: Site, schema: onnx.defs.OpSchema) -> list[TensorType | None]:
        names = [value.name if value is not None and value.name else "" for value in node.inputs]
        input_types = {
            name: onnx.helper.make_tensor_type_proto(int(kind.dtype), kind.shape)
            for name, kind in zip(names, site.types, strict=True)
            if kind is not None
        }
        data = {
            name: onnx.numpy_helper.from_array(np.ascontiguousarray(value).reshape(value.shape), name)
            for name, value in zip(names, site.values, strict=True)
            if value is not None
        }
        try:
            inferred = onnx.shape_inference.infer_node_outputs(
                schema, ir.to_proto(node), input_types, data, opset_imports=self.imports
            )
        except Exception as problem:  # ONNX raises several unrelated types
            lines = str(problem).strip().splitlines()
            raise RuleError(lines[0].rstrip(". ") if lines else type(problem).__name__) from problem
        return [self._from_proto(node, value, inferred.get(value.name or "")) for value in node.outputs]

    @staticmethod
    def _from_proto(node: ir.Node, value: ir.Value, proto: Any) -> TensorType | None:
        if proto is None or not value.name:
            return None
        if proto.WhichOneof("value") not in ("tensor_type", None):
            kind = proto.WhichOneof("value").removesuffix("_type").replace("_", " ")
            raise InputError(
                f"Tensor '{value.name}', made by {describe(node)}, is a {kind}:"
                " only tensors of numbers can be scheduled."
            )
        tensor = proto.tensor_type
        if not tensor.elem_type or not tensor.HasField("shape"):
            return None
        if any(not dim.HasField("dim_value") for dim in tensor.shape.dim):
            return None
        return TensorType(ir.DataType(tensor.elem_type), tuple(dim.dim_value for dim in tensor.shape.dim))

    def _values(self, node: ir.Node, site: Site, types: Sequence[TensorType | None]) -> Sequence[Array | None]:
        if node.op_type == "Constant" and node.domain in ONNX_DOMAINS:
            tensor = ir.convenience.get_const_tensor(node.outputs[0])
            small = tensor is not None and tensor.size <= LARGEST_VALUE
            return [tensor.numpy() if tensor is not None and small else None]
        return evaluate(site, types)


def check_kind(value: ir.Value, what: str) -> None:
    """Check that a value is a tensor of numbers.

    Raises:
        InputError: it is a sequence, a map, an optional, a sparse tensor or holds strings.
    """
    if value.type is not None and not isinstance(value.type, ir.TensorType):
        kind = type(value.type).__name__.removesuffix("Type").lower()
        raise InputError(f"{what} '{value.name}' is a {kind}: only tensors of numbers can be scheduled.")
    if value.dtype == ir.DataType.STRING:
        raise InputError(f"{what} '{value.name}' holds strings: only tensors of numbers can be scheduled.")
