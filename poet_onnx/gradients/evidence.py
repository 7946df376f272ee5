"""Whether an initializer is a parameter, by its name, its place and its numbers, where no exporter says so.

For a parameter speaks: a weight's place in the graph, or a weight's name. Against it speaks: a name that an exporter
gives what it computed, or the numbers of a mask. A tensor of which neither speaks is doubtful: so is a named one of
torch's legacy exporter, which writes buffers as it writes parameters, and a constant number in the others. Of that
exporter a statistic is doubtful in a weight's place, too, and so are filters that are their own mirror, and what is
added behind a layer's own bias.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from poet_onnx.graph.operators import ONNX_DOMAINS
from poet_onnx.graph.shapes import Array

PARAMETER, CONSTANT, DOUBTFUL = "parameter", "constant", "doubtful"
"""The verdicts."""

RECURRENT = ("LSTM", "GRU", "RNN")
"""Operators of sequences, which have both biases at one input."""

WEIGHTS = {
    **dict.fromkeys(("Conv", "ConvTranspose", "Gemm"), (1, 2)),
    **dict.fromkeys(
        ("BatchNormalization", "LayerNormalization", "InstanceNormalization", "GroupNormalization"), (1, 2)
    ),
    **dict.fromkeys(RECURRENT, (1, 2, 3)),
    **dict.fromkeys(("RMSNormalization", "PRelu"), (1,)),
    "MatMul": (0, 1),
    "Gather": (0,),
}
"""Inputs at which a constant is a weight."""

LARGEST_EPSILON = 1e-2
"""A number that is not beyond it, and is added before a root, keeps that from zero."""

LARGEST_WEIGHT = 1e3
"""A number beyond it is that of a mask."""

_COMPUTED = re.compile(
    r"onnx::|val_\d|/|\d+$|Constant|const_fold_opt__|lifted_tensor|auto\.cast\.|helper\.|.*_output_\d+$"
)
"""How names begin that exporters give to what they compute: torch of a transposed weight, Paddle of reshaped ones."""

_CONSTANT = re.compile(r"(?:.*/)?Constant(?:_\d+)?_output_\d+$")
"""How torch's legacy exporter names what a Constant node makes; parameters are initializers there."""

VARIABLE = "ReadVariableOp"
"""What names of tf2onnx have in them of numbers that are a variable's own."""

_LITERAL = re.compile(
    r"(?:.*/)?(?:x|y|Const|zeros|ones)(?:_\d+)?:\d+$"  # TensorFlow's of a number, array or filled state in the program
    r"|(?:.*/)?batchnorm/Rsqrt(?:_\d+)?:\d+$"  # and of a running variance, where Keras has no scale beside it
    r"|(?:.*/)?MatMul(?:_\d+)?/[ab](?:_\d+)?:\d+$"  # of a matrix that a product has
    r"|helper\.constant\.\d+$"  # paddle2onnx's of what an operator stands for
    r"|(?:[A-Z][a-z]_[A-Za-z]+cst|transform_matrix)\d*$"  # skl2onnx's of what a step before a network was fitted to
    r"|dpa_scale_\d+$|eps_\d+$"  # jax2onnx's of the factor of an attention's scores, and of what keeps a root from zero
)
"""How exporters name what is no variable, but written in the program."""

BY_TENSORFLOW = re.compile(
    r".*/(?:add|addv2|sub|mul|div|truediv|realdiv|sqrt|rsqrt|square|exp|pow|reciprocal|biasadd|matmul|strided_slice"
    r"|softplus|sigmoid|tanh|relu|softmax|log|abs|neg|maximum|minimum|mean|sum|tile|broadcastto)(?:_\d+)?:\d+$",
    re.IGNORECASE,
)
"""How TensorFlow names what it computed of variables or numbers before it wrote a graph: by the operation."""

NAMED = re.compile(
    r"(?:.*[._/])?(?:weight|bias|kernel|gamma|beta|embeddings?|cls_token)(?:[._:/].*)?$"
    rf"|.*/(?:add|mul)(?:_\d+)?/{VARIABLE}(?:_\d+)?:\d+$",  # TensorFlow's of a variable that shifts or scales
    re.IGNORECASE,
)
"""Names that frameworks give to weights."""

_STATISTIC = re.compile(r"(?:.*[._])?(?:mean|std|stddev|var|variance)s?(?:_.*)?$", re.IGNORECASE)
"""Names of statistics: modules keep those of targets in buffers, and scale and shift what a last layer makes."""

_STATES = {"LSTM": (5, 6), "GRU": (5,), "RNN": (5,)}
"""Inputs at which a state at the start is."""

MOVES = ("Identity", "Transpose", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Cast", "Slice", "Split", "Concat")
"""Through which a weight is still a weight."""

WITH_WEIGHTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")

_ROWS_OF_SINES = 64
"""Rows of a table that are read to tell what it has."""

_MOST_EQUAL = 4
"""Different numbers of a tensor at its start that a layer does not draw: an LSTM's biases are 0, and 1 at one gate."""


def verdict(value: ir.Value, *, of_torch: bool) -> str:
    """Return what a real initializer seems to be, one of the verdicts.

    Args:
        value: that has uses.
        of_torch: whether torch's legacy exporter wrote the model.
    """
    name, tensor = value.name or "", value.const_value
    if tensor is None:
        return CONSTANT
    computed = _COMPUTED.match(name) is not None or BY_TENSORFLOW.match(name) is not None
    if not of_torch and not NAMED.match(name) and (_LITERAL.match(name) or _is_of_formula(value)):
        return CONSTANT
    if _CONSTANT.match(name) and _is_filled(np.asarray(tensor.numpy())):
        return CONSTANT  # such as the ones and zeros of a GroupNorm, which has its weights behind
    shape = tuple(tensor.shape.numpy())
    readers = [(node, index) for node, index in _readers(value) if _is_weight(node, index, shape)]
    places = {node.op_type for node, _ in readers}
    if computed and math.prod(shape) <= 1 and places <= {"Add", "Mul"}:
        return PARAMETER if shape and any(_is_only_bias(node, index) for node, index in value.uses()) else CONSTANT
    if NAMED.match(name) or not places <= {"Add", "Mul"}:  # whatever its numbers are: large models have many
        is_shift = places <= {"Add"} and _may_be_buffer(name, tensor)
        is_filter = bool(places) and places <= {"Conv", "ConvTranspose"}
        is_doubtful = of_torch and (is_shift or (is_filter and is_mirrored(np.asarray(tensor.numpy()))))
        return DOUBTFUL if is_doubtful else PARAMETER
    is_buffer = of_torch and (_STATISTIC.match(name) or all(_is_second_bias(node, index) for node, index in readers))
    is_placed = bool(places) and not is_buffer
    is_plain = not computed and not of_torch and _is_plain(value)
    return _by_numbers(np.asarray(tensor.numpy()), is_placed=is_placed, is_plain=is_plain, computed=computed)


def _by_numbers(array: Array, *, is_placed: bool, is_plain: bool, computed: bool) -> str:
    """Return the verdict on a tensor that does not have a weight's name, by its numbers.

    Args:
        array: the numbers.
        is_placed: whether it stands where a bias or a scale would.
        is_plain: whether nothing speaks against it but its numbers.
        computed: whether an exporter gives such names to what it computed.
    """
    is_filled, is_mask = _is_filled(array), _is_mask(array)
    if is_placed and not is_mask:
        return PARAMETER
    if is_mask or (computed and is_filled):
        return CONSTANT
    return PARAMETER if is_plain and not is_filled else DOUBTFUL


def _may_be_buffer(name: str, tensor: ir.TensorProtocol) -> bool:
    """Return whether a tensor with a weight's name may as well be a buffer of zeros, as Bart's `final_logits_bias`.

    Layers of torch have biases of one dimension, and modules that write a parameter in more call it `bias`.
    """
    return len(tensor.shape) > 1 and name.endswith("_bias") and not np.asarray(tensor.numpy()).any()


def is_mirrored(array: Array) -> bool:
    """Return whether each filter is its own mirror, but for signs: as windows, blurs and edges, and no drawn weight.

    Zeros are, too, and many a last layer begins with them.
    """
    if math.prod(array.shape[2:]) <= 1:
        return False
    places = tuple(range(1, array.ndim - 1))  # the first filter of a drawn weight tells
    return all(np.allclose(sizes, np.flip(sizes, places)) for sizes in map(np.abs, array)) and bool(array.any())


def is_drawn(value: ir.Value) -> bool:
    """Return whether so many numbers of a tensor differ that no other one has them."""
    assert value.const_value is not None
    array = np.asarray(value.const_value.numpy())
    return len(np.unique(array)) > max(_MOST_EQUAL, array.size // 16)


def is_of_sines(value: ir.Value) -> bool:
    """Return whether a table has a sine and a cosine of each angle in its rows, as those of positions have.

    Their squares add up to half of a row's length, q = w/2. Of a table x that was scaled and shifted, as PatchTST's,
    x = a s + b, they add up to 2 b sum(x) + a^2 q - b^2 w. Rows of zeros, as of padding, do not count.
    """
    tensor = value.const_value
    if tensor is None or len(tensor.shape) < 2 or not {node.op_type for node, _ in _readers(value)} & {"Gather", "Add"}:
        return False
    width = int(tensor.shape.numpy()[-1])
    first = np.asarray(tensor.numpy()).reshape(-1, width)[:_ROWS_OF_SINES].astype(np.float64)
    rows = first[first.any(axis=1)]
    if width <= 2 or len(rows) <= 2:
        return False
    squares, sums = np.square(rows).sum(axis=1), rows.sum(axis=1)
    if np.abs(rows).max() <= 1 and np.allclose(squares, width / 2, rtol=1e-5):
        return True
    if len(rows) == 3 or len(np.unique(rows[-1])) <= 2:  # of few rows and of two values they are on a line, too
        return False
    away = sums - sums.mean()
    slope = float(away @ squares) / float(away @ away) if away.any() else 0.0
    is_shifted = abs(slope) > 1e-3 * squares.max() / width  # so are rows of one length
    return bool(is_shifted and np.allclose(squares, squares.mean() + slope * away, rtol=1e-4))


def may_be_untrained(value: ir.Value) -> bool:
    """Return whether a constant may be a scale or a shift that nobody has trained yet.

    Its numbers, one for each channel, are equal, and it stands where a normalization has it that an exporter wrote as
    arithmetic. So may zeros be that were computed of a parameter of zeros, such as the rows of Swin's table that its
    scores get.
    """
    tensor = value.const_value
    if tensor is None or _CONSTANT.match(value.name or "") or not _is_filled(array := np.asarray(tensor.numpy())):
        return False
    is_computed = _COMPUTED.match(value.name or "") is not None and array.size > 1 and not array.any()
    is_channel = sum(size > 1 for size in array.shape) == 1
    return (is_channel or is_computed) and not _is_mask(array) and any(_scales(node) for node, _ in _readers(value))


def _is_of_formula(value: ir.Value) -> bool:
    """Return whether a tensor is what a formula has, at every place where it is read.

    Such are limits, as of ReLU6, sizes and scales of a resize, states of zeros at the start, and single numbers without
    dimensions: an exponent of 2, what is added before a root, the bound of a maximum, and what a mean divides a sum by.
    """
    if all(node.op_type in ("Clip", "Resize", "Upsample") and at > 0 for node, at in value.uses()):
        return True
    if all(at in _STATES.get(node.op_type, ()) for node, at in value.uses()):
        return value.const_value is not None and not np.asarray(value.const_value.numpy()).any()
    array = np.asarray(value.const_value.numpy()) if value.const_value is not None else np.zeros(1)
    return array.ndim == 0 and all(_is_formula(node, at, float(array)) for node, at in value.uses())


def _is_formula(node: ir.Node, index: int, number: float) -> bool:
    if node.domain not in ONNX_DOMAINS:
        return False
    if node.op_type in ("Max", "Min"):
        return True
    if node.op_type == "Pow":
        return index == 1 and number in (-1.0, -0.5, 0.5, 2.0)
    if node.op_type == "Add":
        readers = [use.node for use in node.outputs[0].uses()]
        is_rooted = bool(readers) and all(reader.op_type in ("Sqrt", "Pow") for reader in readers)
        return is_rooted and 0 < number <= LARGEST_EPSILON
    other = node.inputs[0]
    of = other.producer() if other is not None else None
    return node.op_type == "Div" and index == 1 and of is not None and of.op_type == "ReduceSum" and number % 1 == 0


def _scales(node: ir.Node) -> bool:
    is_product = node.op_type in ("Add", "Mul") and node.domain in ONNX_DOMAINS
    return is_product and any(each is not None and not is_stored(each) for each in node.inputs)


def _is_filled(array: Array) -> bool:
    """Return whether all numbers are the same."""
    return array.size == 0 or bool(array.min() == array.max())


def _is_mask(array: Array) -> bool:
    """Return whether there are numbers that no weight has."""
    ends = np.fmin.reduce(array, axis=None, initial=0), np.fmax.reduce(array, axis=None, initial=0)
    return bool(max(-float(ends[0]), float(ends[1])) >= LARGEST_WEIGHT)


def _readers(value: ir.Value) -> Iterator[tuple[ir.Node, int]]:
    """Yield what reads a tensor, also where it is turned, cut or joined on the way."""
    pending, seen = [value], {value}
    while pending:
        for node, index in sorted(pending.pop().uses(), key=lambda use: (use.node.name or "", use.idx)):
            yield node, index
            if node.domain in ONNX_DOMAINS and node.op_type in MOVES:
                fresh = [output for output in node.outputs if output not in seen]
                seen.update(fresh)
                pending += fresh if index == 0 or node.op_type == "Concat" else []


def _is_weight(node: ir.Node, index: int, shape: tuple[int, ...]) -> bool:
    """Return whether a node reads a weight at an input."""
    if node.domain not in ONNX_DOMAINS:
        return False
    if index in WEIGHTS.get(node.op_type, ()):
        return len(shape) > 1 or node.op_type not in ("MatMul", "Gather")
    is_channel = sum(size > 1 for size in shape) <= 1 <= len(shape)
    if node.op_type in ("Add", "Mul") and is_channel:
        other = node.inputs[1 - index]
        return other is not None and _is_of_weights(other)
    return False


def _is_only_bias(node: ir.Node, index: int) -> bool:
    """Return whether a node adds a number to what a layer of a single unit makes."""
    other = node.inputs[1 - index] if node.op_type == "Add" and node.domain in ONNX_DOMAINS else None
    layer = unmoved(other).producer() if other is not None else None
    if layer is None or layer.op_type not in ("MatMul", "Conv") or layer.domain not in ONNX_DOMAINS:
        return False
    weight = layer.inputs[1]
    sizes = None if weight is None or weight.shape is None else weight.shape
    return sizes is not None and len(sizes) > 1 and sizes[-1 if layer.op_type == "MatMul" else 0] == 1


def _is_second_bias(node: ir.Node, index: int) -> bool:
    """Return whether a node adds to what a layer makes that has a bias of its own, scaled or not."""
    return node.op_type == "Add" and has_bias(node.inputs[1 - index])


def has_bias(value: ir.Value | None) -> bool:
    """Return whether a tensor is what a layer makes that has a bias of its own, scaled or not."""
    while value is not None and (layer := unmoved(value).producer()) is not None and layer.domain in ONNX_DOMAINS:
        if layer.op_type in WITH_WEIGHTS:
            return len(layer.inputs) > 2
        if not is_by_stored(layer):
            return False
        if layer.op_type == "Add":
            return _is_of_weights(layer.outputs[0])
        value = first_computed(layer)
    return False


def _is_of_weights(value: ir.Value | None) -> bool:
    """Return whether a tensor is what a layer with weights makes, before its bias or scale."""
    while value is not None and (node := value.producer()) is not None and node.domain in ONNX_DOMAINS:
        if node.op_type == "MatMul":
            return any(each is not None and is_stored(each) for each in node.inputs)
        if node.op_type in WITH_WEIGHTS or node.op_type.endswith("Normalization") or _normalizes(node):
            return True
        if node.op_type not in MOVES and not is_by_stored(node):
            return False
        value = first_computed(node)
    return False


def is_by_stored(node: ir.Node) -> bool:
    """Return whether a node scales or shifts by what is stored."""
    return node.op_type in ("Mul", "Add") and any(each is not None and is_stored(each) for each in node.inputs)


def first_computed(node: ir.Node) -> ir.Value | None:
    """Return the first input of a node that is not stored."""
    return next((each for each in node.inputs if each is not None and not is_stored(each)), None)


def _normalizes(node: ir.Node, steps: int = 3) -> bool:
    """Return whether a node makes what a normalization does that an exporter wrote as arithmetic, or a part of it."""
    if node.op_type in ("Div", "Reciprocal"):
        below = node.inputs[-1]
        root = below.producer() if below is not None else None
        return root is not None and root.op_type == "Sqrt" and _is_of_mean(root)
    if node.op_type not in ("Mul", "Add", "Sub") or not steps:
        return False
    makers = [each.producer() for each in node.inputs if each is not None]
    return any(maker is not None and _normalizes(maker, steps - 1) for maker in makers)


def _is_of_mean(node: ir.Node, steps: int = 4) -> bool:
    """Return whether a root is that of a mean over a part of a tensor, such as a variance."""
    makers = [maker for each in node.inputs if each is not None and (maker := each.producer()) is not None]
    if any(maker.op_type in ("ReduceMean", "GlobalAveragePool") for maker in makers):
        return True
    return steps > 0 and any(
        maker.op_type in ("Add", "Sub", "Max", *MOVES) and _is_of_mean(maker, steps - 1) for maker in makers
    )


def unmoved(value: ir.Value) -> ir.Value:
    """Return what a tensor was before it was turned, cut or joined."""
    while (node := value.producer()) is not None and node.op_type in MOVES and node.inputs[0] is not None:
        value = node.inputs[0]
    return value


def is_stored(value: ir.Value) -> bool:
    """Return whether a tensor is an initializer, or one that is turned."""
    origin = unmoved(value)
    node = origin.producer()
    return origin.is_initializer() or (node is not None and node.op_type == "Constant")


def _is_plain(value: ir.Value) -> bool:
    """Return whether no reader speaks against a parameter: an exponent and a state at the start are rarely trained.

    Nor is what is taken off or divided by: so pictures are normalized.
    """
    against = {"Pow": (1,), **_STATES, "Clip": (1, 2), "Pad": (2,), "Where": (0,)}
    against |= dict.fromkeys(("Sub", "Div"), (1,)) | {"NegativeLogLikelihoodLoss": (2,)}
    return not all(index in against.get(node.op_type, ()) for node, index in value.uses())
