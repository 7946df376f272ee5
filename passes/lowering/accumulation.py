"""Accumulation of gradients: in place by operators of poet-onnx, or as a new tensor by plain ones."""

from __future__ import annotations

import onnx_ir as ir

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.passes.lowering.builder import DOUBLE, FLOAT, MICROSOFT, LoweringBuilder, Rules, UnsupportedError


def rows_to_accumulate(gather: ir.Node) -> ir.Node | None:
    """Return the accumulator that alone reads what a GatherGrad along axis 0 makes, if that is how it is used.

    Then AccumulateRows adds the rows to the buffer, and the gradient, as large as the whole table, is never made.
    """
    if gather.op_type != "GatherGrad" or gather.attributes.get_int("axis", 0) != 0:
        return None
    value = gather.outputs[0]
    while len(value.uses()) == 1 and not value.is_graph_output():
        reader, index = next(iter(value.uses()))
        if reader.op_type == "InPlaceAccumulatorV2" and reader.domain == MICROSOFT and index == 1:
            kind = value.dtype if value.dtype is not None else gather.inputs[2].dtype if gather.inputs[2] else None
            return reader if len(reader.outputs) == 1 and kind in (None, FLOAT, DOUBLE) else None
        if reader.op_type != "Identity":
            return None
        value = reader.outputs[0]
    return None


def _accumulate(builder: LoweringBuilder) -> None:
    """InPlaceAccumulatorV2(buffer, gradient, overwrite) -> (updated, buffer?)."""
    buffer, gradient, overwrite = (builder.input(index) for index in range(3))
    if not builder.kernels:
        total = builder.op("Where", overwrite, gradient, builder.op("Add", buffer, gradient))
        builder.give(0, total)
        # What was a flag is the gradient now.
        total.type, total.shape = ir.TensorType(builder.type(0).dtype), ir.Shape(builder.shape(0))
        return
    if builder.type(0).dtype not in (FLOAT, DOUBLE) or builder.type(0).dtype != builder.type(1).dtype:
        raise UnsupportedError(f"it accumulates {builder.type(1).dtype.name} in {builder.type(0).dtype.name}")
    if builder.wants(1):
        raise UnsupportedError("its second output, the buffer, is read")
    maker = gradient.producer()
    while maker is not None and maker.op_type == "Identity" and maker.inputs[0] is not None:
        maker = maker.inputs[0].producer()
    if maker is not None and rows_to_accumulate(maker) is builder.node:
        builder.give(0, builder.op("AccumulateRows", buffer, *maker.inputs[1:3], overwrite, domain=POET_DOMAIN))
        return
    builder.give(0, builder.op("Accumulate", buffer, gradient, overwrite, domain=POET_DOMAIN, offset=0))


RULES: Rules = {"InPlaceAccumulatorV2": _accumulate}
