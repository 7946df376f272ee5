"""Operators that draw random numbers, and the gradients that use them again."""

from __future__ import annotations

from poet_onnx.graph.operators.fitting import expect, expect_count
from poet_onnx.graph.operators.rules import like, nothing, per_output, writing
from poet_onnx.graph.operators.site import Site
from poet_onnx.graph.operators.spec import MICROSOFT_DOMAIN, Call, OpSpec, family


def _masked(site: Site) -> None:
    """DropoutGrad(dY, mask, ratio, training_mode)."""
    expect(site, 1, site.type(0).shape)
    for index in (2, 3):
        if site.has(index):
            expect_count(site, index, 1)


def _one_row_of_doubles(call: Call) -> int:
    return 8 * call.input(0).shape[-1]


SPECS = [
    *family("Dropout RandomNormalLike RandomUniformLike", random=True, work=per_output(5), workspace=nothing),
    OpSpec("RandomUniform", random=True, work=writing, workspace=nothing),
    OpSpec("RandomNormal", random=True, workspace=nothing),
    OpSpec("Multinomial", random=True, workspace=_one_row_of_doubles),
    OpSpec("Bernoulli", random=True),
    *family("BitmaskDropout BiasDropout", MICROSOFT_DOMAIN, random=True, work=per_output(5), cpu_kernel=False),
    *family("BitmaskBiasDropout BiasSoftmaxDropout", MICROSOFT_DOMAIN, random=True, cpu_kernel=False),
    OpSpec("DropoutGrad", MICROSOFT_DOMAIN, shape=like(0), check=_masked, work=per_output(2), workspace=nothing),
    OpSpec("BitmaskDropoutGrad", MICROSOFT_DOMAIN, check=_masked, work=per_output(2), cpu_kernel=False),
]
"""Random numbers."""
