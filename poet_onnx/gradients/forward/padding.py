"""Windows whose padding follows from `auto_pad` or `output_shape` say it in numbers, and averages what they are of.

ConvGrad and AveragePoolGrad of onnxruntime-training 1.19 take such a padding for none, and read what lies beside. Its
AveragePool, and that of onnxruntime before 1.21, divides by all taps where a last window reaches behind the padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from poet_onnx.gradients.forward.patterns import is_op
from poet_onnx.graph.operators.windows import follows_size, reach_of, split_padding, taps_within
from poet_onnx.graph.shapes import TensorType, infer
from poet_onnx.passes.node_builder import initializer, let_stand_for

Ratios = npt.NDArray[np.float64]

_WINDOWS = ("AveragePool", "Conv", "ConvTranspose", "LpPool", "MaxPool")


def say_windows(model: ir.Model) -> None:
    """Say in numbers what windows and their averages are of; changes the model."""
    _say_pads(model)
    _count_within(model)


def _say_pads(model: ir.Model) -> None:
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


def _count_within(model: ir.Model) -> None:
    """Let averages of `ceil_mode` that count the padding leave it out, and be scaled to what they are of.

    Elements behind the padding never count: so torch and newer kernels have it, and older ones have not.
    """
    found = [node for node in model.graph if is_op(node, "AveragePool") and _counts_padding(node)]
    types = infer(model).types if found else {}
    for node in found:
        del node.attributes["count_include_pad"]
        output = node.outputs[0]
        image, pixels = (types[value.name or ""].shape[2:] for value in (node.inputs[0], output) if value is not None)
        ratios = _ratios(node, image, pixels).astype(types[output.name or ""].dtype.numpy())
        if (ratios == 1).all():
            continue
        scales = initializer(model.graph, f"{node.name}/of_padded", ratios)
        scaled = ir.Node("", "Mul", [output, scales], name=f"{node.name}/within")
        let_stand_for(scaled.outputs[0], output)
        output.name = f"{scaled.outputs[0].name}/of_image"
        scaled.replace_input_with(0, output)
        model.graph.insert_after(node, scaled)


def _counts_padding(node: ir.Node) -> bool:
    return bool(node.attributes.get_int("ceil_mode", 0) and node.attributes.get_int("count_include_pad", 0))


def _ratios(node: ir.Node, image: Sequence[int], pixels: Sequence[int]) -> Ratios:
    """Return for each window how many elements of the image it has for each one of the image and its padding."""
    rank = len(image)
    ones, zeros = [1] * rank, [0] * rank
    strides, dilations = (node.attributes.get_ints(name, ones) for name in ("strides", "dilations"))
    pads = node.attributes.get_ints("pads", (*zeros, *zeros))
    ratios = np.ones((1, 1))
    for axis, taps in enumerate(node.attributes.get_ints("kernel_shape", ones)):
        before, size = pads[axis], image[axis]
        windows = (np.arange(pixels[axis]) * strides[axis] - before, taps, dilations[axis])
        padded = taps_within(*windows, (-before, size + pads[rank + axis]))
        ratios = ratios[..., None] * (taps_within(*windows, (0, size)) / padded)
    return ratios
