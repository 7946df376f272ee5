"""ONNX schemas of the operators of domain `poet`: with them `onnx.checker` and shape inference accept the models."""

from __future__ import annotations

from onnx import TensorProto, TypeProto, defs, helper, shape_inference

from poet_onnx.ops.runtime_schemas import register_runtime_schemas

__all__ = ["DOMAIN", "VERSION", "register_schemas"]

DOMAIN = "poet"
VERSION = 1

_Parameter = defs.OpSchema.FormalParameter
_Attribute = defs.OpSchema.Attribute

_SLOT = _Attribute("slot", defs.OpSchema.AttrType.INT, "Number of the page within the model, 0 or more.", required=True)
_PLAN = [
    _Attribute(name, defs.OpSchema.AttrType.INT, description, required=False)
    for name, description in (
        ("bytes", "Bytes of the slot; comes with the two that follow, or not at all."),
        ("plan_slots", "Number of slots of the model's plan."),
        ("plan_bytes", "Bytes of the page file: of all slots of the model's plan, each in whole blocks of 4096."),
    )
]
_DTYPE = _Attribute("dtype", defs.OpSchema.AttrType.INT, "Element type, as onnx.TensorProto.DataType.", required=True)
_SHAPE = _Attribute("shape", defs.OpSchema.AttrType.INTS, "Shape of the tensor that is paged in.", required=True)
_OFFSET = _Attribute("offset", defs.OpSchema.AttrType.INT, "First element of the buffer that changes.", required=True)

_DOCS = {
    "Arena": (
        "Arena(X) -> armed: the first node of a step; from here on the step's allocations come from a region that was "
        "reserved when the session was made. X is ignored, and nobody reads `armed`."
    ),
    "Gate": "Gate(X, trigger...) -> Y: Y is X, in the same buffer, but not before the triggers have been computed.",
    "PageOut": "PageOut(X, trigger...) -> token: writes X to the page file.",
    "PageIn": "PageIn(token, trigger...) -> Y: reads the tensor of a token from the page file.",
    "PageOutStart": "PageOutStart(X, trigger...) -> token: starts to write X to the page file.",
    "PageOutEnd": "PageOutEnd(token, X, trigger...) -> token: waits until X is written; now the token can be read.",
    "PageInStart": (
        "PageInStart(token, trigger...) -> (Yraw, ticket): starts to read a token's tensor into Yraw, which holds zeros"
        " or parts of it until PageInEnd."
    ),
    "PageInEnd": "PageInEnd(Yraw, ticket, trigger...) -> Y: waits until Yraw is read; Y is Yraw, in the same buffer.",
    "Accumulate": "Accumulate(buffer, part, overwrite, after...) -> updated: adds a part of a gradient to its buffer.",
    "AccumulateRows": (
        "AccumulateRows(buffer, indices, gradient, overwrite, after...) -> updated: adds rows of a gradient to the "
        "rows of its buffer that the indices name."
    ),
    "UpdateSgd": "UpdateSgd(gradient, rates, parameter, after...) -> updated: a step of SGD, in place.",
    "UpdateMomentum": (
        "UpdateMomentum(gradient, rates, parameter, momentum, after...) -> updated: a step of SGD with momentum, in "
        "place."
    ),
    "UpdateAdam": (
        "UpdateAdam(gradient, rates, parameter, first_moment, second_moment, after...) -> updated: a step of Adam, in "
        "place."
    ),
    "BatchNormalize": (
        "BatchNormalize(X, scale, bias, running_mean, running_variance, rates) -> (Y, mean, inverse): normalizes by "
        "the batch's statistics, and moves the running ones in place."
    ),
    "BatchNormalizeGradient": (
        "BatchNormalizeGradient(dY, X, scale, mean, inverse) -> (dX, dScale, dBias): the gradient of BatchNormalize."
    ),
    "DepthwiseWeightGradient": (
        "DepthwiseWeightGradient(dY, X) -> dW: the weight's gradient of a convolution with filters for every channel."
    ),
}
_OUTPUTS = {
    "Arena": ("armed",),
    "Gate": ("Y",),
    "PageOut": ("token",),
    "PageIn": ("Y",),
    "PageOutStart": ("token",),
    "PageOutEnd": ("token",),
    "PageInStart": ("Yraw", "ticket"),
    "PageInEnd": ("Y",),
    "Accumulate": ("updated",),
    "AccumulateRows": ("updated",),
    "UpdateSgd": ("updated",),
    "UpdateMomentum": ("updated",),
    "UpdateAdam": ("updated",),
    "BatchNormalize": ("Y", "mean", "inverse"),
    "BatchNormalizeGradient": ("dX", "dScale", "dBias"),
    "DepthwiseWeightGradient": ("dW",),
}
# Their elements have no fixed size of whole bytes.
_REFUSED_TYPES = {
    "tensor(string)",
    "tensor(int2)",
    "tensor(uint2)",
    "tensor(int4)",
    "tensor(uint4)",
    "tensor(float4e2m1)",
}
_ATTRIBUTES = {
    "Arena": [
        _Attribute("region_bytes", defs.OpSchema.AttrType.INT, "Bytes of the region, in whole 64.", required=True),
        _Attribute(
            "layout",
            defs.OpSchema.AttrType.INTS,
            "For every step, in order: workspace_offset, workspace_bytes, count, and count times offset (-1: not in "
            "the region), bytes, and the last step in which the block is alive.",
            required=True,
        ),
    ],
    "PageOut": [_SLOT, *_PLAN],
    "PageOutStart": [_SLOT, *_PLAN],
    "PageIn": [_SLOT, _DTYPE, _SHAPE],
    "PageInStart": [_SLOT, _DTYPE, _SHAPE],
    "Accumulate": [_OFFSET],
    "UpdateSgd": [_OFFSET],
    "UpdateMomentum": [_OFFSET],
    "UpdateAdam": [_OFFSET],
    "DepthwiseWeightGradient": [
        _Attribute(name, defs.OpSchema.AttrType.INTS, meaning, required=True)
        for name, meaning in (
            ("kernel", "Taps, rows first."),
            ("strides", "From one window to the next."),
            ("dilations", "From one tap to the next."),
            ("begins", "Padding before the image."),
        )
    ],
}


def register_schemas() -> None:
    """Register the schemas of these operators, and of some of ONNX Runtime's, with the `onnx` package.

    Calling it again changes nothing.
    """
    register_runtime_schemas()
    for name in _DOCS:
        if not defs.has(name, DOMAIN):
            defs.register_schema(_schema(name))


def _schema(name: str) -> defs.OpSchema:
    tensor_types = [t for t in defs.get_schema("Identity").type_constraints[0].allowed_type_strs if t[:6] == "tensor"]
    inputs = [
        _Parameter(
            "inputs",
            "T",
            "What the operator works on, then triggers, which only order it.",
            param_option=defs.OpSchema.FormalParameterOption.Variadic,
            is_homogeneous=False,
            min_arity=1,
        )
    ]
    outputs = [_Parameter(output, _type_of(output)) for output in _OUTPUTS[name]]
    constraints = [("T", tensor_types, "Any tensor.")]
    if outputs[0].type_str == "V":
        constraints.append(("V", [t for t in tensor_types if t not in _REFUSED_TYPES], "A tensor of whole bytes."))
    schema = defs.OpSchema(
        name,
        DOMAIN,
        VERSION,
        _DOCS[name],
        inputs=inputs,
        outputs=outputs,
        type_constraints=constraints,
        attributes=_ATTRIBUTES.get(name, []),
    )
    schema.set_type_and_shape_inference_function(_INFERENCE[name])
    return schema


def _type_of(output: str) -> str:
    kinds = {"token": "tensor(int64)", "ticket": "tensor(int64)", "updated": "tensor(bool)", "armed": "tensor(bool)"}
    kinds |= dict.fromkeys(("mean", "inverse", "dX", "dScale", "dBias", "dW"), "tensor(float)")
    return kinds.get(output, "V")


def _infer_first(context: shape_inference.InferenceContext) -> None:
    """The output is what input 0 is."""
    known = context.get_input_type(0)
    if known is not None:
        context.set_output_type(0, known)


def _infer_declared(context: shape_inference.InferenceContext) -> None:
    """The output is what the attributes say; a second output is a ticket."""
    dtype = context.get_attribute("dtype")
    shape = context.get_attribute("shape")
    if dtype is not None and shape is not None:
        context.set_output_type(0, _tensor_type(dtype.i, list(shape.ints)))
    if context.get_num_outputs() > 1:
        context.set_output_type(1, _tensor_type(TensorProto.INT64, [1]))


def _infer_token(context: shape_inference.InferenceContext) -> None:
    """The output is one int64."""
    context.set_output_type(0, _tensor_type(TensorProto.INT64, [1]))


def _infer_flag(context: shape_inference.InferenceContext) -> None:
    """The output is one bool."""
    context.set_output_type(0, _tensor_type(TensorProto.BOOL, [1]))


def _infer_normalized(context: shape_inference.InferenceContext) -> None:
    """The first output is what input 0 is, the others have one number for each of its channels."""
    _infer_first(context)
    known = context.get_input_type(0)
    if known is not None and len(known.tensor_type.shape.dim) > 1:
        numbers = _tensor_type(TensorProto.FLOAT, [known.tensor_type.shape.dim[1].dim_value])
        for index in range(1, context.get_num_outputs()):
            context.set_output_type(index, numbers)


def _infer_depthwise(context: shape_inference.InferenceContext) -> None:
    """The output is a kernel for each of the gradient's channels."""
    known, kernel = context.get_input_type(0), context.get_attribute("kernel")
    if known is not None and kernel is not None and len(known.tensor_type.shape.dim) > 1:
        filters = known.tensor_type.shape.dim[1].dim_value
        context.set_output_type(0, _tensor_type(TensorProto.FLOAT, [filters, 1, *kernel.ints]))


def _tensor_type(dtype: int, shape: list[int]) -> TypeProto:
    return helper.make_tensor_type_proto(dtype, shape)


_INFERENCE = {
    "Arena": _infer_flag,
    "Gate": _infer_first,
    "PageOut": _infer_token,
    "PageIn": _infer_declared,
    "PageOutStart": _infer_token,
    "PageOutEnd": _infer_token,
    "PageInStart": _infer_declared,
    "PageInEnd": _infer_first,
    "Accumulate": _infer_flag,
    "AccumulateRows": _infer_flag,
    "UpdateSgd": _infer_flag,
    "UpdateMomentum": _infer_flag,
    "UpdateAdam": _infer_flag,
    "BatchNormalize": _infer_normalized,
    "BatchNormalizeGradient": _infer_normalized,
    "DepthwiseWeightGradient": _infer_depthwise,
}
