"""ONNX schemas of the operators of domain `poet`: with them `onnx.checker` and shape inference accept the models.

What they say comes from the operators' declarations (`poet_onnx.graph.operators`), as their shapes do.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnx import TypeProto, defs, helper, shape_inference

from poet_onnx.description.names import POET_DOMAIN, POET_VERSION
from poet_onnx.graph.operators import SPECS, OpSpec
from poet_onnx.graph.operators.shape_context import RuleError, ShapeContext, TensorType
from poet_onnx.graph.operators.spec import Attribute, Schema
from poet_onnx.ops.runtime_schemas import register_runtime_schemas

_NEXT_STEP = Attribute("next_step", "INT", "Step of the plan that begins when the node has ended.", required=False)

# Their elements have no fixed size of whole bytes.
_REFUSED_TYPES = {
    "tensor(string)",
    "tensor(int2)",
    "tensor(uint2)",
    "tensor(int4)",
    "tensor(uint4)",
    "tensor(float4e2m1)",
}


def register_schemas() -> None:
    """Register the schemas of these operators, and of some of ONNX Runtime's, with the `onnx` package.

    Calling it again changes nothing.
    """
    register_runtime_schemas()
    for spec in SPECS.values():
        if spec.schema is not None and not defs.has(spec.name, POET_DOMAIN):
            defs.register_schema(_schema(spec, spec.schema))


def _schema(spec: OpSpec, said: Schema) -> defs.OpSchema:
    tensor_types = [t for t in defs.get_schema("Identity").type_constraints[0].allowed_type_strs if t[:6] == "tensor"]
    parameter, attribute = defs.OpSchema.FormalParameter, defs.OpSchema.Attribute
    inputs = parameter(
        "inputs",
        "Any",
        "What the operator works on, then triggers, which only order it.",
        param_option=defs.OpSchema.FormalParameterOption.Variadic,
        is_homogeneous=False,
        min_arity=1,
    )
    constraints = [("Any", tensor_types, "Any tensor.")]
    if any(kind == "T" for _, kind in said.outputs):
        constraints.append(("T", [t for t in tensor_types if t not in _REFUSED_TYPES], "A tensor of whole bytes."))
    schema = defs.OpSchema(
        spec.name,
        POET_DOMAIN,
        POET_VERSION,
        said.doc,
        inputs=[inputs],
        outputs=[parameter(name, kind) for name, kind in said.outputs],
        type_constraints=constraints,
        attributes=[
            attribute(each.name, getattr(defs.OpSchema.AttrType, each.kind), each.meaning, required=each.required)
            for each in (*said.attributes, _NEXT_STEP)
        ],
    )
    schema.set_type_and_shape_inference_function(lambda context: _infer(spec, said, context))
    return schema


def _infer(spec: OpSpec, said: Schema, context: shape_inference.InferenceContext) -> None:
    """Set the types of a node's outputs, as far as what is known of its inputs tells them."""
    try:
        found = spec.shape(_shape_context(spec, said, context)) if spec.shape is not None else ()
    except (RuleError, LookupError):  # an input or attribute that the rule needs is missing or not known
        return
    for index, kind in zip(range(context.get_num_outputs()), found, strict=False):
        if kind is not None:
            context.set_output_type(index, helper.make_tensor_type_proto(int(kind.dtype), kind.shape))


def _shape_context(spec: OpSpec, said: Schema, context: shape_inference.InferenceContext) -> ShapeContext:
    inputs = [_tensor_type(context.get_input_type(index)) for index in range(context.get_num_inputs())]
    attributes: dict[str, Any] = {}
    for each in said.attributes:
        proto = context.get_attribute(each.name)
        if proto is not None:
            attributes[each.name] = helper.get_attribute_value(proto)

    return ShapeContext(
        op_type=spec.name,
        attributes=attributes,
        types=inputs,
        values=[None] * len(inputs),
        declared=[None] * context.get_num_outputs(),
        source_types=lambda index: (),
        source_op=lambda index: "",
    )


def _tensor_type(proto: TypeProto | None) -> TensorType | None:
    """Return a type that is known completely, otherwise None."""
    if proto is None or not proto.tensor_type.elem_type or not proto.tensor_type.HasField("shape"):
        return None
    dims = proto.tensor_type.shape.dim
    if not all(dim.HasField("dim_value") for dim in dims):
        return None
    return TensorType(ir.DataType(proto.tensor_type.elem_type), tuple(dim.dim_value for dim in dims))
