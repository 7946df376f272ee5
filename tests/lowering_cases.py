"""Single training-only operators, in every form that gradient builders give them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx import helper

MICROSOFT = "com.microsoft"
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Case:
    """A graph around one operator.

    Attributes:
        name: unique.
        nodes: of the graph.
        feeds: graph inputs.
        outputs: graph outputs and their shapes, empty where ONNX Runtime can tell; the shape goes into the model.
        constants: initializers.
        opset: of ONNX's operators.
        oracle: computes the outputs, where ONNX Runtime 1.19.2 has no kernel or one that is wrong or crashes.
    """

    name: str
    nodes: tuple[onnx.NodeProto, ...]
    feeds: dict[str, Array]
    outputs: dict[str, tuple[int, ...] | None]
    constants: dict[str, Array] = field(default_factory=dict)
    opset: int = 15
    oracle: Callable[[], dict[str, Array]] | None = None

    def model(self) -> ir.Model:
        """Return the model."""
        infos = [_info(name, array.dtype, array.shape) for name, array in self.feeds.items()]
        ends = [
            helper.make_empty_tensor_value_info(name) if shape is None else _info(name, np.dtype(np.float32), shape)
            for name, shape in self.outputs.items()
        ]
        constants = [onnx.numpy_helper.from_array(array, name) for name, array in self.constants.items()]
        graph = helper.make_graph(self.nodes, "case", infos, ends, constants)
        imports = [helper.make_opsetid("", self.opset), helper.make_opsetid(MICROSOFT, 1)]
        return ir.from_proto(helper.make_model(graph, opset_imports=imports, ir_version=9))


def _info(name: str, dtype: np.dtype[Any], shape: Sequence[int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), shape)


def node(op_type: str, inputs: str, outputs: str, *, domain: str = MICROSOFT, **attributes: Any) -> onnx.NodeProto:
    """Return a node; names are words, "-" is an absent one."""
    names = [["" if word == "-" else word for word in text.split()] for text in (inputs, outputs)]
    return helper.make_node(op_type, *names, f"{op_type}_node", domain=domain, **attributes)


class _Random:
    """Random arrays, each case from a generator of its own."""

    def __init__(self, seed: int) -> None:
        self.generator = np.random.default_rng(seed)

    def floats(self, *shape: int, scale: float = 1.0) -> Array:
        return (self.generator.standard_normal(shape) * scale).astype(np.float32)

    def ints(self, high: int, *shape: int) -> Array:
        return self.generator.integers(0, high, shape)


def _windows(image: Sequence[int], kernel: Sequence[int], options: dict[str, Any]) -> list[int]:
    """Return the output's spatial shape."""
    rank = len(image)
    strides, dilations = options.get("strides", [1] * rank), options.get("dilations", [1] * rank)
    automatic = options.get("auto_pad", "NOTSET")
    pads = options.get("pads", [0] * 2 * rank)
    if automatic.startswith("SAME"):
        return [-(-size // stride) for size, stride in zip(image, strides, strict=True)]
    return [
        (image[i] + pads[i] + pads[rank + i] - dilations[i] * (kernel[i] - 1) - 1) // strides[i] + 1
        for i in range(rank)
    ]


def _pads(image: Sequence[int], kernel: Sequence[int], options: dict[str, Any]) -> list[int]:
    """Return a convolution's padding, begins and ends, as numbers."""
    rank, automatic = len(image), options.get("auto_pad", "NOTSET")
    if not automatic.startswith("SAME"):
        return list(options.get("pads", [0] * 2 * rank))
    strides = options.get("strides", [1] * rank)
    totals = [max(0, (-(-i // s) - 1) * s + k - i) for i, s, k in zip(image, strides, kernel, strict=True)]
    small, large = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return [*small, *large] if automatic == "SAME_UPPER" else [*large, *small]


def torch_conv_gradient(feeds: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
    """Return a convolution's gradients as torch computes them, in double."""
    import torch
    from torch.nn import functional

    dy, x, w = (torch.from_numpy(feeds[name].astype(np.float64)) for name in ("dy", "x", "w"))
    bias = torch.zeros(w.shape[0], dtype=torch.float64)
    for tensor in (x, w, bias):
        tensor.requires_grad_(True)
    rank = x.ndim - 2
    pads = _pads(x.shape[2:], w.shape[2:], options)
    around = [size for axis in reversed(range(rank)) for size in (pads[axis], pads[rank + axis])]
    conv = (functional.conv1d, functional.conv2d, functional.conv3d)[rank - 1]
    strides, dilations = options.get("strides", 1), options.get("dilations", 1)
    y = conv(functional.pad(x, around), w, bias, strides, 0, dilations, options.get("group", 1))
    y.backward(dy)
    found = {"dx": x.grad, "dw": w.grad, "db": bias.grad}
    return {name: gradient.numpy() for name, gradient in found.items() if gradient is not None}


def torch_conv_transpose_gradient(feeds: dict[str, Array], options: dict[str, Any]) -> dict[str, Array]:
    """Return a transposed convolution's gradients as torch computes them, in double."""
    import torch
    from torch.nn import functional

    dy, x, w = (torch.from_numpy(feeds[name].astype(np.float64)) for name in ("dy", "x", "w"))
    group = options.get("group", 1)
    bias = torch.zeros(w.shape[1] * group, dtype=torch.float64)
    for tensor in (x, w, bias):
        tensor.requires_grad_(True)
    pads = options.get("pads", [0, 0, 0, 0])[:2]
    y = functional.conv_transpose2d(x, w, bias, options.get("strides", 1), pads, 0, group, options.get("dilations", 1))
    y.backward(dy)
    found = {"dx": x.grad, "dw": w.grad, "db": bias.grad}
    return {name: gradient.numpy() for name, gradient in found.items() if gradient is not None}


def conv_transpose_cases() -> Iterator[Case]:
    """Yield gradients of transposed convolutions, for which ONNX Runtime has no CPU kernel."""
    grid: list[tuple[int, tuple[int, ...], dict[str, Any]]] = [
        (1, (2, 2), {"strides": [2, 2]}),
        (3, (3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
        (2, (3, 3), {"dilations": [2, 1]}),
        (1, (3, 3), {"strides": [2, 1], "group": 2}),
    ]
    for index, (batch, kernel, options) in enumerate(grid):
        random = _Random(80 + index)
        strides, dilations = options.get("strides", [1, 1]), options.get("dilations", [1, 1])
        pads, group = options.get("pads", [0] * 4), options.get("group", 1)
        image = (5, 6)
        sizes = [
            (image[i] - 1) * strides[i] + dilations[i] * (kernel[i] - 1) + 1 - pads[i] - pads[2 + i] for i in range(2)
        ]
        feeds = {
            "dy": random.floats(batch, 6, *sizes),
            "x": random.floats(batch, 4, *image),
            "w": random.floats(4, 6 // group, *kernel),
        }
        made = node("ConvTransposeGrad", "dy x w", "dx dw db", kernel_shape=kernel, **options)
        oracle = functools.partial(torch_conv_transpose_gradient, feeds, options)
        shapes = {"dx": feeds["x"].shape, "dw": feeds["w"].shape, "db": (6,)}
        yield Case(f"ConvTransposeGrad-{index}", (made,), feeds, shapes, oracle=oracle)


def conv_cases() -> Iterator[Case]:
    """Yield convolution gradients: (batch, channels, filters, image, kernel, options)."""
    grid: list[tuple[int, int, int, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = []
    for batch in (1, 3):
        grid += [
            (batch, 4, 6, (9, 9), (3, 3), {"pads": [1, 1, 1, 1]}),
            (batch, 4, 6, (10, 9), (3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
            (batch, 4, 6, (10, 10), (3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
            (batch, 4, 8, (8, 8), (1, 1), {}),
            (batch, 4, 8, (8, 7), (1, 1), {"strides": [2, 2]}),
            (batch, 4, 6, (12, 11), (3, 3), {"pads": [2, 2, 2, 2], "dilations": [2, 2]}),
            (batch, 4, 6, (12, 11), (3, 2), {"strides": [2, 3], "pads": [1, 0, 2, 1], "dilations": [2, 1], "group": 2}),
            (batch, 8, 8, (9, 9), (3, 3), {"pads": [1, 1, 1, 1], "group": 8}),
            (batch, 6, 12, (9, 8), (3, 5), {"strides": [2, 2], "pads": [1, 2, 1, 2], "group": 6}),
            (batch, 6, 6, (19, 40), (3, 3), {"pads": [2, 2, 2, 2], "dilations": [2, 2], "group": 6}),
            (batch, 3, 8, (33, 32), (7, 7), {"strides": [2, 2], "pads": [3, 3, 3, 3]}),
            (batch, 3, 8, (33, 33), (16, 16), {"strides": [16, 16]}),
            (batch, 16, 4, (40, 40), (3, 3), {"pads": [1, 1, 1, 1]}),
            (batch, 4, 64, (4, 4), (3, 3), {"pads": [1, 1, 1, 1]}),
            (batch, 4, 6, (11, 8), (3, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
            (batch, 4, 6, (11, 8), (4, 3), {"strides": [2, 1], "auto_pad": "SAME_LOWER"}),
            (batch, 4, 6, (11, 8), (3, 3), {"auto_pad": "VALID"}),
            (batch, 4, 6, (15,), (3,), {"strides": [2], "pads": [1, 1]}),
            (batch, 4, 4, (16,), (5,), {"pads": [4, 0], "dilations": [2], "group": 4}),
            (batch, 4, 6, (6, 6, 5), (3, 3, 3), {"pads": [1, 1, 1, 1, 1, 1]}),
            (batch, 4, 6, (7, 6, 5), (2, 3, 1), {"strides": [2, 1, 2], "group": 2}),
        ]
    for index, (batch, channels, filters, image, kernel, options) in enumerate(grid):
        random = _Random(index)
        weight = (filters, channels // options.get("group", 1), *kernel)
        feeds = {
            "dy": random.floats(batch, filters, *_windows(image, kernel, options)),
            "x": random.floats(batch, channels, *image),
            "w": random.floats(*weight),
        }
        name = f"ConvGrad-{batch}x{channels}to{filters}-{'x'.join(map(str, image))}-{'x'.join(map(str, kernel))}"
        name += "".join(f"-{key}{value}" for key, value in options.items()).replace(" ", "")
        made = node("ConvGrad", "dy x w", "dx dw db", kernel_shape=kernel, **options)
        shapes = {"dx": feeds["x"].shape, "dw": weight, "db": (filters,)}
        # The kernel ignores auto_pad, and aborts where image and kernel are no pairs and there are groups.
        unfit = "auto_pad" in options or (len(image) != 2 and options.get("group", 1) > 1)
        oracle = functools.partial(torch_conv_gradient, feeds, options) if unfit else None
        yield Case(name, (made,), feeds, shapes, oracle=oracle)
        if index % 7 == 0:
            for wanted, outputs in (("dx", "dx"), ("dw", "- dw")):
                made = node("ConvGrad", "dy x w", outputs, kernel_shape=kernel, **options)
                yield Case(f"{name}-{wanted}", (made,), feeds, {wanted: shapes[wanted]}, oracle=oracle)


def pooling_cases() -> Iterator[Case]:
    """Yield gradients of maximum and average pooling."""
    grid: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
        ((8, 8), (2, 2), {"strides": [2, 2]}),
        ((9, 9), (3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ((7, 7), (3, 3), {}),
        ((9, 9), (2, 2), {"strides": [2, 2]}),
        ((9, 8), (3, 2), {"strides": [3, 2], "pads": [1, 0, 1, 1]}),
        ((12,), (3,), {"strides": [2]}),
        ((6, 6, 6), (2, 2, 2), {"strides": [2, 2, 2]}),
    ]
    for index, (image, kernel, options) in enumerate(grid):
        random = _Random(100 + index)
        x = random.floats(2, 3, *image)
        feeds = {"x": x, "dy": random.floats(2, 3, *_windows(image, kernel, options))}
        name = f"{'x'.join(map(str, image))}-{'x'.join(map(str, kernel))}-{index}"
        nodes = (
            node("MaxPool", "x", "y i", domain="", kernel_shape=kernel, **options),
            node("MaxPoolGrad", "dy i", "dx", domain="", kernel_shape=kernel, **options),
        )
        yield Case(f"MaxPoolGrad-{name}", nodes, feeds, {"dx": x.shape})
        for include in (0, 1):
            made = node(
                "AveragePoolGrad", "dy", "dx", domain="", kernel_shape=kernel, count_include_pad=include, **options
            )
            yield Case(f"AveragePoolGrad-{name}-{include}", (made,), {"dy": feeds["dy"]}, {"dx": x.shape})


def normalization_cases() -> Iterator[Case]:
    """Yield batch and layer normalization: forward where it trains, and gradients."""
    for index, shape in enumerate([(2, 5, 6, 6), (1, 5, 7, 9), (4, 5, 33), (16, 5), (2, 3, 4, 4, 4), (1, 64, 1, 2)]):
        random, channels = _Random(200 + index), shape[1]
        x = random.floats(*shape) * 3 + 2
        axes = (0, *range(2, len(shape)))
        numbers = {name: random.floats(channels) for name in ("scale", "bias", "mean")}
        forward = {"x": x, **numbers, "variance": np.abs(random.floats(channels)) + 1}
        made = node(
            "BatchNormInternal",
            "x scale bias mean variance",
            "y nm nv sm si",
            epsilon=1e-5,
            momentum=0.9,
            training_mode=1,
        )
        yield Case(f"BatchNormInternal-{index}", (made,), forward, {"y": None, "sm": None, "si": None})
        backward = {
            "dy": random.floats(*shape),
            "x": x,
            "scale": numbers["scale"],
            "m": x.mean(axes),
            "i": (1 / np.sqrt(x.var(axes) + 1e-5)).astype(np.float32),
        }
        made = node("BatchNormalizationGrad", "dy x scale m i", "dx ds db", epsilon=1e-5)
        yield Case(f"BatchNormalizationGrad-{index}", (made,), backward, {"dx": None, "ds": None, "db": None})
    for index, (shape, axis) in enumerate([((3, 4, 6), -1), ((3, 4, 6), 1), ((5, 33), 1), ((2, 3, 4, 5), 2)]):
        random = _Random(300 + index)
        x = random.floats(*shape)
        axes = tuple(range(axis % len(shape), len(shape)))
        mean, rest = x.mean(axes, keepdims=True), shape[axis % len(shape) :]
        inverse = (1 / np.sqrt(x.var(axes, keepdims=True) + 1e-5)).astype(np.float32)
        root = (1 / np.sqrt((x * x).mean(axes, keepdims=True) + 1e-5)).astype(np.float32)
        scale, bias = np.abs(random.floats(*rest)) + 0.5, random.floats(*rest)
        y = (x - mean) * inverse * scale + bias
        dy = random.floats(*shape)
        feeds = {"dy": dy, "x": x, "scale": scale, "m": mean, "i": inverse}
        outputs: dict[str, tuple[int, ...] | None] = {"dx": None, "ds": None, "db": None}
        made = node("LayerNormalizationGrad", "dy x scale m i", "dx ds db", axis=axis)
        yield Case(f"LayerNormalizationGrad-{index}", (made,), feeds, outputs)
        made = node("SimplifiedLayerNormalizationGrad", "dy x scale i", "dx ds", axis=axis)
        feeds = {"dy": dy, "x": x, "scale": scale, "i": root}
        yield Case(f"SimplifiedLayerNormalizationGrad-{index}", (made,), feeds, {"dx": None, "ds": None})
        made = node("InvertibleLayerNormalizationGrad", "dy y scale bias i", "dx ds db", axis=axis)
        feeds = {"dy": dy, "y": y, "scale": scale, "bias": bias, "i": inverse}
        yield Case(f"InvertibleLayerNormalizationGrad-{index}", (made,), feeds, outputs)


def activation_cases() -> Iterator[Case]:
    """Yield gradients of activations; the second input is X or Y, as the operator defines it."""
    for index, shape in enumerate([(3, 4, 6), (257,), (1, 2, 1, 5)]):
        random = _Random(400 + index)
        x, dy = random.floats(*shape) * 2, random.floats(*shape)
        feeds = {"dy": dy, "x": x}
        for op_type in ("ReluGrad", "GeluGrad", "FastGeluGrad"):
            yield Case(f"{op_type}-{index}", (node(op_type, "dy x", "dx"),), feeds, {"dx": None})
        for alpha in (0.0, 0.1, 1.5):
            made = node("LeakyReluGrad", "dy x", "dx", alpha=alpha)
            yield Case(f"LeakyReluGrad-{index}-{alpha}", (made,), feeds, {"dx": None})
        for alpha in (1.0, 1.702):
            made = node("QuickGeluGrad", "dy x", "dx", alpha=alpha)
            yield Case(f"QuickGeluGrad-{index}-{alpha}", (made,), feeds, {"dx": None})
        for op_type in ("BiasGeluGrad_dX", "BiasFastGeluGrad_dX"):
            made = node(op_type, "dy x b", "dx")
            yield Case(f"{op_type}-{index}", (made,), {**feeds, "b": random.floats(shape[-1])}, {"dx": None})
        for op_type, y in (("TanhGrad", np.tanh(x)), ("SigmoidGrad", 1 / (1 + np.exp(-x)))):
            made = node(op_type, "dy y", "dx")
            yield Case(f"{op_type}-{index}", (made,), {"dy": dy, "y": y.astype(np.float32)}, {"dx": None})
        relu = (node("Relu", "x", "y", domain=""), node("ReluGrad", "dy x", "dx"))
        yield Case(f"ReluGrad-{index}-ofX", relu, feeds, {"y": None, "dx": None})
        leaky = (node("LeakyRelu", "x", "y", domain="", alpha=0.2), node("LeakyReluGrad", "dy x", "dx", alpha=0.2))
        yield Case(f"LeakyReluGrad-{index}-ofX", leaky, feeds, {"y": None, "dx": None})
    x, dy = _Random(450).floats(3, 4, 6), _Random(451).floats(3, 4, 6)
    for axis in (-1, 0, 1):
        y = np.exp(x) / np.exp(x).sum(axis, keepdims=True)
        for op_type, made in (("SoftmaxGrad_13", y), ("LogSoftmaxGrad_13", np.log(y))):
            yield Case(
                f"{op_type}-{axis}", (node(op_type, "dy y", "dx", axis=axis),), {"dy": dy, "y": made}, {"dx": None}
            )
    for axis in (1, 2):
        flat = x.reshape(*x.shape[:axis], -1)
        y = (np.exp(flat) / np.exp(flat).sum(-1, keepdims=True)).reshape(x.shape)
        for op_type, made in (("SoftmaxGrad", y), ("LogSoftmaxGrad", np.log(y))):
            yield Case(
                f"{op_type}-{axis}", (node(op_type, "dy y", "dx", axis=axis),), {"dy": dy, "y": made}, {"dx": None}
            )


def loss_cases() -> Iterator[Case]:
    """Yield cross entropy and its gradient: reductions, weights, ignored labels, scores of two to four dimensions."""
    shapes = [(5, 7), (2, 7, 3), (2, 4, 3, 5)]
    grid = itertools.product(("mean", "sum", "none"), (None, -100, 3), (False, True), shapes)
    for index, (reduction, ignored, weighted, shape) in enumerate(grid):
        random = _Random(500 + index)
        scores = random.floats(*shape)
        labels = random.ints(shape[1], shape[0], *shape[2:])
        if ignored is not None:
            labels.flat[::3] = ignored
        log = (scores - np.log(np.exp(scores).sum(1, keepdims=True))).astype(np.float32)
        weights = {"weights": np.abs(random.floats(shape[1])) + 0.1} if weighted else {}
        attributes: dict[str, Any] = {"reduction": reduction} | ({} if ignored is None else {"ignore_index": ignored})
        name = f"{reduction}-{ignored}-{'weighted' if weighted else 'plain'}-{len(shape)}"
        made = node(
            "SoftmaxCrossEntropyLoss", "scores labels " + " ".join(weights), "loss log", domain="", **attributes
        )
        feeds = {"scores": scores, "labels": labels, **weights}
        yield Case(f"SoftmaxCrossEntropyLoss-{name}", (made,), feeds, {"loss": None, "log": None})
        dy = random.floats(*labels.shape) if reduction == "none" else np.array(1.7, np.float32)
        made = node("SoftmaxCrossEntropyLossGrad", "dy log labels " + " ".join(weights), "dx", **attributes)
        yield Case(
            f"SoftmaxCrossEntropyLossGrad-{name}",
            (made,),
            {"dy": dy, "log": log, "labels": labels, **weights},
            {"dx": None},
        )
    random = _Random(590)
    scores, labels = random.floats(6, 5), random.ints(5, 6)
    labels[1] = -1
    log = (scores - np.log(np.exp(scores).sum(1, keepdims=True))).astype(np.float32)
    ignored = {"ignored": np.array(-1)}
    made = node("SoftmaxCrossEntropyLossInternal", "scores labels - ignored", "loss log", reduction="mean")
    outputs: dict[str, tuple[int, ...] | None] = {"loss": None, "log": None}
    yield Case("SoftmaxCrossEntropyLossInternal", (made,), {"scores": scores, "labels": labels}, outputs, ignored)
    made = node("SoftmaxCrossEntropyLossInternalGrad", "dy log labels - ignored", "dx", reduction="mean")
    feeds = {"dy": np.array(0.3, np.float32), "log": log, "labels": labels}
    yield Case("SoftmaxCrossEntropyLossInternalGrad", (made,), feeds, {"dx": None}, ignored)
    everything = np.full(6, -1)
    yield Case(
        "SoftmaxCrossEntropyLossInternalGrad-all-ignored",
        (made,),
        {**feeds, "labels": everything},
        {"dx": None},
        ignored,
    )
    targets = np.abs(random.floats(6, 5))
    made = node("SoftmaxCrossEntropy", "scores targets", "loss log", reduction="mean")
    yield Case("SoftmaxCrossEntropy", (made,), {"scores": scores, "targets": targets}, outputs)
    made = node("SoftmaxCrossEntropyGrad", "dy log targets", "dx", reduction="mean")
    yield Case(
        "SoftmaxCrossEntropyGrad",
        (made,),
        {"dy": np.array(0.3, np.float32), "log": log, "targets": targets},
        {"dx": None},
    )


def _padded(x: Array, places: Array, dims: tuple[int, ...]) -> dict[str, Array]:
    y = np.zeros((int(np.prod(dims)), *x.shape[1:]), np.float32)
    y[places] = x
    return {"y": y.reshape(*dims, *x.shape[1:])}


def _sliced_gradient(dy: Array, shape: tuple[int, ...], where: tuple[slice, ...]) -> dict[str, Array]:
    dx = np.zeros(shape, np.float32)
    dx[where] = dy
    return {"dx": dx}


def indexing_cases() -> Iterator[Case]:
    """Yield gradients of gathers and slices."""
    random = _Random(600)
    for index, (shape, axis, places) in enumerate(
        [
            ((9, 4), 0, [[1, 3, 1], [8, 0, 1]]),
            ((3, 5, 4), 1, [1, 1, 4]),
            ((3, 5, 4), 1, 2),
            ((3, 5, 4), 2, [[0, 3], [3, 3]]),
            ((3, 5, 4), -1, [2]),
            ((50, 8), 0, list(range(0, 50, 3)) * 2),
        ]
    ):
        at = np.array(places)
        before, after = shape[: axis % len(shape)], shape[axis % len(shape) + 1 :]
        feeds = {"indices": at, "dy": random.floats(*before, *at.shape, *after)}
        made = node("GatherGrad", "shape indices dy", "dx", axis=axis)
        yield Case(f"GatherGrad-{index}", (made,), feeds, {"dx": None}, {"shape": np.array(shape)})
    for axis in (0, 1):
        indices = random.ints(3, 3, 4)
        made = node("GatherElementsGrad", "dy shape indices", "dx", axis=axis)
        feeds = {"dy": random.floats(3, 4), "indices": indices}
        yield Case(f"GatherElementsGrad-{axis}", (made,), feeds, {"dx": None}, {"shape": np.array([4, 5])})
    for batch, at, dy in ((0, random.ints(3, 5, 2), (5, 4)), (1, random.ints(3, 3, 6, 1), (3, 6, 4))):
        made = node("GatherNDGrad", "shape indices dy", "dx", batch_dims=batch)
        feeds = {"indices": at, "dy": random.floats(*dy)}
        yield Case(f"GatherNDGrad-{batch}", (made,), feeds, {"dx": None}, {"shape": np.array([3, 3, 4])})
    for index, (starts, ends, axes, steps) in enumerate(
        [
            ([1], [3], [0], [1]),
            ([1, -3], [7, 2**62], [1, 2], [2, 1]),
            ([-1], [0], [2], [-3]),
            ([0, 0, 1], [4, 8, 6], [0, 1, 2], [2, 2, 2]),
        ]
    ):
        constants = {
            name: np.array(value)
            for name, value in {
                "shape": (4, 8, 6),
                "starts": starts,
                "ends": ends,
                "axes": axes,
                "steps": steps,
            }.items()
        }
        where = [slice(None)] * 3
        for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
            where[axis] = slice(start, end, step)
        feeds = {"dy": random.floats(*np.zeros((4, 8, 6))[tuple(where)].shape)}
        made = node("SliceGrad", "dy shape starts ends axes steps", "dx")
        # The kernel cannot count backwards.
        oracle = functools.partial(_sliced_gradient, feeds["dy"], (4, 8, 6), tuple(where)) if min(steps) < 0 else None
        yield Case(f"SliceGrad-{index}", (made,), feeds, {"dx": None}, constants, oracle=oracle)
    made = node("ShrunkenGather", "x indices", "y", axis=0)
    x, places = random.floats(4, 3), np.array([5, 0, 2, 3])
    padded = node("PadAndUnflatten", "x places dims", "y")
    oracle = functools.partial(_padded, x, places, (2, 3))  # the training runtime has it for GPUs alone
    feeds, constants = {"x": x, "places": places}, {"dims": np.array([2, 3])}
    yield Case("PadAndUnflatten", (padded,), feeds, {"y": None}, constants, oracle=oracle)
    yield Case("ShrunkenGather", (made,), {"x": random.floats(6, 3), "indices": np.array([1, 4, 5])}, {"y": None})


def other_cases() -> Iterator[Case]:
    """Yield scaling, dropout, reductions, joins, accumulation."""
    random = _Random(700)
    x, mask = random.floats(3, 4, 6), random.ints(2, 3, 4, 6).astype(np.bool_)
    for down, factor in itertools.product((0, 1), (np.array(5), np.array(0.3, np.float32))):
        made = node("Scale", "x factor", "y", scale_down=down)
        label = f"Scale-{down}-{factor.dtype}"
        yield Case(f"{label}-constant", (made,), {"x": x}, {"y": None}, {"factor": factor})
        yield Case(f"{label}-fed", (made,), {"x": x, "factor": factor}, {"y": None})
    for ratio in (0.0, 0.3):
        made = node("DropoutGrad", "dy mask ratio training", "dx")
        constants = {"ratio": np.array(ratio, np.float32), "training": np.array(True)}
        feeds = {"dy": x, "mask": mask if ratio else np.ones_like(mask)}
        yield Case(f"DropoutGrad-{ratio}-constant", (made,), feeds, {"dx": None}, constants)
        yield Case(f"DropoutGrad-{ratio}-fed", (made,), {**feeds, **constants}, {"dx": None})
    for index, (axes, keep, noop) in enumerate(
        [([1], 1, 0), ([0, -1], 0, 0), ([], 1, 0), ([], 1, 1), ([0, 1, 2], 0, 0)]
    ):
        made = node("ReduceSumTraining", "x axes", "y", keepdims=keep, noop_with_empty_axes=noop)
        yield Case(f"ReduceSumTraining-{index}", (made,), {"x": x}, {"y": None}, {"axes": np.array(axes, np.int64)})
    for axis in (0, 1, -1):
        joined = node("ConcatTraining", "a b c", "y n", axis=axis)
        parts = {"a": x, "b": x * 2, "c": x * 3}
        yield Case(f"ConcatTraining-{axis}", (joined,), parts, {"y": None})
    for axis, lengths in ((0, [1, 2]), (1, [2, 1, 1]), (2, [6])):
        names = [f"y{i}" for i in range(len(lengths))]
        made = node("SplitTraining", "x n", " ".join(names), axis=axis)
        outputs: dict[str, tuple[int, ...] | None] = dict.fromkeys(names)
        yield Case(f"SplitTraining-{axis}", (made,), {"x": x}, outputs, {"n": np.array(lengths)})
    yield Case("ReduceAllL2", (node("ReduceAllL2", "a b", "y"),), {"a": x, "b": x[0]}, {"y": None})
    made = node("TransposeMatMul", "a b", "y", transB=1, alpha=0.5)
    yield Case("TransposeMatMul", (made,), {"a": x[0], "b": x[1]}, {"y": None})
    yield Case("FakeQuantGrad", (node("FakeQuantGrad", "dy mask", "dx"),), {"dy": x, "mask": mask}, {"dx": None})
    for overwrite in (False, True):
        feeds = {"buffer": x * 2, "gradient": x, "overwrite": np.array([overwrite])}
        made = node("InPlaceAccumulatorV2", "buffer gradient overwrite", "done")
        yield Case(f"InPlaceAccumulatorV2-{overwrite}", (made,), feeds, {"done": None})
        table = random.floats(12, 5)
        feeds = {
            "buffer": table,
            "indices": np.array([[1, 3, 1], [11, 0, 1]]),
            "dy": random.floats(2, 3, 5),
            "overwrite": np.array([overwrite]),
        }
        nodes = (
            node("GatherGrad", "shape indices dy", "dx", axis=0),
            node("Identity", "dx", "same", domain=""),
            node("InPlaceAccumulatorV2", "buffer same overwrite", "done"),
        )
        yield Case(
            f"GatherGrad-accumulated-{overwrite}", nodes, feeds, {"done": None}, {"shape": np.array(table.shape)}
        )


CASES = [
    *conv_cases(),
    *conv_transpose_cases(),
    *pooling_cases(),
    *normalization_cases(),
    *activation_cases(),
    *loss_cases(),
    *indexing_cases(),
    *other_cases(),
]
