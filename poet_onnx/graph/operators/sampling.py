"""Images that are resized or sampled, signals, and numbers in few bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from poet_onnx.graph.operators.rules import BOOL, like, nothing, per_output, times_tensors
from poet_onnx.graph.operators.site import Site, TensorType
from poet_onnx.graph.operators.spec import MICROSOFT_DOMAIN, Call, OpSpec, family


def _resize(call: Call) -> int:
    # Linear modes keep two indices and two weights per output coordinate, three dimensions at odd ranks.
    x, y = call.input(0), call.output(0)
    if call.attributes.get("mode", "nearest") != "linear" or x.shape == y.shape:
        return 0
    return 16 * sum(y.shape[-2:]) if len(y.shape) in (2, 4) else 24 * sum(y.shape[-3:])


_ANTIALIASED = OpSpec("Resize", work=per_output(8), estimate=times_tensors(2))


def _antialiased(attributes: Mapping[str, Any]) -> OpSpec | None:
    """Return the declaration of a Resize that filters: of its workspace nothing is known."""
    return _ANTIALIASED if attributes.get("antialias", 0) else None


def _fake_quantized(site: Site) -> list[TensorType]:
    data = site.type(0)
    return [data, TensorType(BOOL, data.shape)]


SPECS = [
    OpSpec("Resize", work=per_output(8), workspace=_resize, variant=_antialiased),
    OpSpec("Upsample", workspace=_resize),
    OpSpec("ResizeGrad", MICROSOFT_DOMAIN, cpu_kernel=False),
    *family("AffineGrid RoiAlign NonMaxSuppression", workspace=nothing),
    *family("GridSample CropAndResize", MICROSOFT_DOMAIN, workspace=nothing),
    *family("BlackmanWindow HammingWindow HannWindow MelWeightMatrix STFT", workspace=nothing),
    OpSpec("DFT", estimate=times_tensors(4)),
    *family("QuantizeLinear DequantizeLinear", MICROSOFT_DOMAIN, workspace=nothing),
    OpSpec("DynamicQuantizeLinear", workspace=nothing),
    OpSpec("QLinearAdd", MICROSOFT_DOMAIN, workspace=nothing),
    OpSpec("FakeQuant", MICROSOFT_DOMAIN, shape=_fake_quantized),
    OpSpec("FakeQuantGrad", MICROSOFT_DOMAIN, shape=like(0)),
]
"""Images, signals and quantization."""
