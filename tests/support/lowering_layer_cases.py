"""Gradients of layers: convolutions, pooling, normalization."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from lowering_case import Array, Case, Random, node


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
    rank = x.ndim - 2
    turn = (functional.conv_transpose1d, functional.conv_transpose2d, functional.conv_transpose3d)[rank - 1]
    pads, extra = options.get("pads", [0] * rank)[:rank], options.get("output_padding", 0)
    y = turn(x, w, bias, options.get("strides", 1), pads, extra, group, options.get("dilations", 1))
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
        (2, (3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
        (1, (3,), {"strides": [2]}),
        (2, (4,), {"strides": [3], "pads": [1, 1], "output_padding": [1]}),
        (1, (2, 2, 2), {"strides": [2, 2, 2]}),
        (2, (3, 2, 3), {"pads": [1, 0, 1, 1, 0, 1], "dilations": [1, 2, 1]}),
    ]
    for index, (batch, kernel, options) in enumerate(grid):
        random = Random(80 + index)
        rank = len(kernel)
        strides, dilations = options.get("strides", [1] * rank), options.get("dilations", [1] * rank)
        pads, group = options.get("pads", [0] * 2 * rank), options.get("group", 1)
        image, extra = (5, 6, 4)[:rank], options.get("output_padding", [0] * rank)
        sizes = [
            (image[i] - 1) * strides[i] + dilations[i] * (kernel[i] - 1) + 1 - pads[i] - pads[rank + i] + extra[i]
            for i in range(rank)
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
            (batch, 2, 4, (140, 9), (3, 3), {"pads": [1, 1, 1, 1], "group": 2}),
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
        random = Random(index)
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
        random = Random(100 + index)
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
            d_y = {"dy": feeds["dy"]}
            means = {"kernel_shape": kernel, **options, "count_include_pad": include}
            # That of onnxruntime-training knows no third dimension.
            torch = functools.partial(torch_average_gradient, d_y, x.shape, means) if len(image) > 2 else None
            yield Case(f"AveragePoolGrad-{name}-{include}", (made,), d_y, {"dx": x.shape}, oracle=torch)
    # ONNX Runtime 1.19.2 takes means over what a last window has behind the padding, too.
    rounded: list[tuple[tuple[int, int], tuple[int, int], int, int, int]] = [
        ((9, 9), (4, 4), 4, 3, 1),
        ((8, 8), (4, 4), 3, 2, 0),
        ((8, 7), (4, 3), 3, 2, 0),
        ((2, 2), (1, 1), 3, 3, 1),
    ]
    for index, (image, places, size, stride, padding) in enumerate(rounded):
        feeds, shape = {"dy": Random(120 + index).floats(2, 3, *places)}, (2, 3, *image)
        window = {"kernel_shape": [size] * 2, "strides": [stride] * 2, "pads": [padding] * 4, "ceil_mode": 1}
        for include in (0, 1):
            options = {**window, "count_include_pad": include}
            made = node("AveragePoolGrad", "dy", "dx", domain="", **options)
            oracle = functools.partial(torch_average_gradient, feeds, shape, options)
            yield Case(f"AveragePoolGrad-ceil-{index}-{include}", (made,), feeds, {"dx": shape}, oracle=oracle)


def torch_average_gradient(
    feeds: dict[str, Array], shape: tuple[int, ...], options: dict[str, Any]
) -> dict[str, Array]:
    """Return the gradient of means over windows as torch computes it, in double."""
    import torch
    from torch.nn import functional

    x = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    rank = len(options["kernel_shape"])
    pool = functional.avg_pool2d if rank == 2 else functional.avg_pool3d
    window = options["kernel_shape"], options["strides"], options.get("pads", [0] * rank)[:rank]
    ceil = bool(options.get("ceil_mode", 0))
    y = pool(x, *window, ceil_mode=ceil, count_include_pad=bool(options["count_include_pad"]))
    (gradient,) = torch.autograd.grad(y, x, torch.from_numpy(feeds["dy"].astype(np.float64)))
    return {"dx": gradient.numpy()}


def resized_gradient(feeds: dict[str, Array], shape: tuple[int, ...], node: onnx.NodeProto) -> dict[str, Array]:
    """Return a resize's gradient: what ONNX Runtime's Resize makes of each unit vector, times dY."""
    import onnxruntime

    count = math.prod(shape)
    unit = np.eye(count, dtype=np.float32).reshape(count, *shape)
    info = onnx.helper.make_tensor_value_info
    ends = [info("x", 1, shape)], [info("y", 1, feeds["dy"].shape)]
    scales = onnx.numpy_helper.from_array(np.array(feeds["dy"].shape, np.float32) / np.array(shape, np.float32), "s")
    forward = onnx.helper.make_node("Resize", ["x", "", "s"], ["y"])
    forward.attribute.extend(node.attribute)
    graph = onnx.helper.make_graph([forward], "resize", *ends, [scales])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 15)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    resized = np.stack([session.run(None, {"x": one})[0] for one in unit]).astype(np.float64)
    return {"dx": (resized * feeds["dy"]).reshape(count, -1).sum(1).reshape(shape)}


def resizing_cases() -> Iterator[Case]:
    """Yield gradients of resizing, for which ONNX Runtime has no CPU kernel."""
    half, corners = "half_pixel", "align_corners"
    grid: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
        ((2, 3, 4, 5), (8, 10), {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"}),
        ((1, 2, 4, 5), (12, 5), {"mode": "nearest", "coordinate_transformation_mode": half}),
        ((1, 2, 4, 6), (6, 3), {"mode": "nearest", "coordinate_transformation_mode": "asymmetric"}),
        ((2, 2, 4, 5), (8, 10), {"mode": "linear", "coordinate_transformation_mode": half}),
        ((1, 2, 4, 5), (7, 9), {"mode": "linear", "coordinate_transformation_mode": corners}),
        ((1, 2, 6, 8), (3, 4), {"mode": "linear", "coordinate_transformation_mode": half}),
        ((1, 2, 4, 4), (8, 8), {"mode": "cubic", "coordinate_transformation_mode": half}),
        ((1, 2, 7), (14,), {"mode": "linear", "coordinate_transformation_mode": half}),
    ]
    for index, (shape, sizes, options) in enumerate(grid):
        random = Random(150 + index)
        large = (*shape[:2], *sizes)
        feeds = {"dy": random.floats(*large), "x": random.floats(*shape)}
        made = node("ResizeGrad", "dy x - scales", "dx", **{"nearest_mode": "floor", **options})
        scales = np.array(large, np.float32) / np.array(shape, np.float32)
        oracle = functools.partial(resized_gradient, feeds, shape, made)
        yield Case(f"ResizeGrad-{index}", (made,), feeds, {"dx": shape}, {"scales": scales}, oracle=oracle)


def batch_normalization(name: str, x: Array, random: Random) -> Case:
    """Return a batch normalization in training of x, with random numbers for each channel."""
    channels = x.shape[1]
    numbers = {name: random.floats(channels) for name in ("scale", "bias", "mean")}
    feeds = {"x": x, **numbers, "variance": np.abs(random.floats(channels)) + 1}
    made = node(
        "BatchNormInternal",
        "x scale bias mean variance",
        "y nm nv sm si",
        epsilon=1e-5,
        momentum=0.9,
        training_mode=1,
    )
    return Case(name, (made,), feeds, {"y": None, "sm": None, "si": None})


def normalization_cases() -> Iterator[Case]:
    """Yield batch and layer normalization: forward where it trains, and gradients."""
    for index, shape in enumerate([(2, 5, 6, 6), (1, 5, 7, 9), (4, 5, 33), (16, 5), (2, 3, 4, 4, 4), (1, 64, 1, 2)]):
        random = Random(200 + index)
        x = random.floats(*shape) * 3 + 2
        axes = (0, *range(2, len(shape)))
        forward = batch_normalization(f"BatchNormInternal-{index}", x, random)
        yield forward
        backward = {
            "dy": random.floats(*shape),
            "x": x,
            "scale": forward.feeds["scale"],
            "m": x.mean(axes),
            "i": (1 / np.sqrt(x.var(axes) + 1e-5)).astype(np.float32),
        }
        made = node("BatchNormalizationGrad", "dy x scale m i", "dx ds db", epsilon=1e-5)
        yield Case(f"BatchNormalizationGrad-{index}", (made,), backward, {"dx": None, "ds": None, "db": None})
    places = [((3, 4, 6), -1), ((3, 4, 6), 1), ((5, 33), 1), ((2, 3, 4, 5), 2), ((300, 40), 1), ((2, 9000), 1)]
    for index, (shape, axis) in enumerate(places):
        random = Random(300 + index)
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
        if max(shape) > 100:  # where the kernel goes on in double
            continue
        made = node("SimplifiedLayerNormalizationGrad", "dy x scale i", "dx ds", axis=axis)
        feeds = {"dy": dy, "x": x, "scale": scale, "i": root}
        yield Case(f"SimplifiedLayerNormalizationGrad-{index}", (made,), feeds, {"dx": None, "ds": None})
        made = node("InvertibleLayerNormalizationGrad", "dy y scale bias i", "dx ds db", axis=axis)
        feeds = {"dy": dy, "y": y, "scale": scale, "bias": bias, "i": inverse}
        yield Case(f"InvertibleLayerNormalizationGrad-{index}", (made,), feeds, outputs)
