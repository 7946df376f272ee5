"""ONNX schemas of operators that ONNX Runtime keeps in ONNX's own domain although ONNX does not define them there.

The gradient builder of onnxruntime-training writes them into training graphs (orttraining/orttraining/core/graph and
onnxruntime/core/graph/contrib_ops in github.com/microsoft/onnxruntime, v1.19.2), and `onnx.checker` refuses a node of
the domain '' that it does not know. Only their signatures are described: inputs and outputs of any type.
"""

from __future__ import annotations

from onnx import defs

__all__ = ["register_runtime_schemas"]

_INT, _INTS = defs.OpSchema.AttrType.INT, defs.OpSchema.AttrType.INTS
_FLOAT, _STRING = defs.OpSchema.AttrType.FLOAT, defs.OpSchema.AttrType.STRING
_POOL = {
    "auto_pad": _STRING,
    "ceil_mode": _INT,
    "storage_order": _INT,
    "count_include_pad": _INT,
    "kernel_shape": _INTS,
    "pads": _INTS,
    "strides": _INTS,
    "dilations": _INTS,
}
_SCHEMAS = {
    # name: (since version, most outputs, attributes)
    "MaxPoolGrad": (9, 1, _POOL),
    "AveragePoolGrad": (9, 1, _POOL),
    # ONNX has it from version 17 on, ONNX Runtime always had.
    "LayerNormalization": (1, 3, {"axis": _INT, "epsilon": _FLOAT, "stash_type": _INT}),
}


def register_runtime_schemas() -> None:
    """Register the schemas with the `onnx` package; calling it again changes nothing."""
    known = {(schema.name, schema.since_version) for schema in defs.get_all_schemas_with_history() if not schema.domain}
    for name, (version, outputs, attributes) in _SCHEMAS.items():
        if (name, version) not in known:
            defs.register_schema(_schema(name, version, outputs, attributes))


def _schema(name: str, version: int, outputs: int, attributes: dict[str, defs.OpSchema.AttrType]) -> defs.OpSchema:
    variadic = defs.OpSchema.FormalParameterOption.Variadic
    optional = defs.OpSchema.FormalParameterOption.Optional
    any_tensor = defs.get_schema("Identity").type_constraints[0].allowed_type_strs
    return defs.OpSchema(
        name,
        "",
        version,
        "An operator of ONNX Runtime's.",
        inputs=[
            defs.OpSchema.FormalParameter(
                "inputs", "T", "Tensors.", param_option=variadic, is_homogeneous=False, min_arity=1
            )
        ],
        outputs=[
            defs.OpSchema.FormalParameter(f"output_{index}", f"T{index}", "A tensor.", param_option=optional)
            for index in range(outputs)
        ],
        type_constraints=[
            ("T", any_tensor, "Any."),
            *((f"T{index}", any_tensor, "Any.") for index in range(outputs)),
        ],
        attributes=[
            defs.OpSchema.Attribute(attribute, kind, "See ONNX Runtime.", required=False)
            for attribute, kind in attributes.items()
        ],
    )
