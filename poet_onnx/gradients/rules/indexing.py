"""Gradients of gathers and scatters by several indices, and operators that draw or find without a gradient."""

from __future__ import annotations

from poet_onnx.gradients.builder import GradientBuilder, NoGradientError
from poet_onnx.gradients.registry import gradient_of, without_gradient

# What is drawn does not change with what it is drawn like; a drawn mask is a constant of the step.
without_gradient("RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial", "Hardmax", "Unique")


@gradient_of("GatherElements", stops=(1,))
def gather_elements(builder: GradientBuilder) -> None:
    """Add each element of the gradient to the one that it came from."""
    shape = builder.ints(*builder.shape(builder.input(0)))
    axis = builder.attributes.get("axis", 0)
    builder.send(0, builder.own("GatherElementsGrad", builder.gradient(), shape, builder.input(1), axis=axis))


@gradient_of("GatherND", stops=(1,))
def gather_slices(builder: GradientBuilder) -> None:
    """Add each slice of the gradient to the one that it came from."""
    shape = builder.ints(*builder.shape(builder.input(0)))
    batch = builder.attributes.get("batch_dims", 0)
    builder.send(0, builder.own("GatherNDGrad", shape, builder.input(1), builder.gradient(), batch_dims=batch))


@gradient_of("TopK", stops=(1,))
def largest(builder: GradientBuilder) -> None:
    """Send the gradient to where the largest elements were found."""
    shape = builder.ints(*builder.shape(builder.input(0)))
    axis = builder.attributes.get("axis", -1)
    builder.send(0, builder.own("GatherElementsGrad", builder.gradient(), shape, builder.output(1), axis=axis))


@gradient_of("ScatterElements", "Scatter", "ScatterND", stops=(1,))
def scatter(builder: GradientBuilder) -> None:
    """Gather the updates' gradient; what they overwrote has none, what they were added to has all of it."""
    reduction, gradient = builder.attributes.get("reduction", "none"), builder.gradient()
    if reduction not in ("none", "add"):
        raise NoGradientError(f"its reduction is {reduction}, not none or add")
    slices = builder.node.op_type == "ScatterND"
    axis = {} if slices else {"axis": builder.attributes.get("axis", 0)}
    indices, updates = builder.input(1), builder.input(2)
    if builder.wants(0):
        kept = gradient
        if reduction == "none":
            zeros = builder.expand(builder.number(0, updates), builder.shape(updates))
            kept = builder.op("ScatterND" if slices else "ScatterElements", gradient, indices, zeros, **axis)
        builder.send(0, kept)
    if builder.wants(2):
        builder.send(2, builder.op("GatherND" if slices else "GatherElements", gradient, indices, **axis))
