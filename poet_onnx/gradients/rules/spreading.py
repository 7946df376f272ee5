"""Gradients of padding, repetition, triangles, running sums and resizing."""

from __future__ import annotations

import numpy as np

from poet_onnx.gradients.registry import gradient_of
from poet_onnx.gradients.site import NoGradientError, Site
from poet_onnx.passes.lowering.resizing import resize_gradient
from poet_onnx.passes.lowering.site import UnsupportedError


@gradient_of("Pad", stops=(1, 3))
def pad(site: Site) -> None:
    """Cut the padding off; what was copied into it is added to where it was copied from."""
    if site.wants(2):
        raise NoGradientError("the number that it pads with is trained")
    shape = site.shape(site.input(0))
    begins, ends = _padding(site, len(shape))
    mode = site.attributes.get("mode", "constant")
    if mode == "constant":
        site.send(0, site.op("Pad", site.gradient(), site.ints(*(-size for size in (*begins, *ends)))))
        return
    if min(*begins, *ends) < 0:
        raise NoGradientError("it cuts off and copies")
    value, current = site.gradient(), list(site.shape(site.output()))
    for axis, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        if not begin and not end:
            continue
        sources = np.pad(np.arange(shape[axis]), (begin, end), mode=mode)
        current[axis] = shape[axis]
        value = site.own("GatherGrad", site.ints(*current), site.constant(sources), value, axis=axis)
    site.send(0, value)


def _padding(site: Site, rank: int) -> tuple[list[int], list[int]]:
    """Return what is added before and behind each axis."""
    given = site.integers(1)
    axes = site.integers(3) if site.has(3) else tuple(range(rank))
    begins, ends = [0] * rank, [0] * rank
    for place, axis in enumerate(axes):
        begins[axis], ends[axis] = given[place], given[place + len(axes)]
    return begins, ends


@gradient_of("Tile", stops=(1,))
def tile(site: Site) -> None:
    """Sum over the repetitions."""
    shape, repeats = site.shape(site.input(0)), site.integers(1)
    pairs = [size for pair in zip(repeats, shape, strict=True) for size in pair]
    axes = [2 * axis for axis, count in enumerate(repeats) if count != 1]
    value = site.gradient()
    if axes:
        value = site.reshape(site.reduce_sum(site.reshape(value, pairs), axes, keep=False), shape)
    site.send(0, value)


@gradient_of("Trilu", stops=(1,))
def triangle(site: Site) -> None:
    """Take the same triangle of the gradient."""
    rest = [site.input(1)] if site.has(1) else []
    site.send(0, site.op("Trilu", site.gradient(), *rest, upper=site.attributes.get("upper", 1)))


@gradient_of("CumSum", stops=(1,))
def running_sum(site: Site) -> None:
    """Sum the gradient from the other end."""
    exclusive, reverse = (site.attributes.get(name, 0) for name in ("exclusive", "reverse"))
    total = site.op("CumSum", site.gradient(), site.input(1), exclusive=exclusive, reverse=1 - reverse)
    site.send(0, total)


@gradient_of("Resize", stops=(1, 2, 3))
def resize(site: Site) -> None:
    """Multiply along each resized axis with the transposed matrix of the resize; whole repetitions are summed."""
    attributes = site.attributes
    refused = ("antialias", "axes", "keep_aspect_ratio_policy")
    mode = attributes.get("coordinate_transformation_mode", "half_pixel")
    if mode == "tf_crop_and_resize" or any(attributes.get(name, 0) not in (0, "stretch") for name in refused):
        raise NoGradientError("it crops, filters, keeps an aspect ratio or names axes")
    before, after = site.type(site.input(0)), site.type(site.output())
    try:
        gradient = resize_gradient(site, site.gradient(), before.shape, after.shape, _scales(site), dtype=after.dtype)
    except UnsupportedError as problem:
        raise NoGradientError(str(problem)) from problem
    site.send(0, gradient)


def _scales(site: Site) -> list[float]:
    """Return the scale of each axis, from the scales where they are given, from the shapes otherwise."""
    if site.has(2) and site.shape(site.input(2)) != (0,):
        tensor = site.input(2).const_value
        known = tensor.numpy() if tensor is not None else site.known(2)
        if known is None:
            raise NoGradientError("its scales are computed at run time, but must be constants")
        return [float(scale) for scale in known]
    shapes = zip(site.shape(site.output()), site.shape(site.input(0)), strict=True)
    return [after / before for after, before in shapes]
