"""Finds the type of every tensor in node order, with ONNX's own inference and rules for what it does not know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx.shape_inference
import onnx_ir as ir

from poet_onnx.errors import InputError
from poet_onnx.graph.operators import ONNX_DOMAINS, OpSpec, spec_of
from poet_onnx.graph.operators.shape_context import LARGEST_VALUE, Array, RuleError, ShapeContext, TensorType
from poet_onnx.graph.rewrites import in_torch
from poet_onnx.graph.shapes.declared import (
    ODD,
    check_kind,
    check_size,
    declared_type,
    describe,
    dim_name,
    fitting,
    fixed_dims,
)
from poet_onnx.graph.shapes.inferred import Earlier, Inferred, Look, look_of
from poet_onnx.graph.shapes.schemas import Schemas

_SIZES_OF_TORCH = "static shapes; where it has them, torch's dynamo exporter tells more sizes than the legacy one"
_SIZES_OF_OTHERS = "the sizes of what its operators make, or without such nodes"
"""What to export a model with where a size is unknown: of ONNX's operators, and of those of other domains."""

PLAIN = {getattr(ir.AttributeType, kind + more) for kind in ("INT", "FLOAT", "STRING") for more in ("", "S")}
"""Attributes that are the same where their values are."""


def infer(model: ir.Model, dims: Mapping[str, int] | None = None) -> Inferred:
    """Find the element type and the shape of every tensor of a model, in node order.

    Args:
        model: without functions and subgraphs; its graph keeps what is found in its `meta`.
        dims: sizes of named dimensions.

    Raises:
        InputError: a tensor whose size cannot be known, an unknown operator, a tensor that is not a tensor of numbers.
    """
    return _Inference(model, dims or {}).run()


def has_rule(node: ir.Node) -> bool:
    """Return whether ONNX or a rule of ours describes a node's operator, not just the model's own value_info."""
    spec = spec_of(node.domain, node.op_type)
    is_onnx = node.domain in ONNX_DOMAINS and onnx.defs.has(node.op_type)
    return is_onnx or (spec.shape is not None and not spec.planned)


def _written(graph: ir.Graph) -> set[str]:
    """Return the tensors that nodes write in place, themselves or through views: no constants, whatever they hold."""
    written: set[str] = set()
    for node in reversed(graph):
        spec = spec_of(node.domain, node.op_type, {name: a.value for name, a in node.attributes.items()})
        views = [source for source, target in spec.aliases if _name(node.outputs, target) in written]
        written |= {_name(node.inputs, index) for index in (*spec.writes, *views)} - {""}
    return written


def _name(values: Sequence[ir.Value | None], index: int) -> str:
    value = values[index] if index < len(values) else None
    return (value.name if value is not None else None) or ""


def _check(spec: OpSpec, context: ShapeContext) -> None:
    """Check that the inputs of a node fit together.

    Raises:
        ValueError: they do not.
    """
    try:
        if spec.check is not None:
            spec.check(context)
    except RuleError as problem:
        raise ValueError(str(problem)) from None


class _Inference:
    def __init__(self, model: ir.Model, dims: Mapping[str, int]) -> None:
        fixed_dims(model, dims)
        self.graph = model.graph
        self.dims = dims
        self.written = _written(model.graph)
        self.schemas = Schemas(model.opset_imports)
        self.found = Inferred(dims=dict(dims))
        self.earlier = Earlier(model.graph, self.found)
        self.imports = [onnx.helper.make_opsetid(domain, version) for domain, version in model.opset_imports.items()]

    def run(self) -> Inferred:
        for value in self.graph.inputs:
            kind = self._input(value)
            check_size(f"The graph input '{value.name}'", kind)
            self.found.types[value.name or ""] = kind
        for name, value in self.graph.initializers.items():
            self._initializer(name, value)
        for name in self.found.types:
            self.earlier.compare(name)
        for node in self.graph:
            look = look_of(node, self.schemas.version(node))
            if self.earlier.knows(node, look):
                self._check_outputs(node)
            else:
                self._node(node, look)
        self.found.keep(self.graph)
        return self.found

    def _input(self, value: ir.Value) -> TensorType:
        check_kind(value, "The graph input")
        found = declared_type(value, self.dims)
        if found is not None:
            return found
        if value.shape is None:
            raise InputError(f"The graph input '{value.name}' declares no shape: export the model with static shapes.")
        for index, dim in enumerate(value.shape):
            name = dim_name(value, index)
            if isinstance(dim, ir.SymbolicDim) and name not in self.dims:
                raise InputError(
                    f"Dimension {index} of the graph input '{value.name}' is not fixed: give the size of '{name}',"
                    f" such as --dim {name}=8."
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
        self._check_declared(value, self.found.types[name])
        small = tensor.size <= LARGEST_VALUE
        constant = not value.is_graph_input() and name not in self.written
        if small and constant and not isinstance(tensor, ir.ExternalTensor):
            try:
                self.found.values[name] = tensor.numpy()
            except ValueError as problem:
                raise InputError(f"The initializer '{name}' has other data than its shape says: {problem}.") from None

    def _node(self, node: ir.Node, look: Look) -> None:
        self.found.asked += 1
        self.is_local = True  # until a rule looks beyond the node's inputs
        spec = spec_of(node.domain, node.op_type)
        context = self._shape_context(node)
        types = self._types(node, spec, context)
        for value, inferred in zip(node.outputs, types, strict=False):
            if not value.name:
                continue
            kind = inferred or declared_type(value, self.dims)
            if kind is None:
                raise InputError(
                    f"The size of tensor '{value.name}', made by {describe(node)}, is not known before the step runs:"
                    f" export the model with {_SIZES_OF_TORCH if node.domain in ONNX_DOMAINS else _SIZES_OF_OTHERS}."
                    f"{in_torch([node.op_type])}"
                )
            check_size(f"Tensor '{value.name}', made by {describe(node)},", kind)
            self._check_declared(value, kind, node)
            if kind.dtype == ir.DataType.STRING:
                raise InputError(
                    f"Tensor '{value.name}', made by {describe(node)}, holds strings:"
                    " only tensors of numbers can be scheduled."
                )
            self.found.types[value.name] = kind
        for value, constant in zip(node.outputs, self._constants(node, spec, context, types), strict=False):
            if value.name and constant is not None:
                self.found.values[value.name] = constant
        names = [value.name for value in node.outputs if value.name]
        for name in names:
            self.earlier.compare(name)
        if names and self.is_local:
            self.found.looks[names[0]] = look

    def _check_outputs(self, node: ir.Node) -> None:
        """Check that what the model declares of a node's outputs is what they are."""
        for value in node.outputs:
            if value.name:
                self._check_declared(value, self.found.types[value.name], node)

    def _check_declared(self, value: ir.Value, found: TensorType, maker: ir.Node | None = None) -> None:
        """Check that what the model declares of a tensor is what it is: kernels believe the declaration.

        Raises:
            InputError: it declares another shape or element type.
        """
        declared = None if value.shape is None else [self._size(dim) for dim in value.shape]
        fits = declared is None or (
            len(declared) == len(found.shape)
            and all(size in (None, known) for size, known in zip(declared, found.shape, strict=True))
        )
        if fits and value.dtype in (None, found.dtype):
            return
        where = "" if maker is None else f", made by {describe(maker)},"
        said = [size if size is not None else "?" for size in declared or ()] if not fits else value.dtype
        raise InputError(
            f"Tensor '{value.name}'{where} is declared as {said} and is {found.dtype.name} {list(found.shape)}:"
            " export the model again."
        )

    def _size(self, dim: int | ir.SymbolicDim) -> int | None:
        return dim if isinstance(dim, int) else self.dims.get(dim.value or "")

    def _shape_context(self, node: ir.Node) -> ShapeContext:
        types: list[TensorType | None] = []
        for value in node.inputs:
            name = value.name if value is not None else None
            if name and name not in self.found.types:
                made_later = value is not None and value.producer() is not None
                why = "made only later: sort the model's nodes" if made_later else "made by nothing in the model"
                raise InputError(f"Tensor '{name}', read by {describe(node)}, is {why}.")
            types.append(self.found.types[name] if name else None)

        def source_types(index: int) -> Sequence[TensorType | None]:
            self.is_local = False
            value = node.inputs[index]
            producer = value.producer() if value is not None else None
            inputs = producer.inputs if producer is not None else ()
            return [self.found.types.get(v.name or "") if v is not None else None for v in inputs]

        def source_op(index: int) -> str:
            self.is_local = False
            value = node.inputs[index]
            producer = value.producer() if value is not None else None
            return producer.op_type if producer is not None else ""

        return ShapeContext(
            op_type=node.op_type,
            attributes={name: attribute.value for name, attribute in node.attributes.items()},
            types=types,
            values=[self.found.values.get(v.name or "") if v is not None else None for v in node.inputs],
            declared=[declared_type(value, self.dims) for value in node.outputs],
            source_types=source_types,
            source_op=source_op,
        )

    def _types(self, node: ir.Node, spec: OpSpec, context: ShapeContext) -> Sequence[TensorType | None]:
        rule = None if spec.planned else spec.shape
        schema = self.schemas.of(node, self.dims) if rule is None else None
        try:
            types: Sequence[TensorType | None]
            with fitting(node):
                _check(spec, context)
                if rule is not None:
                    types = rule(context)
                elif schema is not None:
                    types = self._like_others(node, context, schema)
                    types = types if spec.corrected is None else spec.corrected(context, types)
                else:
                    types = context.declared
        except RuleError as problem:
            name = next((value.name for value in node.outputs if value.name), "")
            raise InputError(
                f"The size of tensor '{name}', made by {describe(node)}, is not known: {problem}."
            ) from None
        if len(types) < len(node.outputs) and any(value.name for value in node.outputs[len(types) :]):
            raise InputError(f"The {describe(node)} has more than the {len(types)} outputs of its operator.")
        return list(types) + [None] * (len(node.outputs) - len(types))

    def _like_others(self, node: ir.Node, context: ShapeContext, schema: onnx.defs.OpSchema) -> list[TensorType | None]:
        """Return what ONNX infers for a node, asked once for all that look the same: large graphs repeat a few."""
        if any(attribute.type not in PLAIN for attribute in node.attributes.values()):
            return self._onnx(node, context, schema)
        values = [
            None if array is None else (array.dtype.str, array.shape, array.tobytes()) for array in context.values
        ]
        attributes = sorted((name, attribute.type, attribute.value) for name, attribute in node.attributes.items())
        named = [bool(value.name) for value in node.outputs]
        kind = node.domain, node.op_type, schema.since_version
        key = *kind, *map(tuple, (attributes, context.types, values, named))
        answers = self.found.answers
        if key not in answers:
            answers[key] = self._onnx(node, context, schema)
        return answers[key]

    def _onnx(self, node: ir.Node, context: ShapeContext, schema: onnx.defs.OpSchema) -> list[TensorType | None]:
        names = [value.name if value is not None and value.name else "" for value in node.inputs]
        input_types = {
            name: onnx.helper.make_tensor_type_proto(int(kind.dtype), kind.shape)
            for name, kind in zip(names, context.types, strict=True)
            if kind is not None
        }
        data = {
            name: onnx.numpy_helper.from_array(np.ascontiguousarray(value).reshape(value.shape), name)
            for name, value in zip(names, context.values, strict=True)
            if value is not None
        }
        try:
            inferred = onnx.shape_inference.infer_node_outputs(
                schema, ir.serde.serialize_node(node), input_types, data, opset_imports=self.imports
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

    def _constants(
        self, node: ir.Node, spec: OpSpec, context: ShapeContext, types: Sequence[TensorType | None]
    ) -> Sequence[Array | None]:
        try:
            with np.errstate(all="ignore"):
                return self._values(node, spec, context, types)
        except (RuleError, *ODD) as problem:
            raise InputError(f"What {describe(node)} computes is not defined: {problem}.") from None

    @staticmethod
    def _values(
        node: ir.Node, spec: OpSpec, context: ShapeContext, types: Sequence[TensorType | None]
    ) -> Sequence[Array | None]:
        if node.op_type == "Constant" and node.domain in ONNX_DOMAINS:
            tensor = ir.convenience.get_const_tensor(node.outputs[0])
            small = tensor is not None and tensor.size <= LARGEST_VALUE
            return [tensor.numpy() if tensor is not None and small else None]
        return _evaluated(spec, context, types)


def _evaluated(spec: OpSpec, context: ShapeContext, outputs: Sequence[TensorType | None]) -> Sequence[Array | None]:
    """Return the values of a node's outputs where they are small constants and exactly known, otherwise None."""
    nothing: list[Array | None] = [None] * len(outputs)
    if spec.value_of_shapes is not None:
        return spec.value_of_shapes(context)
    inputs = [
        value
        for value, kind in zip(context.values, context.types, strict=True)
        if value is not None and kind is not None
    ]
    others = context.types[len(inputs) :]  # optional inputs at the end may be left out by empty names, too
    if spec.value is None or not inputs or any(kind is not None for kind in others):
        return nothing
    if any(output is not None and output.elements > LARGEST_VALUE for output in outputs):
        return nothing
    computed = [np.asarray(value) for value in spec.value(context, inputs)]
    for value, output in zip(computed, outputs, strict=False):
        if output is not None and (value.shape != output.shape or value.dtype != output.dtype.numpy()):
            return nothing
    return computed
