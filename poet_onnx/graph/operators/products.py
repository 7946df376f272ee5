"""Products of matrices."""

from __future__ import annotations

import math

from poet_onnx.graph.operators.rules import broadcast, like, nothing, product, product_and_bias, times_tensors
from poet_onnx.graph.operators.shape_context import RuleError, ShapeContext, TensorType
from poet_onnx.graph.operators.spec import MICROSOFT_DOMAIN, Call, OpSpec, elements, family


def _turned(shape: tuple[int, ...], swap_batch: bool, swap: bool) -> tuple[int, ...]:
    """Return an operand's shape after its transpositions; transBatch moves the first dimension before the last."""
    if len(shape) < 2:
        return shape
    if swap_batch:
        shape = (*shape[1:-1], shape[0], shape[-1])
    return (*shape[:-2], shape[-1], shape[-2]) if swap else shape


def _fused_matmul(context: ShapeContext) -> list[TensorType]:
    shapes = []
    for index, side in enumerate("AB"):
        turned = _turned(
            context.type(index).shape,
            bool(context.integer(f"transBatch{side}", 0)),
            bool(context.integer(f"trans{side}", 0)),
        )
        shapes.append(turned)
    left = (1, *shapes[0]) if len(shapes[0]) == 1 else shapes[0]
    right = (*shapes[1], 1) if len(shapes[1]) == 1 else shapes[1]
    if not left or not right or left[-1] != right[-2]:
        raise RuleError(f"its inputs of shapes {shapes[0]} and {shapes[1]} do not multiply")
    rows = () if len(shapes[0]) == 1 else (left[-2],)
    columns = () if len(shapes[1]) == 1 else (right[-1],)
    return [TensorType(context.type(0).dtype, broadcast(left[:-2], right[:-2]) + rows + columns)]


def _flops(call: Call) -> int:
    shape = call.input(0).shape
    if not shape:
        return 2 * elements(call.output(0))
    transposed = call.integer("transA", 0) and len(shape) > 1
    # FusedMatMul with transBatchA stores A as [M, batch..., K], or [K, batch..., M] when transposed as well.
    inner = (shape[0] if call.integer("transBatchA", 0) else shape[-2]) if transposed else shape[-1]
    return 2 * elements(call.output(0)) * inner


def _int32_product(call: Call) -> int:
    return 4 * math.prod(call.output(0).shape)


def _descriptions(call: Call) -> int:
    """Return the bytes of what says of each matrix of a batch where it and its result are."""
    return 112 * math.prod(call.output(0).shape[:-2])  # 88 are counted, up to 110 become resident


SPECS = [
    OpSpec("MatMul", work=product(_flops), workspace=nothing, heap=_descriptions),
    OpSpec("Gemm", work=product_and_bias(_flops), workspace=nothing),
    OpSpec("FusedGemm", MICROSOFT_DOMAIN, work=product(_flops), workspace=nothing),
    *family(
        "FusedMatMul TransposeMatMul",
        MICROSOFT_DOMAIN,
        shape=_fused_matmul,
        work=product(_flops),
        workspace=nothing,
        heap=_descriptions,
    ),
    OpSpec("Inverse", MICROSOFT_DOMAIN, shape=like(0), workspace=nothing),
    OpSpec("Det", workspace=nothing),
    OpSpec("MatMulInteger", workspace=nothing),
    OpSpec("QLinearMatMul", workspace=_int32_product),
    *family("MatMulIntegerToFloat QGemm CDist", MICROSOFT_DOMAIN, workspace=nothing),
    OpSpec("MatMulNBits", MICROSOFT_DOMAIN, estimate=times_tensors(4)),
]
"""Products of matrices."""
