"""Attention of models for generation as nodes that torch's exporters would write, of whole sequences without a cache.

Rules:
    N1. Each token sees itself and those before it, in a local window the last ones alone; nothing is cached.
    N2. What follows from the mask that says which tokens are padding has no effect: tokens behind others, as padding
        is on the right, are not seen anyway.
    N3. Heads of keys and values are repeated for neighbouring heads of queries.
    N4. Tokens have the positions 0, 1, and so on.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from poet_onnx.passes.generation.expansion import Expansion

_TURNED = (0, 2, 1, 3)


def group_query_attention(writer: Expansion) -> None:
    """Write a GroupQueryAttention, whose queries, keys and values are in three inputs."""
    writer.refuse(10, "a bias of its scores is given")
    writer.refuse(11, "its Softmax has sinks")
    writer.refuse(12, "its cache is quantized")
    writer.refuse(13, "its cache is quantized")
    if writer.attributes.get("smooth_softmax", 0) == 1:
        raise writer.refusal("its Softmax has sinks")
    if writer.wants(3):
        raise writer.refusal("its scores are an output")
    heads, fewer = _heads(writer, "num_heads"), _heads(writer, "kv_num_heads")
    if heads % fewer:
        raise writer.refusal(f"its {fewer} heads of keys are not repeated for {heads} of queries")
    width = _width(writer, 0, heads)
    q, k, v = (_parted(writer, index, count) for index, count in ((0, heads), (1, fewer), (2, fewer)))
    if writer.has(14) and writer.has(15):
        epsilon = float(writer.attributes.get("qk_norm_epsilon", 1e-6))
        q, k = (writer.normalized(x, writer.input(index), epsilon) for x, index in ((q, 14), (k, 15)))
    if writer.attributes.get("do_rotary", 0):
        _check_positions(writer, 9)
        interleaved = bool(writer.attributes.get("rotary_interleaved", 0))
        q, k = (_rotated(writer, x, (count, width), (7, 8), interleaved) for x, count in ((q, heads), (k, fewer)))
    q, k, v = (writer.op("Transpose", each, perm=_TURNED) for each in (q, k, v))
    if heads != fewer:
        k, v = (_repeated(writer, each, heads, fewer) for each in (k, v))
    mask = writer.shared.causal_mask(max(0, writer.attributes.get("local_window_size", -1)))
    _attend(writer, (q, k, v), width, [mask])


def multi_head_attention(writer: Expansion) -> None:
    """Write a MultiHeadAttention of queries, keys and values in three inputs."""
    writer.refuse(4, "a mask of padding is given")
    if not (writer.has(1) and writer.has(2)):
        raise writer.refusal("its queries, keys and values are in one input")
    if writer.has(9):
        raise writer.refusal("another cache is behind its own")
    heads = _heads(writer, "num_heads")
    width = _width(writer, 0, heads)
    biases: list[ir.Value | None] = [None] * 3
    if writer.has(3):
        sizes = [writer.columns(index) for index in range(3)]
        ends = np.cumsum(sizes)
        biases = [
            writer.slice(writer.input(3), int(end) - size, int(end)) for end, size in zip(ends, sizes, strict=True)
        ]
    q, k, v = (
        writer.op("Transpose", _parted(writer, index, heads, bias), perm=_TURNED) for index, bias in enumerate(biases)
    )
    masks = [writer.input(5)] if writer.has(5) else []
    if writer.attributes.get("unidirectional", 0):
        masks.append(writer.shared.causal_mask(0))
    _attend(writer, (q, k, v), width, masks)


def rotary_embedding(writer: Expansion) -> None:
    """Write a RotaryEmbedding of ONNX Runtime's."""
    _check_positions(writer, 1)
    if writer.attributes.get("is_packed_batching", 0) or writer.attributes.get("scale", 1.0) != 1.0:
        raise writer.refusal("its sequences are packed, or it scales them")
    x = writer.input(0)
    rank = 0 if x.shape is None else len(x.shape)
    interleaved = bool(writer.attributes.get("interleaved", 0))
    if rank == 3:
        columns, half = writer.columns(0), writer.table(2).shape[-1]
        heads = writer.attributes.get("num_heads", 0) or columns // (2 * half)
        if heads < 1 or columns % heads:
            raise writer.refusal(f"its rows of {columns} numbers are not those of {heads} heads")
        turned = _rotated(writer, _parted(writer, 0, heads), (heads, columns // heads), (2, 3), interleaved)
        writer.give(0, writer.reshape(turned, 0, 0, -1))
    elif rank == 4 and isinstance(heads := x.shape[1] if x.shape is not None else None, int):
        first = writer.op("Transpose", x, perm=_TURNED)
        turned = _rotated(writer, first, (heads, writer.columns(0)), (2, 3), interleaved)
        writer.give(0, writer.op("Transpose", turned, perm=_TURNED))
    else:
        raise writer.refusal("the file does not say the shape of what it rotates")
    writer.finish()


def _heads(writer: Expansion, name: str) -> int:
    number = int(writer.attributes.get(name, 0))
    if number < 1:
        raise writer.refusal(f"its {name} is {number}")
    return number


def _width(writer: Expansion, index: int, heads: int) -> int:
    """Return how many numbers a head has."""
    columns = writer.columns(index)
    if columns % heads:
        raise writer.refusal(f"its rows of {columns} numbers are not those of {heads} heads")
    return columns // heads


def _parted(writer: Expansion, index: int, heads: int, bias: ir.Value | None = None) -> ir.Value:
    """Return [batch, tokens, heads, width] of an input [batch, tokens, heads * width]."""
    value = writer.input(index)
    if value.shape is not None and len(value.shape) != 3:
        raise writer.refusal(f"its input {index} has {len(value.shape)} dimensions, not 3")
    return writer.reshape(value if bias is None else writer.op("Add", value, bias), 0, 0, heads, -1)


def _check_positions(writer: Expansion, index: int) -> None:
    """Check that positions, where they are given, are what the caller gives: then they are known (N4)."""
    value = writer.node.inputs[index] if writer.has(index) else None
    while value is not None and (maker := value.producer()) is not None:
        if maker.op_type not in ("Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Flatten"):
            raise writer.refusal(f"its positions are computed by '{maker.name}' ({maker.op_type})")
        value = maker.inputs[0]


def _rotated(
    writer: Expansion, x: ir.Value, sizes: tuple[int, int], tables: tuple[int, int], interleaved: bool
) -> ir.Value:
    """Rotate [batch, tokens, heads, width] by the angles of the first positions.

    Args:
        writer: of the nodes.
        x: whose rows are rotated, or their first part.
        sizes: heads, and the width of one.
        tables: inputs that are tables of cosines and sines, a row for each position, a column for each pair.
        interleaved: pairs are neighbours, and not numbers of two halves.
    """
    heads, width = sizes
    cos, sin = (_angles(writer, index, interleaved) for index in tables)
    rotated = cos.shape[-1]
    if rotated > width or cos.shape != sin.shape:
        raise writer.refusal(f"its tables are for {rotated} numbers of a head, which has {width}")
    part = x if rotated == width else writer.slice(x, 0, rotated)
    if interleaved:
        one, other = (writer.slice(part, place, rotated, 2) for place in (0, 1))
        pair = [writer.op("Unsqueeze", each, writer.ints(-1)) for each in (writer.op("Neg", other), one)]
        swapped = writer.reshape(writer.op("Concat", *pair, axis=-1), 0, 0, heads, -1)
    else:
        one, other = writer.slice(part, 0, rotated // 2), writer.slice(part, rotated // 2, rotated)
        swapped = writer.op("Concat", writer.op("Neg", other), one, axis=-1)
    terms = [writer.op("Mul", each, writer.constant(table)) for each, table in ((part, cos), (swapped, sin))]
    made = writer.op("Add", *terms)
    return made if part is x else writer.op("Concat", made, writer.slice(x, rotated, width), axis=-1)


def _angles(writer: Expansion, index: int, interleaved: bool) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Return [1, tokens, 1, numbers] of a table [positions, pairs]."""
    table, tokens = writer.table(index), writer.shared.tokens
    if table.ndim != 2 or table.dtype != np.float32:
        raise writer.refusal(f"its input {index} is no table of floats")
    if len(table) < tokens:
        raise writer.refusal(f"its tables have {len(table)} positions, but a sequence has {tokens} tokens")
    first = table[:tokens]
    both = np.repeat(first, 2, -1) if interleaved else np.concatenate([first, first], -1)
    return both[None, :, None]


def _repeated(writer: Expansion, value: ir.Value, heads: int, fewer: int) -> ir.Value:
    """Repeat heads for their neighbours (N3)."""
    times = writer.ints(1, 1, heads // fewer, 1, 1)
    return writer.reshape(
        writer.op("Expand", writer.op("Unsqueeze", value, writer.ints(2)), times), 0, heads, writer.shared.tokens, -1
    )


def _attend(writer: Expansion, operands: tuple[ir.Value, ...], width: int, masks: list[ir.Value]) -> None:
    """Write the scores of [batch, heads, tokens, width], their Softmax, and the result, and finish."""
    q, k, v = operands
    scores = writer.op("MatMul", q, writer.op("Transpose", k, perm=(0, 1, 3, 2)))
    scale = float(writer.attributes.get("scale", 0.0)) or 1 / math.sqrt(width)
    scores = writer.op("Mul", scores, writer.number(scale))
    cap = float(writer.attributes.get("softcap", 0.0))
    if cap:
        scores = writer.op("Mul", writer.op("Tanh", writer.op("Div", scores, writer.number(cap))), writer.number(cap))
    for mask in masks:
        scores = writer.op("Add", scores, mask)
    made = writer.op("MatMul", writer.op("Softmax", scores, axis=-1), v)
    writer.give(0, writer.reshape(writer.op("Transpose", made, perm=_TURNED), 0, 0, -1))
    writer.finish()
