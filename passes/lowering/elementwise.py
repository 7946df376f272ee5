"""Scaling, dropout, reductions, and operators that differ from one of ONNX's in name or form only."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from poet_onnx.passes.lowering.site import MICROSOFT, Rules, Site, UnsupportedError


def _scale(site: Site) -> None:
    """Scale(X, factor): X times the factor, or over it with scale_down."""
    down = bool(site.attributes.get("scale_down", 0))
    factor = site.known(1)
    if factor is not None:
        number = float(np.ravel(factor)[0])
        site.give(0, site.op("Mul", site.input(0), site.number(1 / number if down else number)))
        return
    value = site.op("Cast", site.reshape(site.input(1)), to=int(site.type(0).dtype))
    site.give(0, site.op("Div" if down else "Mul", site.input(0), value))


def _dropout(site: Site) -> None:
    """DropoutGrad(dY, mask, ratio?, training?): dY / (1 - ratio) where the mask is set, 0 elsewhere."""
    d_y, dtype = site.input(0), site.type(0).dtype
    kept = site.op("Mul", d_y, site.op("Cast", site.input(1), to=int(dtype)))
    ratio = site.known(2) if site.has(2) else np.array(0.5)
    if ratio is not None:
        site.give(0, site.op("Mul", kept, site.number(1 / (1 - float(np.ravel(ratio)[0])))))
        return
    value = site.op("Cast", site.reshape(site.input(2)), to=int(dtype))
    site.give(0, site.op("Div", kept, site.op("Sub", site.number(1), value)))


def _reduce_sum(site: Site) -> None:
    """ReduceSumTraining(X, axes): as ReduceSum, but without axes it may also leave X as it is."""
    keep = int(site.attributes.get("keepdims", 1))
    noop = int(site.attributes.get("noop_with_empty_axes", 0))
    site.give(0, site.op("ReduceSum", *site.node.inputs, keepdims=keep, noop_with_empty_axes=noop))


def _reduce_all_l2(site: Site) -> None:
    """ReduceAllL2(X...): the norm of all tensors together."""
    squares = []
    for index in range(len(site.node.inputs)):
        flat = site.reshape(site.input(index), -1)
        squares.append(site.op("ReduceSum", site.op("Mul", flat, flat), keepdims=0))
    total = squares[0] if len(squares) == 1 else site.op("Sum", *squares)
    site.give(0, site.op("Sqrt", total))


def _concat(site: Site) -> None:
    """ConcatTraining(X...): the whole, and the parts' lengths."""
    axis = int(site.attributes["axis"])
    site.give(0, site.op("Concat", *site.node.inputs, axis=axis))
    lengths = [site.shape(index)[axis] for index in range(len(site.node.inputs))]
    site.give(1, site.op("Identity", site.ints(*lengths)) if site.wants(1) else site.input(0))


def _split(site: Site) -> None:
    """SplitTraining(X, lengths): the parts; a single part is the whole."""
    axis = int(site.attributes.get("axis", 0))
    lengths = site.integers(1) if site.has(1) else [site.output_shape(i)[axis] for i in range(len(site.node.outputs))]
    parts = site.ops("Split", [site.input(0), site.ints(*lengths)], len(lengths), axis=axis)
    for index, part in enumerate(parts):
        if site.wants(index):
            site.give(index, part)


def _transpose_matmul(site: Site) -> None:
    """TransposeMatMul is FusedMatMul's older name."""
    attributes = {name: site.attributes[name] for name in ("transA", "transB", "alpha") if name in site.attributes}
    site.give(0, site.op("FusedMatMul", *site.node.inputs, domain=MICROSOFT, **attributes))


def _sine(site: Site) -> None:
    """SinGrad(dY, X) = dY cos(X)."""
    site.give(0, site.op("Mul", site.input(0), site.op("Cos", site.input(1))))


def _pass_through(site: Site) -> None:
    """PassThrough and YieldOp hand their inputs on."""
    for index in range(len(site.node.outputs)):
        if site.wants(index):
            site.give(index, site.input(index))


def _fake_quantization(site: Site) -> None:
    """FakeQuantGrad(dY, mask): dY where the mask is set."""
    mask = site.op("Cast", site.input(1), to=int(site.type(0).dtype))
    site.give(0, site.op("Mul", site.input(0), mask))


def _bias_dropout(site: Site) -> None:
    """BiasDropout(X, B, residual?, ratio?, training?): dropout of X + B, then the residual; and the mask."""
    total = site.op("Add", site.input(0), site.input(1))
    options: list[ir.Value | None] = [site.node.inputs[i] if site.has(i) else None for i in (3, 4)]
    seed: dict[str, Any] = {"seed": int(site.attributes["seed"])} if "seed" in site.attributes else {}
    y, mask = site.ops("Dropout", [total, *options], 2, **seed)
    site.give(0, site.op("Add", y, site.input(2)) if site.has(2) else y)
    site.give(1, mask)


def _broadcast_axes(site: Site) -> None:
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
