"""How much work an operator does: against hand counts, and against the layers of real models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from poet_onnx.costing.flops import count_work
from poet_onnx.graph import Node, Phase, Residency, Tensor, TrainingGraph
from poet_onnx.graph.extract import extract, load_model
from poet_onnx.graph.operators import Work
from poet_onnx.passes.normalize import normalize


def work(
    op: str,
    inputs: list[tuple[int, ...] | None],
    outputs: list[tuple[int, ...] | None],
    *,
    view: bool = False,
    **attributes: Any,
) -> Work:
    tensors: dict[str, Tensor] = {}
    names: dict[str, tuple[str, ...]] = {}
    for kind, shapes in (("x", inputs), ("y", outputs)):
        names[kind] = tuple(f"{kind}{i}" if shape is not None else "" for i, shape in enumerate(shapes))
        for name, shape in zip(names[kind], shapes, strict=True):
            if shape is not None:
                size = 4
                for dimension in shape:
                    size *= dimension
                residency = Residency.RESIDENT if kind == "x" else Residency.OUTPUT
                tensors[name] = Tensor(name, "FLOAT", shape, size, name, residency)
    node = Node("node", op, "", names["x"], names["y"], attributes, Phase.FORWARD, True, view=view)
    return count_work(TrainingGraph("one", (node,), tensors, (), (), ""), node)


X, W, Y = (2, 8, 10, 10), (16, 8, 3, 3), (2, 16, 10, 10)
MACS = 2 * 16 * 10 * 10 * 8 * 9
COLUMN_BYTES = 2 * 4 * 2 * 8 * 9 * 100


@pytest.mark.parametrize(
    ("op", "inputs", "outputs", "attributes", "matmul_flops"),
    [
        ("Conv", [X, W], [Y], {}, 2 * MACS),
        ("Conv", [X, (16, 2, 3, 3)], [Y], {"group": 4}, 2 * MACS // 4),
        ("ConvGrad", [Y, X, W], [X, W, (16,)], {}, 4 * MACS + 2 * 16 * 100),
        ("ConvGrad", [Y, X, W], [None, W], {}, 2 * MACS),
        ("ConvGrad", [Y, X, W], [X, None], {}, 2 * MACS),
        ("ConvTranspose", [Y, W], [X], {}, 2 * MACS),
        ("MatMul", [(4, 5, 6), (6, 7)], [(4, 5, 7)], {}, 2 * 4 * 5 * 6 * 7),
        ("MatMul", [(6,), (6,)], [()], {}, 12),
        ("Gemm", [(5, 6), (6, 7), (7,)], [(5, 7)], {}, 2 * 5 * 6 * 7),
        ("Gemm", [(6, 5), (6, 7)], [(5, 7)], {"transA": 1}, 2 * 5 * 6 * 7),
        ("FusedMatMul", [(4, 6, 5), (4, 6, 7)], [(4, 5, 7)], {"transA": 1}, 2 * 4 * 5 * 6 * 7),
        ("FusedMatMul", [(5, 4, 6), (4, 6, 7)], [(4, 5, 7)], {"transBatchA": 1}, 2 * 4 * 5 * 6 * 7),
        ("FusedMatMul", [(6, 4, 5), (4, 6, 7)], [(4, 5, 7)], {"transBatchA": 1, "transA": 1}, 2 * 4 * 5 * 6 * 7),
        ("Relu", [X], [X], {}, 0),
    ],
)
def test_matrix_products(op: str, inputs: Any, outputs: Any, attributes: dict[str, Any], matmul_flops: int) -> None:
    assert work(op, inputs, outputs, **attributes).matmul_flops == matmul_flops


@pytest.mark.parametrize(
    ("op", "inputs", "outputs", "attributes", "expected"),
    [
        ("Relu", [(4, 5)], [(4, 5)], {}, (20, 160)),
        ("Add", [(4, 5), (5,)], [(4, 5)], {}, (20, 180)),
        ("Conv", [X, W, (16,)], [Y], {}, (3200, 4 * (1600 + 1152 + 16 + 3200))),
        ("ConvGrad", [Y, X, W], [None, W], {}, (0, 4 * (3200 + 1600 + 1152 + 1152) + COLUMN_BYTES)),
        ("Softmax", [(4, 5)], [(4, 5)], {}, (240, 160)),
        ("MaxPool", [(1, 1, 4, 4)], [(1, 1, 2, 2)], {"kernel_shape": (2, 2)}, (16, 80)),
        ("AveragePoolGrad", [(1, 1, 2, 2)], [(1, 1, 4, 4)], {"kernel_shape": (2, 2)}, (16, 80)),
        ("BatchNormInternal", [X, (8,), (8,), (8,), (8,)], [X, (8,)], {}, (6 * 1600, 4 * (3200 + 40))),
        ("ReduceSum", [(4, 5), (1,)], [(5,)], {}, (20, 104)),
        ("InPlaceAccumulatorV2", [(4, 5), (4, 5), (1,)], [(1,)], {}, (20, 244)),
        ("Gather", [(1000, 8), (3,)], [(3, 8)], {}, (0, 192)),
        ("Transpose", [(4, 5)], [(5, 4)], {}, (0, 160)),
        ("ConstantOfShape", [(2,)], [(4, 5)], {}, (0, 80)),
        ("NeverHeardOf", [(4, 5)], [(4, 5)], {}, (20, 160)),
        ("SoftmaxCrossEntropyLoss", [(4, 5), (4,)], [(), (4, 5)], {}, (280, 180)),
    ],
)
def test_everything_else(
    op: str, inputs: Any, outputs: Any, attributes: dict[str, Any], expected: tuple[int, int]
) -> None:
    found = work(op, inputs, outputs, **attributes)
    assert (found.elementwise_flops, found.moved_bytes) == expected


def test_a_view_does_nothing() -> None:
    assert work("Reshape", [(4, 5), (1,)], [(20,)], view=True) == Work(0, 0, 0)


def graph_of(path: Path) -> TrainingGraph:
    model = load_model(path)
    normalize()(model)
    return extract(model)


def test_resnet18_takes_three_times_its_forward_products(model_path: Callable[..., Path]) -> None:
    graph = graph_of(model_path("resnet18"))
    forward = sum(count_work(graph, node).matmul_flops for node in graph.nodes if node.phase is Phase.FORWARD)
    total = sum(count_work(graph, node).matmul_flops for node in graph.nodes)
    assert forward == pytest.approx(2 * 0.5558e9, rel=0.01)  # 0.56 GMACs: He et al. 2016, for 32 x 32 pixels
    first_layer_data_gradient = 2 * 3 * 64 * 9 * 1024
    assert total == pytest.approx(3 * forward - first_layer_data_gradient, rel=0.01)
