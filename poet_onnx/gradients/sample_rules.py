"""Where an operator leaves the samples of a batch, and that it mixes none of them.

The batch is a factor of one axis. Example: a tensor of shape [3, 8 * 12, 64], with 12 heads for each of 8 samples, has
it in axis 1, before 12 others: `Samples(axis=1, inner=12)`. A rule returns where the batch is in each output of a node,
None where an output is the same for all samples. Or it refuses: the node may mix samples, or fixes their number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import onnx_ir as ir

from poet_onnx.graph.extract import plain_attributes
from poet_onnx.graph.shapes import Inferred

Shape = tuple[int, ...]


class MixesError(Exception):
    """A node may mix samples; the message is the end of a sentence about it."""


class Samples(NamedTuple):
    """Where the batch is: axis `axis` has `outer` * batch * `inner` elements."""

    axis: int
    outer: int = 1
    inner: int = 1


@dataclass(frozen=True)
class Call:
    """A node, and where the batch is in its inputs.

    Attributes:
        node: of ONNX.
        batch: number of samples.
        inputs: where the batch is in each; None where it is in none, or the input is absent.
        shapes: of the inputs; empty where one is absent.
        made: shapes of the outputs.
        opset: version of ONNX's operators.
        found: types and small constants of the graph.
    """

    node: ir.Node
    batch: int
    inputs: tuple[Samples | None, ...]
    shapes: tuple[Shape, ...]
    made: tuple[Shape, ...]
    opset: int
    found: Inferred

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute."""
        return plain_attributes(self.node).get(name, default)

    def integers(self, index: int, name: str = "") -> list[int] | None:
        """Return a constant list from an input, or from an attribute; None where neither is there."""
        value = self.node.inputs[index] if index < len(self.node.inputs) else None
        if value is None:
            said = self.attribute(name) if name else None
            return None if said is None else [int(number) for number in said]
        known = self.found.values.get(value.name or "")
        if known is None:
            raise MixesError("reads a number that is computed at run time")
        return [int(number) for number in known.ravel()]

    def only_first(self) -> Samples:
        """Return where the batch is in input 0, the only one that has it."""
        first = self.inputs[0]
        if first is None or any(place is not None for place in self.inputs[1:]):
            raise MixesError("has other parameters for each sample")
        return first

    def untouched(self, place: Samples, axes: Sequence[int], rank: int) -> None:
        """Check that the batch is in none of these axes."""
        if place.axis in {axis % rank for axis in axes}:
            raise MixesError("works along the axis of the samples")


Rule = Callable[[Call], Sequence[Samples | None]]


def elementwise(call: Call) -> list[Samples | None]:
    """Keep samples where they are; what all share has one element where the others have the batch."""
    rank = len(call.made[0])
    places = {
        place._replace(axis=place.axis + rank - len(shape))
        for place, shape in zip(call.inputs, call.shapes, strict=True)
        if place is not None
    }
    if len(places) > 1:
        raise MixesError("joins tensors whose samples lie along different axes")
    (place,) = places
    for own, shape in zip(call.inputs, call.shapes, strict=True):
        axis = place.axis - (rank - len(shape))
        if own is None and axis >= 0 and shape[axis] != 1:
            raise MixesError("has a constant for each sample")
    return [place for _ in call.made]


def along_axis(call: Call) -> list[Samples | None]:
    """Work along one axis, and keep all axes."""
    place, rank = call.only_first(), len(call.shapes[0])
    default = 1 if call.opset < 13 and call.node.op_type in _FLATTENED else -1
    axis = call.attribute("axis", default)
    if call.node.op_type == "CumSum":
        (axis,) = call.integers(1) or (0,)
    first = axis % rank
    several = call.node.op_type in _FROM_AXIS or (call.opset < 13 and call.node.op_type in _FLATTENED)
    call.untouched(place, range(first, rank) if several else [first], rank)
    return [place for _ in call.made]


def first_axis(call: Call) -> list[Samples | None]:
    """Work on each sample of axis 0 by itself."""
    place = call.only_first()
    if place != Samples(0):
        raise MixesError("takes the samples along another axis than the first one")
    return [Samples(0) for _ in call.made]


def resized(call: Call) -> list[Samples | None]:
    """Resize pictures by factors; sizes would hold the number of samples."""
    if len(call.shapes) > 3 and call.shapes[3]:
        raise MixesError("says the number of samples among its sizes")
    return first_axis(call)


def reduced(call: Call) -> list[Samples | None]:
    """Reduce other axes."""
    place, rank = call.only_first(), len(call.shapes[0])
    if call.node.op_type.startswith("Arg"):
        axes: list[int] | None = [call.attribute("axis", 0)]
    else:
        axes = call.integers(1, "axes")
    if not axes:
        raise MixesError("reduces all samples to one")
    call.untouched(place, axes, rank)
    gone = {axis % rank for axis in axes} if not call.attribute("keepdims", 1) else set()
    return [place._replace(axis=place.axis - sum(axis < place.axis for axis in gone))]


def transposed(call: Call) -> list[Samples | None]:
    """Move axes."""
    place, rank = call.only_first(), len(call.shapes[0])
    order = call.attribute("perm", list(reversed(range(rank))))
    return [place._replace(axis=list(order).index(place.axis))]


def reshaped(call: Call) -> list[Samples | None]:
    """Find the batch where as many elements lie before it, and behind it, as before."""
    place, shape = call.only_first(), call.shapes[0]
    before, behind = math.prod(shape[: place.axis]) * place.outer, place.inner * math.prod(shape[place.axis + 1 :])
    found: list[Samples | None] = []
    for axis, size in enumerate(call.made[0]):
        outside, inside = math.prod(call.made[0][:axis]), math.prod(call.made[0][axis + 1 :])
        outer, inner = before // max(1, outside), behind // max(1, inside)
        if size == outer * call.batch * inner and (outer * outside, inner * inside) == (before, behind):
            found.append(Samples(axis, outer, inner))
    whole = [each for each in found if each is not None and each == Samples(each.axis)]
    found = [*whole] if call.batch == 1 else found
    if len(found) != 1:
        raise MixesError("leaves no axis that is clearly the batch's: export with a batch of 2 or more")
    return found


def with_axes(call: Call) -> list[Samples | None]:
    """Add or take away axes of one element."""
    place, axes = call.only_first(), call.integers(1, "axes")
    if call.node.op_type == "Unsqueeze":
        gone = {axis % len(call.made[0]) for axis in axes or ()}
        kept = [axis for axis in range(len(call.made[0])) if axis not in gone]
        return [place._replace(axis=kept[place.axis])]
    if axes is None:
        raise MixesError("takes away every axis of one element")
    rank = len(call.shapes[0])
    call.untouched(place, axes, rank)
    return [place._replace(axis=place.axis - sum(axis % rank < place.axis for axis in axes))]


def joined(call: Call) -> list[Samples | None]:
    """Join tensors along another axis."""
    places = set(call.inputs)
    (place, *more) = places
    if place is None or more:
        raise MixesError("joins each sample to a constant, or tensors whose samples lie along different axes")
    call.untouched(place, [call.attribute("axis", 0)], len(call.made[0]))
    return [place]


def split(call: Call) -> list[Samples | None]:
    """Split along another axis."""
    place = call.only_first()
    call.untouched(place, [call.attribute("axis", 0)], len(call.shapes[0]))
    return [place for _ in call.made]


def sliced(call: Call) -> list[Samples | None]:
    """Take a part along other axes."""
    place, rank = call.only_first(), len(call.shapes[0])
    starts = call.integers(1, "starts")
    axes = call.integers(3, "axes")
    call.untouched(place, range(len(starts or ())) if axes is None else axes, rank)
    return [place]


def padded(call: Call) -> list[Samples | None]:
    """Add elements along other axes."""
    place, rank = call.only_first(), len(call.shapes[0])
    pads = call.integers(1, "pads") or []
    axes = call.integers(3) or list(range(rank))
    some = [axis for index, axis in enumerate(axes) if pads[index] or pads[index + len(axes)]]
    call.untouched(place, some, rank)
    return [place]


def gathered(call: Call) -> list[Samples | None]:
    """Take rows, of each sample or of a table."""
    data, indices = call.inputs
    axis = call.attribute("axis", 0) % len(call.shapes[0])
    if data is None:
        assert indices is not None
        return [indices._replace(axis=indices.axis + axis)]
    if indices is not None:
        raise MixesError("takes rows of each sample by numbers of each sample")
    call.untouched(data, [axis], len(call.shapes[0]))
    return [data if data.axis < axis else data._replace(axis=data.axis + len(call.shapes[1]) - 1)]


def paired(call: Call) -> list[Samples | None]:
    """Take elements of each sample, at places of each sample."""
    data, indices = call.inputs
    if data is None or data != indices:
        raise MixesError("takes elements for all samples alike, or of other samples")
    rank = len(call.shapes[0])
    call.untouched(data, range(1, rank) if call.node.op_type == "GridSample" else [call.attribute("axis", 0)], rank)
    return [data]


def contracted(call: Call) -> list[Samples | None]:
    """Multiply and sum tensors by the names of their axes, of which one is the samples'."""
    equation = call.attribute("equation").replace(" ", "")
    terms, _, made = equation.partition("->")
    if not made or "." in equation:
        raise MixesError("does not name all axes")
    each = list(zip(terms.split(","), call.inputs, strict=True))
    names = {(term[place.axis], place.outer, place.inner) for term, place in each if place is not None}
    if len(names) > 1:
        raise MixesError("multiplies tensors whose samples lie along different axes")
    ((name, outer, inner),) = names
    if name not in made or any(term.count(name) != (place is not None) for term, place in each):
        raise MixesError("sums over samples, or has a constant for each one")
    return [Samples(made.index(name), outer, inner)]


def repeated(call: Call) -> list[Samples | None]:
    """Repeat along other axes."""
    place = call.only_first()
    times = call.integers(1) or []
    call.untouched(place, [axis for axis, number in enumerate(times) if number != 1], len(call.shapes[0]))
    return [place]


def expanded(call: Call) -> list[Samples | None]:
    """Repeat what each sample has; the new sizes are made to hold no number of samples."""
    place, shape = call.only_first(), call.shapes[0]
    return [place._replace(axis=place.axis + len(call.made[0]) - len(shape))]


def multiplied(call: Call) -> list[Samples | None]:
    """Multiply matrices of each sample, or each sample's rows by a matrix."""
    rank = len(call.made[0])
    if min(map(len, call.shapes)) < 2:
        raise MixesError("multiplies by a vector")
    places = []
    for own, shape, other, summed in zip(call.inputs, call.shapes, reversed(call.shapes), (1, 2), strict=True):
        if own is None:
            continue
        call.untouched(own, [-summed], len(shape))
        place = own._replace(axis=own.axis + rank - len(shape))
        of_other = place.axis - (rank - len(other))
        if None in call.inputs and place.axis < rank - 2 and of_other >= 0 and other[of_other] != 1:
            raise MixesError("has a matrix for each sample")
        places.append(place)
    if len(set(places)) > 1 or (len(places) == 2 and places[0].axis >= rank - 2):
        raise MixesError("multiplies tensors whose samples lie along different axes")
    return [places[0]]


def gemm(call: Call) -> list[Samples | None]:
    """Multiply each sample's row by a matrix."""
    first, *others = call.inputs
    if first is None or any(place is not None for place in others):
        raise MixesError("multiplies samples by samples")
    call.untouched(first, [0 if call.attribute("transA", 0) else 1], 2)
    added = call.shapes[2] if len(call.shapes) > 2 else ()
    if len(added) == 2 and added[0] != 1:
        raise MixesError("has a bias for each sample")
    return [first._replace(axis=0)]


def recurrent(call: Call) -> Sequence[Samples | None]:
    """Run a sequence of each sample, the samples along axis 1."""
    states = [place for place in call.inputs[4:] if place is not None]
    if call.inputs[0] != Samples(1) or any(place is not None for place in call.inputs[1:4]):
        raise MixesError("takes the samples along another axis than the second one")
    given = [shape for shape in call.shapes[4:] if shape]
    if call.attribute("layout", 0) or states != [Samples(1)] * len(given):
        raise MixesError("begins with a state for each sample, which is a constant")
    return [Samples(2), Samples(1), Samples(1)][: len(call.made)]


_FLATTENED = frozenset({"Softmax", "LogSoftmax", "Hardmax"})
"""Before opset 13 these work on all axes from one on."""

_FROM_AXIS = frozenset({"LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization"})

_OPERATORS: dict[Rule, str] = {
    elementwise: (
        "Abs Acos Acosh Add And Asin Asinh Atan Atanh BiasGelu BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast Ceil "
        "Celu Clip Cos Cosh Div Dropout Elu Equal Erf Exp FastGelu Floor Gelu Greater GreaterOrEqual HardSigmoid "
        "HardSwish Identity IsInf IsNaN LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow "
        "QuickGelu Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Sum Tan Tanh "
        "ThresholdedRelu Where Xor"
    ),
    along_axis: (
        "Softmax LogSoftmax Hardmax CumSum LpNormalization TopK LayerNormalization SimplifiedLayerNormalization "
        "RMSNormalization"
    ),
    first_axis: (
        "Conv ConvTranspose MaxPool AveragePool LpPool GlobalMaxPool GlobalAveragePool BatchNormalization "
        "InstanceNormalization GroupNormalization LRN DepthToSpace SpaceToDepth"
    ),
    resized: "Resize Upsample",
    reduced: (
        "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
        "ReduceSumSquare ArgMax ArgMin"
    ),
    transposed: "Transpose",
    reshaped: "Reshape Flatten",
    with_axes: "Squeeze Unsqueeze",
    joined: "Concat",
    split: "Split",
    sliced: "Slice",
    padded: "Pad",
    gathered: "Gather",
    paired: "GatherElements GridSample",
    contracted: "Einsum",
    repeated: "Tile",
    expanded: "Expand",
    multiplied: "MatMul",
    gemm: "Gemm",
    recurrent: "LSTM GRU RNN",
}

RULES: dict[str, Rule] = {name: rule for rule, names in _OPERATORS.items() for name in names.split()}
"""The rule of each operator that is known."""
