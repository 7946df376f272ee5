"""Scaling, dropout, reductions, and operators that differ from one of ONNX's in name or form only."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from poet_onnx.passes.lowering.builder import MICROSOFT, LoweringBuilder, Rules, UnsupportedError


def _scale(builder: LoweringBuilder) -> None:
    """Scale(X, factor): X times the factor, or over it with scale_down."""
    down = bool(builder.attributes.get("scale_down", 0))
    factor = builder.known(1)
    if factor is not None:
        number = float(np.ravel(factor)[0])
        builder.give(0, builder.op("Mul", builder.input(0), builder.number(1 / number if down else number)))
        return
    value = builder.op("Cast", builder.reshape(builder.input(1)), to=int(builder.type(0).dtype))
    builder.give(0, builder.op("Div" if down else "Mul", builder.input(0), value))


def _dropout(builder: LoweringBuilder) -> None:
    """DropoutGrad(dY, mask, ratio?, training?): dY / (1 - ratio) where the mask is set, 0 elsewhere."""
    d_y, dtype = builder.input(0), builder.type(0).dtype
    kept = builder.op("Mul", d_y, builder.op("Cast", builder.input(1), to=int(dtype)))
    ratio = builder.known(2) if builder.has(2) else np.array(0.5)
    if ratio is not None:
        builder.give(0, builder.op("Mul", kept, builder.number(1 / (1 - float(np.ravel(ratio)[0])))))
        return
    value = builder.op("Cast", builder.reshape(builder.input(2)), to=int(dtype))
    builder.give(0, builder.op("Div", kept, builder.op("Sub", builder.number(1), value)))


def _reduce_sum(builder: LoweringBuilder) -> None:
    """ReduceSumTraining(X, axes): as ReduceSum, but without axes it may also leave X as it is."""
    keep = int(builder.attributes.get("keepdims", 1))
    noop = int(builder.attributes.get("noop_with_empty_axes", 0))
    builder.give(0, builder.op("ReduceSum", *builder.node.inputs, keepdims=keep, noop_with_empty_axes=noop))


def _reduce_all_l2(builder: LoweringBuilder) -> None:
    """ReduceAllL2(X...): the norm of all tensors together."""
    squares = []
    for index in range(len(builder.node.inputs)):
        flat = builder.reshape(builder.input(index), -1)
        squares.append(builder.op("ReduceSum", builder.op("Mul", flat, flat), keepdims=0))
    total = squares[0] if len(squares) == 1 else builder.op("Sum", *squares)
    builder.give(0, builder.op("Sqrt", total))


def _concat(builder: LoweringBuilder) -> None:
    """ConcatTraining(X...): the whole, and the parts' lengths."""
    axis = int(builder.attributes["axis"])
    builder.give(0, builder.op("Concat", *builder.node.inputs, axis=axis))
    lengths = [builder.shape(index)[axis] for index in range(len(builder.node.inputs))]
    builder.give(1, builder.op("Identity", builder.ints(*lengths)) if builder.wants(1) else builder.input(0))


def _split(builder: LoweringBuilder) -> None:
    """SplitTraining(X, lengths): the parts; a single part is the whole."""
    axis = int(builder.attributes.get("axis", 0))
    lengths = (
        builder.integers(1)
        if builder.has(1)
        else [builder.output_shape(i)[axis] for i in range(len(builder.node.outputs))]
    )
    parts = builder.ops("Split", [builder.input(0), builder.ints(*lengths)], len(lengths), axis=axis)
    for index, part in enumerate(parts):
        if builder.wants(index):
            builder.give(index, part)


def _transpose_matmul(builder: LoweringBuilder) -> None:
    """TransposeMatMul is FusedMatMul's older name."""
    attributes = {
        name: builder.attributes[name] for name in ("transA", "transB", "alpha") if name in builder.attributes
    }
    builder.give(0, builder.op("FusedMatMul", *builder.node.inputs, domain=MICROSOFT, **attributes))


def _sine(builder: LoweringBuilder) -> None:
    """SinGrad(dY, X) = dY cos(X)."""
    builder.give(0, builder.op("Mul", builder.input(0), builder.op("Cos", builder.input(1))))


def _pass_through(builder: LoweringBuilder) -> None:
    """PassThrough and YieldOp hand their inputs on."""
    for index in range(len(builder.node.outputs)):
        if builder.wants(index):
            builder.give(index, builder.input(index))


def _fake_quantization(builder: LoweringBuilder) -> None:
    """FakeQuantGrad(dY, mask): dY where the mask is set."""
    mask = builder.op("Cast", builder.input(1), to=int(builder.type(0).dtype))
    builder.give(0, builder.op("Mul", builder.input(0), mask))


def _bias_dropout(builder: LoweringBuilder) -> None:
    """BiasDropout(X, B, residual?, ratio?, training?): dropout of X + B, then the residual; and the mask."""
    total = builder.op("Add", builder.input(0), builder.input(1))
    options: list[ir.Value | None] = [builder.node.inputs[i] if builder.has(i) else None for i in (3, 4)]
    seed: dict[str, Any] = {"seed": int(builder.attributes["seed"])} if "seed" in builder.attributes else {}
    y, mask = builder.ops("Dropout", [total, *options], 2, **seed)
    builder.give(0, builder.op("Add", y, builder.input(2)) if builder.has(2) else y)
    builder.give(1, mask)


def _broadcast_axes(builder: LoweringBuilder) -> None:
    """BroadcastGradientArgs is folded to constants, unless its shapes are computed at run time."""
    raise UnsupportedError("its shapes are computed at run time: export the model with static shapes")


RULES: Rules = {
    "Scale": _scale,
    "DropoutGrad": _dropout,
    "BiasDropout": _bias_dropout,
    "ReduceSumTraining": _reduce_sum,
    "ReduceAllL2": _reduce_all_l2,
    "ConcatTraining": _concat,
    "SplitTraining": _split,
    "TransposeMatMul": _transpose_matmul,
    "SinGrad": _sine,
    "PassThrough": _pass_through,
    "FakeQuantGrad": _fake_quantization,
    "BroadcastGradientArgs": _broadcast_axes,
}
