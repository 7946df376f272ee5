"""Gradients of windows beyond the usual: transposed convolutions, norms, global maxima, and pixels of depth."""

from __future__ import annotations

import math

import onnx_ir as ir

from poet_onnx.gradients.registry import gradient_of
from poet_onnx.gradients.rules.choosing import as_real
from poet_onnx.gradients.site import NoGradientError, Site
from poet_onnx.graph.operators import MICROSOFT_DOMAIN


@gradient_of("ConvTranspose")
def transposed_convolution(site: Site) -> None:
    """Convolve the gradient; the weight's gradient is that of this convolution."""
    x, weight, gradient = site.input(0), site.input(1), site.gradient()
    spatial = len(site.shape(x)) - 2
    strides = list(site.attributes.get("strides") or [1] * spatial)
    if site.attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID") or site.attributes.get("output_shape"):
        raise NoGradientError("its padding follows from auto_pad or output_shape; export it with pads")
    extra = site.attributes.get("output_padding") or [0] * spatial
    if any(more >= stride for more, stride in zip(extra, strides, strict=True)):
        raise NoGradientError("its output_padding is not smaller than its strides")
    window = {
        "kernel_shape": list(site.shape(weight)[2:]),
        "strides": strides,
        "dilations": list(site.attributes.get("dilations") or [1] * spatial),
        "pads": list(site.attributes.get("pads") or [0] * (2 * spatial)),
        "group": site.attributes.get("group", 1),
    }
    if site.wants(0):
        site.send(0, site.op("Conv", gradient, weight, **window))
    if site.wants(1):
        wanted = [False, True]
        results = site.ops("ConvGrad", [x, gradient, weight], wanted, domain=MICROSOFT_DOMAIN, **window)
        site.send(1, results[1])
    if site.wants(2):
        site.send(2, site.reduce_sum(gradient, [0, *range(2, spatial + 2)], keep=False))


@gradient_of("GlobalMaxPool")
def global_max_pool(site: Site) -> None:
    """Send the gradient to the first maximum of each channel, as torch does."""
    x = site.input(0)
    shape = site.shape(x)
    rows = [*shape[:2], math.prod(shape[2:])]
    where = site.op("ArgMax", site.reshape(x, rows), axis=2, keepdims=1)
    zeros = site.expand(site.number(0, x), rows)
    found = site.op("ScatterElements", zeros, where, site.reshape(site.gradient(), [*rows[:2], 1]), axis=2)
    site.send(0, site.reshape(found, shape))


@gradient_of("LpPool")
def norm_pool(site: Site) -> None:
    """Multiply the gradient by sign(x) (|x| / y)^(p - 1), with y that of the element's window."""
    x, y = site.input(0), site.output()
    order, kernel = site.attributes.get("p", 2), list(site.attributes["kernel_shape"])
    if site.attributes.get("ceil_mode", 0) or any(step != 1 for step in site.attributes.get("dilations") or ()):
        raise NoGradientError("it has dilations or ceil_mode")
    window = {name: site.attributes[name] for name in ("strides", "pads", "auto_pad") if name in site.attributes}
    share = site.gradient()
    if order != 1:
        vanishes = site.op("Equal", y, site.number(0, y))
        safe = site.op("Where", vanishes, site.number(1, y), y)
        share = site.op("Div", share, _power(site, safe, order - 1))
        share = site.op("Mul", share, as_real(site, site.op("Not", vanishes), y))
    pooled = site.op("Mul", share, site.number(math.prod(kernel), y))
    # The padding counts: each element then gets what its windows have, divided by their size.
    spread = site.op("AveragePoolGrad", pooled, kernel_shape=kernel, count_include_pad=1, **window)
    spread.type, spread.shape = x.type, x.shape
    slope = site.op("Sign", x)
    if order != 1:
        slope = site.op("Mul", slope, _power(site, site.op("Abs", x), order - 1))
    site.send(0, site.op("Mul", spread, slope))


def _power(site: Site, value: ir.Value, exponent: int) -> ir.Value:
    return value if exponent == 1 else site.op("Pow", value, site.number(exponent, site.output()))


@gradient_of("SpaceToDepth")
def space_to_depth(site: Site) -> None:
    """Put the pixels back."""
    site.send(0, site.op("DepthToSpace", site.gradient(), blocksize=site.attributes["blocksize"]))


@gradient_of("DepthToSpace")
def depth_to_space(site: Site) -> None:
    """Put the channels back, in the order of the mode."""
    size = site.attributes["blocksize"]
    if site.attributes.get("mode", "DCR") == "DCR":
        site.send(0, site.op("SpaceToDepth", site.gradient(), blocksize=size))
        return
    images, depth, height, width = site.shape(site.output())
    blocks = site.reshape(site.gradient(), (images, depth, height // size, size, width // size, size))
    turned = site.op("Transpose", blocks, perm=[0, 1, 3, 5, 2, 4])
    site.send(0, site.reshape(turned, site.shape(site.input(0))))
