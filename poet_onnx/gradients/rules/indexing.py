"""Gradients of gathers and scatters by several indices, and operators that draw or find without a gradient."""

from __future__ import annotations

from poet_onnx.gradients.registry import gradient_of, without_gradient
from poet_onnx.gradients.site import NoGradientError, Site

# What is drawn does not change with what it is drawn like; a drawn mask is a constant of the step.
without_gradient("RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial", "Hardmax", "Unique")


@gradient_of("GatherElements", stops=(1,))
def gather_elements(site: Site) -> None:
    """Add each element of the gradient to the one that it came from."""
    shape = site.ints(*site.shape(site.input(0)))
    axis = site.attributes.get("axis", 0)
    site.send(0, site.own("GatherElementsGrad", site.gradient(), shape, site.input(1), axis=axis))


@gradient_of("GatherND", stops=(1,))
def gather_slices(site: Site) -> None:
    """Add each slice of the gradient to the one that it came from."""
    shape = site.ints(*site.shape(site.input(0)))
    batch = site.attributes.get("batch_dims", 0)
    site.send(0, site.own("GatherNDGrad", shape, site.input(1), site.gradient(), batch_dims=batch))


@gradient_of("TopK", stops=(1,))
def largest(site: Site) -> None:
    """Send the gradient to where the largest elements were found."""
    shape = site.ints(*site.shape(site.input(0)))
    axis = site.attributes.get("axis", -1)
    site.send(0, site.own("GatherElementsGrad", site.gradient(), shape, site.output(1), axis=axis))


@gradient_of("ScatterElements", "Scatter", "ScatterND", stops=(1,))
def scatter(site: Site) -> None:
    """Gather the updates' gradient; what they overwrote has none, what they were added to has all of it."""
    reduction, gradient = site.attributes.get("reduction", "none"), site.gradient()
    if reduction not in ("none", "add"):
        raise NoGradientError(f"its reduction is {reduction}, not none or add")
    slices = site.node.op_type == "ScatterND"
    axis = {} if slices else {"axis": site.attributes.get("axis", 0)}
    indices, updates = site.input(1), site.input(2)
    if site.wants(0):
        kept = gradient
        if reduction == "none":
            zeros = site.expand(site.number(0, updates), site.shape(updates))
            kept = site.op("ScatterND" if slices else "ScatterElements", gradient, indices, zeros, **axis)
        site.send(0, kept)
    if site.wants(2):
        site.send(2, site.op("GatherND" if slices else "GatherElements", gradient, indices, **axis))
