"""Windows whose padding follows from `auto_pad` or `output_shape` say it in numbers.

ConvGrad and AveragePoolGrad of onnxruntime-training 1.19 take such a padding for none, and read what lies beside.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from poet_onnx.gradients.forward.patterns import is_op
from poet_onnx.graph.operators.windows import follows_size, reach_of, split_padding
from poet_onnx.graph.shapes import TensorType, infer

_WINDOWS = ("AveragePool", "Conv", "ConvTranspose", "LpPool", "MaxPool")


def say_pads(model: ir.Model) -> None:
    """Give their pads to convolutions and poolings that tell how large the result is, or is to be."""
    found = [node for node in model.graph if is_op(node, *_WINDOWS) and _follows(node)]
    types = infer(model).types if found else {}
    for node in found:
        sides = _sides(node, types)
        if all(total >= 0 for total in sides):
            pads = [split_padding(_automatic(node), total) for total in sides]
            for name in ("auto_pad", "output_shape"):
                node.attributes.pop(name, None)
            node.attributes["pads"] = ir.AttrInt64s("pads", [pair[place] for place in (0, 1) for pair in pads])


def _automatic(node: ir.Node) -> str:
    return node.attributes.get_string("auto_pad", "NOTSET")


def _follows(node: ir.Node) -> bool:
    return follows_size(_automatic(node)) or "output_shape" in node.attributes


def _sides(node: ir.Node, types: Mapping[str, TensorType]) -> list[int]:
    """Return the padding of each axis, before and after it; of a transposed convolution it is negative for none."""
    x, y = (types[value.name or ""].shape[2:] for value in (node.inputs[0], node.outputs[0]) if value is not None)
    weight = node.inputs[1] if len(node.inputs) > 1 else None
    kernel = node.attributes.get_ints("kernel_shape", ()) or types[weight.name or "" if weight else ""].shape[2:]
    ones, zeros = [1] * len(x), [0] * len(x)
    strides, dilations = (node.attributes.get_ints(name, ones) for name in ("strides", "dilations"))
    extra = node.attributes.get_ints("output_padding", zeros)
    is_transposed = is_op(node, "ConvTranspose")
    image, windows = (y, x) if is_transposed else (x, y)
    totals = []
    for size, count, taps, stride, dilation, more in zip(
        image, windows, kernel, strides, dilations, extra, strict=True
    ):
        total = reach_of(count, taps, stride, dilation) + more - size
        totals.append(total if is_transposed else max(0, total))
    return totals
