"""What tf2onnx loses of a network: biases of zeros, which of equal tensors are one, and batch normalizations."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from poet_onnx.errors import quoted
from poet_onnx.gradients.evidence import (
    BY_TENSORFLOW,
    MOVES,
    RECURRENT,
    VARIABLE,
    WEIGHTS,
    WITH_WEIGHTS,
    is_drawn,
    unmoved,
)
from poet_onnx.gradients.merged import weight_beside
from poet_onnx.graph.operators import ONNX_DOMAINS

WRITER = "tf2onnx"
"""How its files name who made them."""

_FOLDED = ("/batchnorm/", "/merged_input", "_fused_bn")
"""What names of numbers have in them that TensorFlow, or tf2onnx, computed of a batch normalization."""

_OTHERWISE = "give each tiny numbers of its own before the export (docs/exporters.md, 'TensorFlow')"


def warn_of_losses(model: ir.Model, trained: Sequence[str], warn: Callable[[str], None]) -> None:
    """Warn where a step may train something else than Keras does, in a file of tf2onnx.

    Args:
        model: without functions.
        trained: names of what is trained, in the model's order.
        warn: called with a sentence.
    """
    if model.producer_name != WRITER:
        return
    others = [name for name in trained if VARIABLE not in name]  # a layer normalization has such, too
    folded = [name for name in others if any(word in name for word in _FOLDED)]
    if folded:
        warn(
            f"{quoted(folded, 1)} was computed by TensorFlow, which folds batch normalizations for inference: what is"
            " trained is the product of their scales with what stands before, and the sum of their shifts. It moves"
            " otherwise than in Keras, and no statistics move."
        )
    computed = [name for name in others if BY_TENSORFLOW.match(name) and name not in folded]
    if computed:
        warn(
            f"TensorFlow computed {quoted(computed, 3)} before it wrote the file: that is trained in place of the"
            " variables that it was computed of, or as one. Name it with --freeze (in Python freeze=) where it stands"
            " still; a weight under a function of its own trains right from torch (poet_onnx.torch.export)."
        )
    _warn_of_zeros(model.graph, trained, warn)
    names = set(trained)
    alone = [
        weight.name
        for node in model.graph
        if node.op_type in WITH_WEIGHTS and node.domain in ONNX_DOMAINS and len(node.inputs) < 3
        for each in node.inputs[:2]
        if each is not None and (weight := unmoved(each)).is_initializer() and weight.name in names
        if not _is_shifted(node.outputs[0]) and not _is_part(node.outputs[0])
    ]
    if alone:
        warn(
            f"No bias is trained beside {quoted(dict.fromkeys(alone), 1)}, for TensorFlow leaves out added zeros:"
            f" where Keras trains a bias, {_OTHERWISE}."
        )
    merged = [
        value.name
        for value in model.graph.initializers.values()
        if value.name in names and len({node for node, _ in value.uses()}) > 1 and not is_drawn(value)
        if not all(weight_beside(node, index) for node, index in value.uses())
    ]
    if merged:
        warn(
            f"{quoted(merged, 1)} is read at several places and trained as one, for tf2onnx merges tensors of equal"
            f" numbers: if Keras trains several, {_OTHERWISE}."
        )


def _warn_of_zeros(graph: ir.Graph, trained: Sequence[str], warn: Callable[[str], None]) -> None:
    """Warn of biases that tf2onnx gives to recurrent layers that have none."""
    zeros = [
        name
        for name in trained
        if (tensor := graph.initializers[name].const_value) is not None
        if _is_recurrent_bias(graph.initializers[name]) and not tensor.numpy().any()
    ]
    if zeros:
        warn(
            f"{quoted(zeros, 1)} is a recurrent layer's bias of zeros: name it with --freeze (in Python freeze=) where"
            " Keras has none (use_bias=False)."
        )


def _is_recurrent_bias(value: ir.Value) -> bool:
    """Return whether recurrent layers alone read a tensor as their biases, or as the first half of them."""
    return bool(value.uses()) and all(
        (node.op_type in RECURRENT and at == WEIGHTS[node.op_type][-1])
        or (node.op_type == "Concat" and _is_recurrent_bias(node.outputs[0]))
        for node, at in value.uses()
    )


def _is_part(value: ir.Value) -> bool:
    """Return whether a tensor goes into another product at once, as in a separable convolution."""
    nodes = [node for node, at in value.uses() if at == 0 and node.domain in ONNX_DOMAINS]
    return bool(nodes) and all(
        node.op_type in WITH_WEIGHTS or (node.op_type in MOVES and _is_part(node.outputs[0])) for node in nodes
    )


def _is_shifted(value: ir.Value) -> bool:
    """Return whether something stored is added to a tensor, which may be turned or scaled before."""
    for node, at in value.uses():
        if node.domain not in ONNX_DOMAINS:
            continue
        other = node.inputs[1 - at] if node.op_type in ("Add", "Mul") else None
        is_stored = other is not None and unmoved(other).is_initializer()
        if node.op_type == "Add" and is_stored:
            return True
        if (is_stored or (node.op_type in MOVES and at == 0)) and _is_shifted(node.outputs[0]):
            return True
    return False
