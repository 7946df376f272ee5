"""Gradients of operators that move numbers: views, transpositions, joins, cuts and look-ups."""

from __future__ import annotations

from poet_onnx.gradients.registry import gradient_of, without_gradient
from poet_onnx.gradients.site import Site
from poet_onnx.graph.operators import MICROSOFT_DOMAIN

without_gradient(
    "Shape", "Size", "Constant", "ConstantOfShape", "Range", "ArgMax", "ArgMin", "NonZero", "OneHot", "EyeLike"
)


@gradient_of("Reshape", "Squeeze", "Unsqueeze", stops=(1,))
@gradient_of("Flatten")
def view(site: Site) -> None:
    """View the gradient in the input's shape."""
    site.send(0, site.reshape(site.gradient(), site.shape(site.input(0))))


@gradient_of("Transpose")
def transpose(site: Site) -> None:
    """Put the axes back."""
    rank = len(site.shape(site.input(0)))
    order = site.attributes.get("perm") or range(rank)[::-1]
    back = sorted(range(rank), key=lambda axis: order[axis])
    site.send(0, site.op("Transpose", site.gradient(), perm=back))


@gradient_of("Expand", stops=(1,))
def expand(site: Site) -> None:
    """Sum over the axes along which the input was repeated."""
    site.send(0, site.unbroadcast(site.gradient(), site.shape(site.output()), site.shape(site.input(0))))


@gradient_of("Gather", stops=(1,))
def gather(site: Site) -> None:
    """Add each row of the gradient to the row that it came from."""
    shape = site.ints(*site.shape(site.input(0)))
    axis = site.attributes.get("axis", 0)
    site.send(0, site.own("GatherGrad", shape, site.input(1), site.gradient(), axis=axis))


@gradient_of("Slice", stops=(1, 2, 3, 4))
def cut(site: Site) -> None:
    """Put the gradient where it was cut from, among zeros."""
    shape = site.ints(*site.shape(site.input(0)))
    rest = [site.node.inputs[index] for index in range(1, len(site.node.inputs))]
    site.send(0, site.own("SliceGrad", site.gradient(), shape, *rest))


@gradient_of("ConcatTraining", domain=MICROSOFT_DOMAIN)
def concat(site: Site) -> None:
    """Cut the gradient into the operands' parts, whose lengths the forward node saved."""
    parts = site.ops(
        "SplitTraining",
        [site.gradient(), site.output(1)],
        len(site.node.inputs),
        domain=MICROSOFT_DOMAIN,
        axis=site.attributes["axis"],
    )
    for index, part in enumerate(parts):
        site.send(index, part)


@gradient_of("Split", stops=(1,))
def split(site: Site) -> None:
    """Join the parts' gradients; a part that does not lead to the loss has zeros."""
    parts = []
    for index, output in enumerate(site.node.outputs):
        if site.has_gradient(index):
            parts.append(site.gradient(index))
        else:
            parts.append(site.expand(site.number(0, output), site.shape(output)))
    site.send(0, site.op("Concat", *parts, axis=site.attributes.get("axis", 0)))
