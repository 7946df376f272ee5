"""Single training-only operators, in every form that gradient builders give them."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from lowering_case import Array, Case, Random, node
from lowering_layer_cases import (
    conv_cases,
    conv_transpose_cases,
    normalization_cases,
    pooling_cases,
    resizing_cases,
)


def activation_cases() -> Iterator[Case]:
    """Yield gradients of activations; the second input is X or Y, as the operator defines it."""
    for index, shape in enumerate([(3, 4, 6), (257,), (1, 2, 1, 5)]):
        random = Random(400 + index)
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
    x, dy = Random(450).floats(3, 4, 6), Random(451).floats(3, 4, 6)
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
        random = Random(500 + index)
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
    random = Random(590)
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
    random = Random(600)
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
    random = Random(700)
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
    *resizing_cases(),
    *normalization_cases(),
    *activation_cases(),
    *loss_cases(),
    *indexing_cases(),
    *other_cases(),
]
