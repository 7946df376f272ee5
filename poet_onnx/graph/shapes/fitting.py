"""Which inputs of ONNX Runtime's training operators fit together.

Their kernels take sizes from one input and read or write the others without a check: inputs that contradict each other
would corrupt memory. ONNX's own operators check what they are given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from poet_onnx.graph.shapes.types import RuleError, Site

Check: TypeAlias = Callable[[Site], None]


def check_fit(site: Site) -> None:
    """Check that a node's inputs fit together.

    Raises:
        RuleError: they do not.
    """
    check = CHECKS.get(site.op_type)
    if check is not None:
        check(site)


def _same(*indices: int) -> Check:
    """Return a check: the inputs have one element type and one shape."""

    def check(site: Site) -> None:
        first = site.type(indices[0])
        for index in indices[1:]:
            if site.type(index) != first:
                raise RuleError(f"{_said(site, indices[0])} and {_said(site, index)} are not alike")

    return check


def _same_shape(*indices: int) -> Check:
    def check(site: Site) -> None:
        for index in indices[1:]:
            _expect(site, index, site.type(indices[0]).shape)

    return check


def _said(site: Site, index: int) -> str:
    kind = site.type(index)
    return f"its input {index}, {kind.dtype.name} {list(kind.shape)},"


def _expect(site: Site, index: int, shape: Sequence[int]) -> None:
    if site.type(index).shape != tuple(shape):
        raise RuleError(f"its input {index} has shape {list(site.type(index).shape)} and must have {list(shape)}")


def _expect_count(site: Site, index: int, count: int) -> None:
    if site.type(index).elements != count:
        raise RuleError(f"its input {index} has {site.type(index).elements} elements and must have {count}")


def window_pixels(site: Site, image: Sequence[int], kernel: Sequence[int]) -> tuple[int, ...]:
    """Return how many places a node's window has over an image, in each dimension.

    Raises:
        RuleError: the window does not fit the image, or its attributes make no window.
    """
    rank = len(image)
    strides, dilations = site.numbers("strides", rank), site.numbers("dilations", rank)
    pads = site.numbers("pads", 2 * rank, 0)
    if len(kernel) != rank or min((*kernel, *strides, *dilations), default=1) < 1 or min(pads, default=0) < 0:
        raise RuleError(
            f"kernel {list(kernel)}, strides {list(strides)}, dilations {list(dilations)} and pads {list(pads)} "
            f"make no window over an image of {list(image)}"
        )
    automatic = site.attributes.get("auto_pad", "NOTSET")
    if automatic in ("SAME_UPPER", "SAME_LOWER"):
        return tuple(math.ceil(size / stride) for size, stride in zip(image, strides, strict=True))
    if automatic not in ("NOTSET", "VALID", ""):
        raise RuleError(f"it has no padding of the kind {automatic!r}")
    pixels = []
    for axis, size in enumerate(image):
        padded = size + (pads[axis] + pads[rank + axis] if automatic != "VALID" else 0)
        beyond = padded - dilations[axis] * (kernel[axis] - 1) - 1
        if beyond < 0:
            raise RuleError(f"its kernel {list(kernel)} is larger than its padded image of {list(image)}")
        rounded = math.ceil if site.integer("ceil_mode", 0) else math.floor
        pixels.append(rounded(beyond / strides[axis]) + 1)
    return tuple(pixels)


def _conv_grad(site: Site) -> None:
    image, weight = site.type(1), site.type(2)
    groups = site.integer("group", 1)
    if len(image.shape) < 3 or len(weight.shape) != len(image.shape):
        raise RuleError(f"{_said(site, 1)} and {_said(site, 2)} are no image and no filters over it")
    if groups < 1 or weight.shape[0] % groups or image.shape[1] != weight.shape[1] * groups:
        raise RuleError(f"{_said(site, 1)} and {_said(site, 2)} do not make {groups} groups")
    kernel = weight.shape[2:]
    if site.numbers("kernel_shape", len(kernel), None) not in ((), kernel):
        raise RuleError(f"its kernel_shape is not that of {_said(site, 2)}".rstrip(","))
    _expect(site, 0, (image.shape[0], weight.shape[0], *window_pixels(site, image.shape[2:], kernel)))
    _same_kinds(site, 0, 1, 2)


def _same_kinds(site: Site, *indices: int) -> None:
    kinds = {site.type(index).dtype.name for index in indices}
    if len(kinds) > 1:
        raise RuleError(f"its inputs are of the element types {', '.join(sorted(kinds))}, not of one")


def _pool_grad(site: Site) -> None:
    """MaxPoolGrad(dY, indices) and AveragePoolGrad(dY): what is declared of dX must be what was pooled."""
    pooled, whole = site.type(0), site.declared[0]
    if site.op_type == "MaxPoolGrad":
        _expect(site, 1, pooled.shape)
        maker, sources = site.source_op(1), site.source_types(1)
        if maker not in ("", "MaxPool"):
            raise RuleError(f"its indices are made by {maker}, not by a MaxPool")
        read = sources[0] if sources else None
        if read is not None and whole is not None and whole.shape != read.shape:
            raise RuleError(
                f"its output is declared as {list(whole.shape)}, and the MaxPool that made its indices "
                f"read {list(read.shape)}"
            )
    elif whole is not None:
        _expect_average(site, whole.shape)


def _expect_average(site: Site, whole: tuple[int, ...]) -> None:
    if len(whole) < 3 or "kernel_shape" not in site.attributes:
        raise RuleError(f"it pools no image of shape {list(whole)}")
    pixels = window_pixels(site, whole[2:], site.numbers("kernel_shape", len(whole) - 2))
    if site.integer("ceil_mode", 0) and site.type(0).shape != (*whole[:2], *pixels):
        # Some versions of the kernels leave out a last window that would lie in the padding alone.
        strides, begins = site.numbers("strides", len(pixels)), site.numbers("pads", 2 * len(pixels), 0)
        starts = [(count - 1) * stride - begin for count, stride, begin in zip(pixels, strides, begins, strict=False)]
        pixels = tuple(count - (start >= size) for count, start, size in zip(pixels, starts, whole[2:], strict=True))
    _expect(site, 0, (*whole[:2], *pixels))


def _channels(*indices: int) -> Check:
    """Return a check: the inputs are vectors with one element for each channel of input indices[0]."""

    def check(site: Site) -> None:
        shape = site.type(indices[0]).shape
        if len(shape) < 2:
            raise RuleError(f"{_said(site, indices[0])} has no channels")
        for index in indices[1:]:
            _expect(site, index, (shape[1],))

    return check


def _both(*checks: Check) -> Check:
    def check(site: Site) -> None:
        for each in checks:
            each(site)

    return check


def _rows(data: int, per_column: Sequence[int], per_row: Sequence[int]) -> Check:
    """Return a check of a normalization over the axes from `axis` on: which inputs it has for each column and row."""

    def check(site: Site) -> None:
        shape = site.type(data).shape
        axis = site.axis(-1, len(shape))
        for index in per_column:
            if site.has(index):
                _expect_count(site, index, math.prod(shape[axis:]))
        for index in per_row:
            _expect_count(site, index, math.prod(shape[:axis]))

    return check


def _labels(scores: int) -> Check:
    """Return a check of a loss: scores [N, C, D...], behind them labels [N, D...] and perhaps weights [C]."""

    def check(site: Site) -> None:
        shape = site.type(scores).shape
        if len(shape) < 2:
            raise RuleError(f"{_said(site, scores)} has no classes")
        if site.type(scores + 1).dtype.name not in ("INT32", "INT64"):
            raise RuleError(f"its labels, input {scores + 1}, are {site.type(scores + 1).dtype.name}, not integers")
        _expect(site, scores + 1, (shape[0], *shape[2:]))
        if site.has(scores + 2) and site.type(scores + 2).shape:
            _expect(site, scores + 2, (shape[1],))

    return check


def _loss_gradient(site: Site) -> None:
    if site.attributes.get("reduction", "mean") == "none":
        _expect(site, 0, site.type(2).shape)
    else:
        _expect_count(site, 0, 1)


def _accumulator(site: Site) -> None:
    _expect(site, 1, site.type(0).shape)
    if site.has(2):
        _expect_count(site, 2, 1)


def _gather_gradient(site: Site) -> None:
    shape, indices = site.integers(0), site.type(1)
    axis = site.axis(0, len(shape))
    _expect(site, 2, (*shape[:axis], *indices.shape, *shape[axis + 1 :]))


def _gather_elements_gradient(site: Site) -> None:
    shape = site.integers(1)
    site.axis(0, len(shape))
    _expect(site, 2, site.type(0).shape)
    if len(shape) != len(site.type(0).shape):
        raise RuleError(f"{_said(site, 0)} has another rank than {list(shape)}")


def _gather_nd_gradient(site: Site) -> None:
    shape, indices = site.integers(0), site.type(1).shape
    batch = site.integer("batch_dims", 0)
    depth = indices[-1] if indices else -1
    fits = 0 <= batch < len(indices) and 0 <= depth <= len(shape) - batch
    if not fits or indices[:batch] != shape[:batch]:
        raise RuleError(f"indices of shape {list(indices)} do not point into {list(shape)}")
    _expect(site, 2, (*indices[:-1], *shape[batch + depth :]))


def _slice_gradient(site: Site) -> None:
    """SliceGrad(dY, shape, starts, ends, axes, steps): dY is what the slice takes."""
    shape = list(site.integers(1))
    starts, ends = site.integers(2), site.integers(3)
    axes = site.integers(4) if site.has(4) else tuple(range(len(starts)))
    steps = site.integers(5) if site.has(5) else (1,) * len(starts)
    rank = len(shape)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise RuleError("its starts, ends, axes and steps do not belong together")
    if any(not -rank <= axis < rank for axis in axes) or len({axis % rank for axis in axes}) < len(axes):
        raise RuleError(f"its axes {list(axes)} are not axes of {rank} dimensions, each once")
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        size = shape[axis]
        past_front = step < 0 and end < -size
        shape[axis] = len(range(size)[slice(start, None if past_front else end, step)])
    _expect(site, 0, shape)


def _masked(site: Site) -> None:
    _expect(site, 1, site.type(0).shape)
    for index in (2, 3):
        if site.has(index):
            _expect_count(site, index, 1)


def _bias(last: int) -> Check:
    def check(site: Site) -> None:
        if site.has(last):
            _expect(site, last, site.type(0).shape[-1:])

    return check


def _scale(site: Site) -> None:
    _expect_count(site, 1, 1)


def _parts(site: Site) -> None:
    """ConcatTraining: parts that differ along its axis alone."""
    first = site.type(0).shape
    axis = site.axis(0, len(first))
    for index in range(1, len(site.types)):
        shape = site.type(index).shape
        length = shape[axis] if axis < len(shape) else 0
        _expect(site, index, (*first[:axis], length, *first[axis + 1 :]))
    _same_kinds(site, *range(len(site.types)))


CHECKS: dict[str, Check] = {
    **dict.fromkeys(("ReluGrad", "SigmoidGrad", "TanhGrad", "LeakyReluGrad", "GeluGrad", "FastGeluGrad"), _same(0, 1)),
    **dict.fromkeys(("QuickGeluGrad", "SinGrad"), _same(0, 1)),
    **dict.fromkeys(("BiasGeluGrad_dX", "BiasFastGeluGrad_dX"), _both(_same(0, 1), _bias(2))),
    **dict.fromkeys(("SoftmaxGrad", "SoftmaxGrad_13", "LogSoftmaxGrad", "LogSoftmaxGrad_13"), _same(0, 1)),
    **dict.fromkeys(("BiasGelu", "FastGelu"), _bias(1)),
    **dict.fromkeys(("DropoutGrad", "BitmaskDropoutGrad"), _masked),
    "ConvGrad": _conv_grad,
    "MaxPoolGrad": _pool_grad,
    "AveragePoolGrad": _pool_grad,
    "BatchNormInternal": _channels(0, 1, 2, 3, 4),
    "BatchNormalizationGrad": _both(_same_shape(0, 1), _channels(1, 2, 3, 4)),
    "LayerNormalization": _rows(0, (1, 2), ()),
    "SimplifiedLayerNormalization": _rows(0, (1,), ()),
    "LayerNormalizationGrad": _both(_same_shape(0, 1), _rows(1, (2,), (3, 4))),
    "SimplifiedLayerNormalizationGrad": _both(_same_shape(0, 1), _rows(1, (2,), (3,))),
    "InvertibleLayerNormalizationGrad": _both(_same_shape(0, 1), _rows(1, (2, 3), (4,))),
    **dict.fromkeys(("SoftmaxCrossEntropyLoss", "SoftmaxCrossEntropyLossInternal"), _labels(0)),
    "SoftmaxCrossEntropyLossGrad": _both(_labels(1), _loss_gradient),
    "SoftmaxCrossEntropyLossInternalGrad": _both(_labels(1), _loss_gradient),
    "GatherGrad": _gather_gradient,
    "GatherNDGrad": _gather_nd_gradient,
    "GatherElementsGrad": _gather_elements_gradient,
    "SliceGrad": _slice_gradient,
    "ConcatTraining": _parts,
    "Scale": _scale,
    "InPlaceAccumulator": _accumulator,
    "InPlaceAccumulatorV2": _accumulator,
    "SGDOptimizer": _same_shape(1, 2),
    "AdamOptimizer": _same_shape(2, 3, 4, 5),
}
"""By operator, whether ONNX Runtime registers it in its own domain or (as some versions do) in ONNX's."""
