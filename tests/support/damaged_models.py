"""Small training models that hold every kind of training operator, to be damaged."""

from __future__ import annotations

from pathlib import Path

from onnx import helper
from small_models import export_small


def images(folder: Path) -> Path:
    """Return a net of convolutions, normalization, pooling and dropout."""
    window = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c1", "s", "o", "m", "v"], ["n", "nm", "nv"], training_mode=1),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], **window),
        helper.make_node("Conv", ["p", "w2"], ["c2"], kernel_shape=[3, 3], group=2),
        helper.make_node("AveragePool", ["c2"], ["a"], **window),
        helper.make_node("Flatten", ["a"], ["f"]),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["scores"]),
    ]
    shapes = {"w1": (4, 2, 3, 3), "b1": (4,), "s": (4,), "o": (4,), "m": (4,), "v": (4,), "w2": (4, 2, 3, 3)}
    shapes |= {"w3": (16, 3), "b3": (3,)}
    return export_small(folder, nodes, shapes, x=(2, 2, 12, 12), classes=3, frozen=["m", "v"])


def sequences(folder: Path) -> Path:
    """Return a net of embeddings, slices, concatenation, softmax, products and broadcast arithmetic."""
    ends = [helper.make_node("Constant", [], [str(end)], value_ints=[end]) for end in (0, 1, 3)]
    nodes = [
        *ends,
        helper.make_node("Cast", ["x"], ["i"], to=7),
        helper.make_node("Gather", ["table", "i"], ["e"]),
        helper.make_node("Slice", ["e", "0", "3", "1"], ["left"]),
        helper.make_node("Slice", ["e", "1", "3", "1"], ["right"]),
        helper.make_node("Concat", ["left", "right"], ["both"], axis=1),
        helper.make_node("Transpose", ["both"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["both", "turned"], ["scored"]),
        helper.make_node("Softmax", ["scored"], ["soft"], axis=2),
        helper.make_node("MatMul", ["soft", "both"], ["mixed"]),
        helper.make_node("Mul", ["mixed", "gain"], ["grown"]),
        helper.make_node("Tanh", ["grown"], ["bent"]),
        helper.make_node("ReduceMean", ["bent"], ["mean"], axes=[1], keepdims=0),
        helper.make_node("Dropout", ["mean"], ["kept"], seed=3),
        helper.make_node("MatMul", ["kept", "w"], ["scores"]),
    ]
    return export_small(folder, nodes, {"table": (9, 6), "gain": (6,), "w": (6, 3)}, x=(2, 4), classes=3)
