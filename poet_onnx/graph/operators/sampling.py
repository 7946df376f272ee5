"""Images that are resized or sampled, signals, and numbers in few bits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from poet_onnx.graph.operators.rules import like, nothing, per_output, times_tensors, with_mask
from poet_onnx.graph.operators.shape_context import ShapeContext, TensorType
from poet_onnx.graph.operators.spec import MICROSOFT_DOMAIN, Call, OpSpec, Types, family


def _resize(call: Call) -> int:
    # Linear modes keep two indices and two weights per output coordinate, three dimensions at odd ranks.
    x, y = call.input(0), call.output(0)
    if call.attributes.get("mode", "nearest") != "linear" or x.shape == y.shape:
        return 0
    return 16 * sum(y.shape[-2:]) if len(y.shape) in (2, 4) else 24 * sum(y.shape[-3:])


def _cubic_cache(call: Call) -> int:
    """Return the bytes of what cubic modes keep of one image: a number for each input row and output column."""
    x, y = call.input(0), call.output(0)
    cubic = call.attributes.get("mode", "nearest") == "cubic" and len(y.shape) >= 2
    return 48 * x.shape[-2] * y.shape[-1] if cubic else 0


def _sampled_points(call: Call) -> int:
    """Return the bytes of what bilinear GridSample keeps of one image's points: four places and weights, and a mask."""
    modes = (call.attributes.get("mode", "linear"), len(call.output(0).shape))
    return 56 * math.prod(call.output(0).shape[-2:]) if modes in (("bilinear", 4), ("linear", 4)) else 0


def _grid_points(call: Call) -> int:
    """Return the bytes of AffineGrid's grid in work: some numbers of double for each coordinate of a point."""
    shape = call.output(0).shape
    return 16 * len(shape) * math.prod(shape[1:-1])


def _transformed(call: Call) -> int:
    """Return the bytes of DFT's work on a signal: of its length, or five times a power of two above twice that."""
    length = max(call.output(0).shape, default=0)
    return 8 * length if length & (length - 1) == 0 else 5 * 8 * (1 << (2 * length - 1).bit_length())


def _by_scales(context: ShapeContext, types: Types) -> Types:
    """Return the type of what known scales make: ONNX Runtime multiplies in single precision, and rounds down then."""
    index = 2 if len(context.types) > 2 else 1
    scales = context.values[index] if context.has(index) else None
    if scales is None or not scales.size:
        return types
    x = context.type(0)
    shape = list(x.shape)
    for axis, scale in zip(context.attributes.get("axes") or range(len(shape)), scales, strict=True):
        shape[axis] = int(np.float32(scale) * np.float32(shape[axis]))
    return [TensorType(x.dtype, tuple(shape))]


_ANTIALIASED = OpSpec("Resize", corrected=_by_scales, work=per_output(8), estimate=times_tensors(2))


def _antialiased(attributes: Mapping[str, Any]) -> OpSpec | None:
    """Return the declaration of a Resize that filters: of its workspace nothing is known."""
    return _ANTIALIASED if attributes.get("antialias", 0) else None


SPECS = [
    OpSpec(
        "Resize",
        corrected=_by_scales,
        work=per_output(8),
        workspace=_resize,
        heap=_cubic_cache,
        variant=_antialiased,
    ),
    OpSpec("Upsample", corrected=_by_scales, workspace=_resize),
    OpSpec("ResizeGrad", MICROSOFT_DOMAIN, cpu_kernel=False),
    OpSpec("AffineGrid", workspace=nothing, heap=_grid_points),
    *family("RoiAlign NonMaxSuppression", workspace=nothing),
    OpSpec("GridSample", MICROSOFT_DOMAIN, workspace=nothing, heap=_sampled_points),
    OpSpec("CropAndResize", MICROSOFT_DOMAIN, workspace=nothing),
    *family("BlackmanWindow HammingWindow HannWindow MelWeightMatrix STFT", workspace=nothing),
    OpSpec("DFT", estimate=times_tensors(4), heap=_transformed),
    *family("QuantizeLinear DequantizeLinear", MICROSOFT_DOMAIN, workspace=nothing),
    OpSpec("DynamicQuantizeLinear", workspace=nothing),
    OpSpec("QLinearAdd", MICROSOFT_DOMAIN, workspace=nothing),
    OpSpec("FakeQuant", MICROSOFT_DOMAIN, shape=with_mask),
    OpSpec("FakeQuantGrad", MICROSOFT_DOMAIN, shape=like(0)),
]
"""Images, signals and quantization."""
