"""Operators that draw random numbers, and the gradients that use them again."""

from __future__ import annotations

from poet_onnx.graph.operators.fitting import expect, expect_count
from poet_onnx.graph.operators.rules import BOOL, like, nothing, per_output, writing
from poet_onnx.graph.operators.site import Site, TensorType
from poet_onnx.graph.operators.spec import MICROSOFT_DOMAIN, POET_DOMAIN, Attribute, Call, OpSpec, Schema, family


def _masked(site: Site) -> None:
    """DropoutGrad(dY, mask, ratio, training_mode)."""
    expect(site, 1, site.type(0).shape)
    for index in (2, 3):
        if site.has(index):
            expect_count(site, index, 1)


def _one_row_of_doubles(call: Call) -> int:
    return 8 * call.input(0).shape[-1]


def _dropped(site: Site) -> list[TensorType]:
    x = site.type(0)
    return [x, TensorType(BOOL, x.shape)]


SPECS = [
    *family("Dropout RandomNormalLike RandomUniformLike", random=True, work=per_output(5), workspace=nothing),
    OpSpec("RandomUniform", random=True, work=writing, workspace=nothing),
    OpSpec("RandomNormal", random=True, workspace=nothing),
    OpSpec("Multinomial", random=True, workspace=_one_row_of_doubles),
    OpSpec("Bernoulli", random=True),
    *family("BitmaskDropout BiasDropout", MICROSOFT_DOMAIN, random=True, work=per_output(5), cpu_kernel=False),
    *family("BitmaskBiasDropout BiasSoftmaxDropout", MICROSOFT_DOMAIN, random=True, cpu_kernel=False),
    OpSpec(
        "CountedDropout",
        POET_DOMAIN,
        shape=_dropped,
        work=per_output(5),
        workspace=nothing,
        schema=Schema(
            "CountedDropout(X, ratio, runs) -> (Y, mask): X / (1 - ratio) where the mask is true, zero elsewhere. The "
            "mask follows from the seed and the number of runs.",
            (("Y", "T"), ("mask", "tensor(bool)")),
            (Attribute("seed", "INT", "Of the first run's random numbers."),),
        ),
    ),
    OpSpec("DropoutGrad", MICROSOFT_DOMAIN, shape=like(0), check=_masked, work=per_output(2), workspace=nothing),
    OpSpec("BitmaskDropoutGrad", MICROSOFT_DOMAIN, check=_masked, work=per_output(2), cpu_kernel=False),
]
"""Random numbers."""
