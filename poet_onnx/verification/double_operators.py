"""Forward operators in double precision that ONNX's reference evaluator has not, or computes element by element.

The formulas are those of the ONNX operator specification and of onnxruntime's contributed operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.graph.operators import activations, attention, low_rank, normalization, rotary, vocabulary

Array = npt.NDArray[Any]
Inputs = Sequence["Array | None"]
Attributes = dict[str, Any]
Operator = Callable[[Inputs, Attributes], "tuple[Array, ...]"]

_ERF = np.vectorize(math.erf, otypes=[np.float64])


def needed(inputs: Inputs, place: int) -> Array:
    """Return an input that the operator must have."""
    array = inputs[place] if place < len(inputs) else None
    if array is None:
        raise ValueError(f"input {place} is missing")
    return array


def optional(inputs: Inputs, place: int) -> Array | None:
    """Return an input that the operator may have."""
    return inputs[place] if place < len(inputs) else None


def windows_of(
    x: Array, kernel: Sequence[int], attributes: Attributes, fill: float, beyond: float | None = None
) -> Array:
    """Return all windows of an image: [batch, channels, *places, *kernel].

    Args:
        x: the image.
        kernel: size of a window.
        attributes: strides, dilations, pads and ceil_mode.
        fill: what is in the padding.
        beyond: what is behind it, where ceil_mode has a last window reach; default the same.
    """
    rank = len(kernel)
    strides, dilations = attributes.get("strides") or [1] * rank, attributes.get("dilations") or [1] * rank
    spans = [(size - 1) * dilation + 1 for size, dilation in zip(kernel, dilations, strict=True)]
    before, after = _pads(x.shape[2:], spans, strides, attributes)
    padded = np.pad(x, [(0, 0), (0, 0), *zip(before, after, strict=True)], constant_values=fill)
    counts = [(size - span) // stride + 1 for size, span, stride in zip(padded.shape[2:], spans, strides, strict=True)]
    if attributes.get("ceil_mode"):
        # A last window that would begin behind the image and the padding before it is none.
        starts = [size + pad for size, pad in zip(x.shape[2:], before, strict=True)]
        sizes = zip(padded.shape[2:], spans, strides, starts, strict=True)
        counts = [min(-((span - size) // stride), -(-start // stride) - 1) + 1 for size, span, stride, start in sizes]
        reached = [(count - 1) * stride + span for count, stride, span in zip(counts, strides, spans, strict=True)]
        behind = [(0, max(0, reach - size)) for reach, size in zip(reached, padded.shape[2:], strict=True)]
        padded = np.pad(padded, [(0, 0), (0, 0), *behind], constant_values=fill if beyond is None else beyond)
    views = np.lib.stride_tricks.sliding_window_view(padded, spans, axis=tuple(range(2, 2 + rank)))
    places = (slice(0, (count - 1) * stride + 1, stride) for count, stride in zip(counts, strides, strict=True))
    return views[(slice(None), slice(None), *places, *(slice(None, None, dilation) for dilation in dilations))]


def _pads(
    shape: Sequence[int], spans: Sequence[int], strides: Sequence[int], attributes: Attributes
) -> tuple[list[int], list[int]]:
    """Return the padding before and after each dimension."""
    rank, mode = len(spans), attributes.get("auto_pad", "NOTSET")
    if mode == "NOTSET":
        pads = list(attributes.get("pads") or [0] * 2 * rank)
        return pads[:rank], pads[rank:]
    if mode == "VALID":
        return [0] * rank, [0] * rank
    total = [
        max(0, (-(-size // stride) - 1) * stride + span - size)
        for size, stride, span in zip(shape, strides, spans, strict=True)
    ]
    less, more = [each // 2 for each in total], [each - each // 2 for each in total]
    return (less, more) if mode == "SAME_UPPER" else (more, less)


def _conv(inputs: Inputs, attributes: Attributes) -> tuple[Array, ...]:
    x, w, bias = needed(inputs, 0), needed(inputs, 1), optional(inputs, 2)
    rank, groups = x.ndim - 2, attributes.get("group", 1)
    windows = windows_of(x, w.shape[2:], attributes, 0.0)
    batch, places = x.shape[0], windows.shape[2 : 2 + rank]
    # One product for each sample and group: [outputs, channels and kernel] by [channels and kernel, places].
    split = windows.reshape(batch, groups, x.shape[1] // groups, *places, *w.shape[2:])
    order = (0, 1, 2, *range(3 + rank, 3 + 2 * rank), *range(3, 3 + rank))
    columns = split.transpose(order).reshape(batch, groups, -1, math.prod(places))
    y = (w.reshape(groups, w.shape[0] // groups, -1) @ columns).reshape(batch, w.shape[0], *places)
    return (y if bias is None else y + bias.reshape(1, -1, *[1] * rank),)


def _max_pool(inputs: Inputs, attributes: Attributes) -> tuple[Array, ...]:
    x = needed(inputs, 0)
    kernel = attributes["kernel_shape"]
    windows = windows_of(x, kernel, attributes, -np.inf)
    return (windows.max(axis=tuple(range(-len(kernel), 0))),)


def _average_pool(inputs: Inputs, attributes: Attributes) -> tuple[Array, ...]:
    x = needed(inputs, 0)
    kernel = attributes["kernel_shape"]
    axes = tuple(range(-len(kernel), 0))
    total = windows_of(x, kernel, attributes, 0.0).sum(axis=axes)
    counted = 1.0 if attributes.get("count_include_pad") else 0.0
    return (total / windows_of(np.ones_like(x), kernel, attributes, counted, beyond=0.0).sum(axis=axes),)


def _batch_norm(inputs: Inputs, attributes: Attributes) -> tuple[Array, ...]:
    """Return the result alone: running statistics do not lead to the loss."""
    x, scale, bias, mean, variance = (needed(inputs, place) for place in range(5))
    if attributes.get("training_mode"):
        axes = (0, *range(2, x.ndim))
        mean, variance = x.mean(axis=axes), x.var(axis=axes)
    shape = (1, -1, *[1] * (x.ndim - 2))
    factor = scale / np.sqrt(variance + attributes.get("epsilon", 1e-5))
    return (((x - mean.reshape(shape)) * factor.reshape(shape)) + bias.reshape(shape),)


def _layer_norm(inputs: Inputs, attributes: Attributes) -> tuple[Array, ...]:
    x, scale, bias = needed(inputs, 0), needed(inputs, 1), optional(inputs, 2)
    axes = tuple(range(attributes.get("axis", -1) % x.ndim, x.ndim))
    mean = x.mean(axis=axes, keepdims=True)
    inverse = 1 / np.sqrt(x.var(axis=axes, keepdims=True) + attributes.get("epsilon", 1e-5))
    y = (x - mean) * inverse * scale
    return (y if bias is None else y + bias, mean, inverse)


def _rms_normalize(inputs: Inputs, attributes: Attributes) -> tuple[Array, ...]:
    x = needed(inputs, 0)
    inverse = 1 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + attributes["epsilon"])
    return x * inverse * needed(inputs, 1), inverse


def _rotate(inputs: Inputs, attributes: Attributes) -> tuple[Array, ...]:
    whole, tables = needed(inputs, 0), [needed(inputs, 1), needed(inputs, 2)]
    x = _with_heads(whole, attributes["heads"])
    count = attributes["rotated"]
    are_neighbours, sign = bool(attributes["interleaved"]), -1 if attributes["inverse"] else 1
    pairs = (
        (slice(0, count, 2), slice(1, count, 2)) if are_neighbours else (slice(0, count // 2), slice(count // 2, count))
    )
    y = x.copy()
    halves = [[table, table] if table.shape[-1] < count else [table[..., pair] for pair in pairs] for table in tables]
    (cos, other_cos), (sin, other_sin) = halves
    sin, other_sin = (other_sin, sin) if attributes["inverse"] else (sin, other_sin)
    first, second = (x[..., pair] for pair in pairs)
    y[..., pairs[0]] = first * cos - sign * second * sin
    y[..., pairs[1]] = second * other_cos + sign * first * other_sin
    return (y.reshape(whole.shape),)


def _with_heads(x: Array, heads: int) -> Array:
    """Return rows of several heads, each in a row of its own; others as they are."""
    return x.reshape(*x.shape[:-1], heads, -1) if heads else x


def _lp_norm(inputs: Inputs, attributes: Attributes) -> tuple[Array, ...]:
    x, p, axis = needed(inputs, 0), attributes.get("p", 2), attributes.get("axis", -1)
    length = (np.abs(x) ** p).sum(axis=axis, keepdims=True) ** (1 / p)
    return (np.divide(x, length, out=np.zeros_like(x), where=length != 0),)


def _cross_entropy(inputs: Inputs, attributes: Attributes) -> tuple[Array, ...]:
    scores, labels, weights = needed(inputs, 0), needed(inputs, 1), optional(inputs, 2)
    ignored = attributes.get("ignore_index")
    if (given := optional(inputs, 3)) is not None:
        ignored = int(given)
    shifted = scores - scores.max(axis=1, keepdims=True)
    log = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    counts = np.ones(labels.shape, bool) if ignored is None else labels != ignored
    index = np.where(counts, labels, 0)
    share = counts * (1.0 if weights is None else weights[index])
    losses = -np.take_along_axis(log, np.expand_dims(index, 1), axis=1).squeeze(1) * share
    kind = attributes.get("reduction", "mean")
    if kind == "none":
        return losses, log
    total = losses.sum()
    return np.asarray(total / share.sum() if kind == "mean" else total), log


def _vocabulary_loss(inputs: Inputs, attributes: Attributes) -> tuple[Array, ...]:
    """Return the loss alone: its gradient, which the operator makes besides, does not lead to the loss."""
    x, labels, matrix = (needed(inputs, place) for place in range(3))
    scores = x.reshape(-1, x.shape[-1]) @ (matrix.T if attributes["transposed"] else matrix)
    scores = scores + needed(inputs, 3) if attributes["biased"] else scores
    if attributes.get("capped"):
        cap = needed(inputs, 3 + attributes["biased"])
        scores = cap * np.tanh(scores / cap)
    ignored = {"ignore_index": attributes["ignore_index"]} if attributes["ignoring"] else {}
    return _cross_entropy([scores, labels.reshape(-1)], ignored)[:1]


def _attend(inputs: Inputs, attributes: Attributes) -> tuple[Array, ...]:
    flags, heads = attributes["tokens_first"], attributes["heads"]
    operands = (_with_heads(needed(inputs, i), heads[i]) for i in range(3))
    q, k, v = (np.swapaxes(each, 1, 2) if flag else each for each, flag in zip(operands, flags, strict=False))
    scale, cap = needed(inputs, 3)
    k, v = (np.repeat(each, q.shape[1] // k.shape[1], axis=1) for each in (k, v))
    scores = scale * (q @ np.swapaxes(k, 2, 3))
    scores = cap * np.tanh(scores / cap) if attributes["capped"] else scores
    scores = scores + needed(inputs, 4) if attributes["masked"] else scores
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = powers / powers.sum(axis=-1, keepdims=True)
    y = (np.nan_to_num(weights) if attributes["guarded"] else weights) @ v
    y = np.swapaxes(y, 1, 2) if flags[3] else y
    return (y.reshape(*y.shape[:2], -1) if heads[3] else y,)


def _add_low_rank(inputs: Inputs, attributes: Attributes) -> tuple[Array, ...]:
    base, x, first, second, scale = (needed(inputs, place) for place in range(5))
    first, second = (second.T, first.T) if attributes["transposed"] else (first, second)
    low = scale * (x @ first)
    y = base + low @ second
    return (y + needed(inputs, 5) if attributes["biased"] else y, low)


def _gelu(inputs: Inputs, attributes: Attributes) -> tuple[Array, ...]:
    x = needed(inputs, 0)
    bias = optional(inputs, 1)
    x = x if bias is None else x + bias
    if attributes.get("approximate", "none") == "tanh":
        return (0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),)
    return (0.5 * x * (1 + _erf(x)),)


def _erf(x: Array) -> Array:
    return np.asarray(_ERF(x / math.sqrt(2.0)))


def _gated_activate(inputs: Inputs, attributes: Attributes) -> tuple[Array, ...]:
    gate, up = needed(inputs, 0), needed(inputs, 1)
    kind = activations.ACTIVATIONS[attributes["activation"]]
    if kind == "silu":
        return (gate / (1 + np.exp(-gate)) * up,)
    return (_gelu([gate], {"approximate": "tanh" if kind == "gelu_tanh" else "none"})[0] * up,)


def _fast_gelu(inputs: Inputs, attributes: Attributes) -> tuple[Array, ...]:
    return _gelu(inputs, {**attributes, "approximate": "tanh"})


def _mat_mul(inputs: Inputs, _: Attributes) -> tuple[Array, ...]:
    a, b = (np.ascontiguousarray(needed(inputs, place)) for place in (0, 1))  # numpy multiplies others by itself
    if a.ndim > 2 and b.ndim == 2:
        return ((a.reshape(-1, a.shape[-1]) @ b).reshape(*a.shape[:-1], b.shape[-1]),)
    return (a @ b,)


def _fused_mat_mul(inputs: Inputs, attributes: Attributes) -> tuple[Array, ...]:
    if attributes.get("transBatchA") or attributes.get("transBatchB"):
        raise ValueError("transBatchA and transBatchB are not computed here")
    a, b = needed(inputs, 0), needed(inputs, 1)
    a = np.swapaxes(a, -1, -2) if attributes.get("transA") else a
    b = np.swapaxes(b, -1, -2) if attributes.get("transB") else b
    return (attributes.get("alpha", 1.0) * (a @ b),)


def _concat(inputs: Inputs, attributes: Attributes) -> tuple[Array, ...]:
    return (np.concatenate([each for each in inputs if each is not None], axis=attributes["axis"]),)


def _global_average(inputs: Inputs, _: Attributes) -> tuple[Array, ...]:
    x = needed(inputs, 0)
    return (x.mean(axis=tuple(range(2, x.ndim)), keepdims=True),)


_CONTRIBUTED = "com.microsoft"

OPERATORS: dict[tuple[str, str], Operator] = {
    **{(domain, "LayerNormalization"): _layer_norm for domain in ("", _CONTRIBUTED)},
    **{(domain, "Gelu"): _gelu for domain in ("", _CONTRIBUTED)},
    ("", "Conv"): _conv,
    ("", "MatMul"): _mat_mul,
    ("", "MaxPool"): _max_pool,
    ("", "AveragePool"): _average_pool,
    ("", "GlobalAveragePool"): _global_average,
    ("", "BatchNormalization"): _batch_norm,
    ("", "LpNormalization"): _lp_norm,
    ("", "SoftmaxCrossEntropyLoss"): _cross_entropy,
    (_CONTRIBUTED, "SoftmaxCrossEntropyLossInternal"): _cross_entropy,
    (POET_DOMAIN, attention.ATTEND): _attend,
    (POET_DOMAIN, activations.GATED_ACTIVATE): _gated_activate,
    (POET_DOMAIN, normalization.RMS_NORMALIZE): _rms_normalize,
    (POET_DOMAIN, low_rank.ADD): _add_low_rank,
    (POET_DOMAIN, rotary.ROTATE): _rotate,
    (POET_DOMAIN, vocabulary.WITH_GRADIENT): _vocabulary_loss,
    (_CONTRIBUTED, "BatchNormInternal"): _batch_norm,
    (_CONTRIBUTED, "BiasGelu"): _gelu,
    (_CONTRIBUTED, "FastGelu"): _fast_gelu,
    (_CONTRIBUTED, "FusedMatMul"): _fused_mat_mul,
    (_CONTRIBUTED, "ConcatTraining"): _concat,
}
"""What evaluates a node, by domain and operator."""
