"""Products of matrices."""

from __future__ import annotations

import math

from poet_onnx.graph.operators.rules import broadcast, like, nothing, product, product_and_bias, times_tensors
from poet_onnx.graph.operators.shape_context import RuleError, ShapeContext, TensorType
from poet_onnx.graph.operators.spec import BUFFER, MICROSOFT_DOMAIN, Call, OpSpec, elements, family


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


_EINSUM_BUFFERS = 5


def _einsum_buffers(call: Call) -> tuple[int, ...]:
    """Return the copies of both operands whose axes are brought into one order, then for a product, and the product.

    Known for two operands whose axes all differ and are summed only together; for others nothing is.
    """
    unknown = (0,) * _EINSUM_BUFFERS
    terms, arrow, output = str(call.attributes.get("equation", "")).replace(" ", "").partition("->")
    operands = terms.split(",")
    if not arrow or "." in terms or len(operands) != 2 or any(len(set(term)) < len(term) for term in operands):
        return unknown
    shapes = [call.input(index).shape for index in (0, 1)]
    if [len(term) for term in operands] != [len(shape) for shape in shapes]:
        return unknown
    axes = list(dict.fromkeys("".join(operands)))
    sizes = dict(zip("".join(operands), (*shapes[0], *shapes[1]), strict=True))
    groups: dict[str, list[str]] = {"both": [], "left": [], "summed": [], "right": []}
    for name in axes:
        owners = [name in term and sizes[name] > 1 for term in operands]
        if name not in output and any(owners) and not all(owners):
            return unknown
        kind = "summed" if name not in output else "both" if all(owners) else "left" if owners[0] else "right"
        groups[kind].append(name)
    left = [*groups["both"], *groups["left"], *groups["summed"], *groups["right"]]
    right = [*groups["both"], *groups["summed"], *groups["right"], *groups["left"]]
    first, second = (call.input(index).size_bytes for index in (0, 1))
    copied = [sorted(term, key=axes.index) != list(term) for term in operands]
    sizes_bytes = (first, second, first, second)
    is_made = (*copied, left != axes, right != axes)
    return (*(size if made else 0 for size, made in zip(sizes_bytes, is_made, strict=True)), call.output(0).size_bytes)


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
    OpSpec(
        "Einsum",
        estimate=times_tensors(2),
        allocation_order=(*[BUFFER] * _EINSUM_BUFFERS, 0),  # einsum_typed_compute_processor.cc
        buffers=_einsum_buffers,
    ),
    OpSpec("MatMulInteger", workspace=nothing),
    OpSpec("QLinearMatMul", workspace=_int32_product),
    *family("MatMulIntegerToFloat QGemm CDist", MICROSOFT_DOMAIN, workspace=nothing),
    OpSpec("MatMulNBits", MICROSOFT_DOMAIN, estimate=times_tensors(4)),
]
"""Products of matrices."""
