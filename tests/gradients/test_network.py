"""Which network graphs are of: what changes its hash, and what does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from forward_models import normalized, parse, random

import poet_onnx
from poet_onnx.description.names import NETWORK_KEY
from poet_onnx.gradients.network import network_of

NET = """g (float[n, 3] x) => (float[n, 4] y) {
    first = MatMul(x, w)
    second = Tanh(first)
    shaped = Reshape(second, sizes)
    scaled = Mul(shaped, scale)
    y = MatMul(scaled, v)
}"""
DROPPED = NET.replace("second = Tanh(first)", "kept = Tanh(first) second = Dropout(kept, half, on)")
ARRAYS: dict[str, np.ndarray[Any, Any]] = {
    "w": random(3, 5),
    "v": random(5, 4),
    "scale": np.float32(2),
    "sizes": np.array([-1, 5]),
}


def net(text: str = NET, **arrays: Any) -> ir.Model:
    return parse(text, ARRAYS | {name: np.asarray(array) for name, array in arrays.items()})


def said(model: ir.Model, **options: Any) -> str:
    """Return what all graphs that are made of a forward model say."""
    options = {"loss": "mse", "dims": {"n": 2}, "train": ["w", "v"]} | options
    made = poet_onnx.train_graph(model, **options)
    networks = {each.metadata_props[NETWORK_KEY] for each in (made.training, made.evaluation)}
    assert len(networks) == 1
    return networks.pop()


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (net(w=random(3, 5) + 1), {}),
        (net(), {"dims": {"n": 7}}),
        (net(), {"loss": "l1"}),
        (net(DROPPED.replace("scaled", "other"), half=np.float32(0.5), on=True), {}),
        (net(sizes=np.array([2, 5])), {}),
        (net(NET.replace("[n,", "[2,")), {"dims": None}),
    ],
    ids=["other weights", "other batch", "other loss", "dropout and other names", "exported sizes", "fixed batch"],
)
def test_the_network_stays_the_same(model: ir.Model, options: dict[str, Any]) -> None:
    assert said(model, **options) == said(net())


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (net(NET.replace("Tanh", "Relu")), {}),
        (net(NET.replace("Tanh", "LeakyRelu<alpha = 0.1>")), {}),
        (net(NET.replace("Tanh", "LeakyRelu<alpha = 0.2>")), {}),
        (net(NET.replace("MatMul(scaled, v)", "MatMul(shaped, v)")), {}),
        (net(scale=np.float32(3)), {}),
        (net(), {"train": ["w"]}),
        (net(), {"train": None, "lora": "rank=2,targets=*"}),
    ],
    ids=["operator", "attribute", "attribute's number", "edge", "frozen number", "trained", "adapters"],
)
def test_another_network_has_another_hash(model: ir.Model, options: dict[str, Any]) -> None:
    found = [said(net()), said(net(NET.replace("Tanh", "LeakyRelu<alpha = 0.3>"))), said(model, **options)]
    assert len(set(found)) == len(found)


def test_modes_and_statistics_of_batch_normalizations_do_not_count() -> None:
    trained = ["w", "norm_scale", "norm_bias"]
    moved = normalized(1)
    moved.graph.initializers["mean"].const_value = ir.tensor(np.ones(3, np.float32))
    assert network_of(normalized(0), trained) == network_of(moved, trained)


def test_of_large_frozen_tensors_type_and_shape_count() -> None:
    text = "g (float[4, 200] x) => (float[4, 200] y) { y = MatMul(x, w) }"
    one, other = (parse(text, {"w": np.full((200, 200), number, np.float32)}) for number in (1, 2))
    assert network_of(one, []) == network_of(other, [])
    assert network_of(one, []) != network_of(parse(text, {"w": np.ones((200, 200), np.float64)}), [])
