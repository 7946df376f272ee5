"""Training graphs with weights of a few bits: they are frozen, and gradients are those of what they stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from adapter_models import Tensors, relative_error
from adapter_models import gradients as torch_gradients
from adapter_models import linear as adapted_linear
from forward_models import random, step
from onnx import TensorProto, helper, numpy_helper, parser
from quantized_models import BODY, GAIN, TABLE, UP, Weight, decoder, model_of, product_model
from torch import Tensor
from torch.nn import functional

import poet_onnx
from poet_onnx import Lora, TrainGraph
from poet_onnx.errors import InputError, PoetWarning

ERROR = 1e-5
"""Largest relative error of a gradient in single precision."""


def with_numbers(made: TrainGraph) -> TrainGraph:
    """Return a training graph whose adapters change what it computes."""
    values = {
        name: np.random.default_rng(len(name)).standard_normal(array.shape).astype(np.float32) * 0.1
        for name, array in made.values.items()
    }
    return TrainGraph(**{**vars(made), "values": values})


def check(made: TrainGraph, function: Callable[[Tensors], Tensor], **feeds: Any) -> None:
    """Compare the loss and all gradients with those of a function in double precision."""
    made = with_numbers(made)
    loss, found = step(made, **feeds)
    expected_loss, expected = torch_gradients(function, made.values)
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    assert set(found) == set(expected)
    assert {name: error for name in found if (error := relative_error(found[name], expected[name])) > ERROR} == {}


def double(array: np.ndarray[Any, Any]) -> Tensor:
    return torch.tensor(array.astype(np.float64))


@pytest.mark.parametrize("weight", [Weight(12, 64, has_zeros=True), Weight(12, 80, bits=8), BODY], ids=str)
def test_a_product_trains_its_adapter_and_its_bias(weight: Weight) -> None:
    made = poet_onnx.train_graph(
        product_model(weight, bias=True), loss="mse", lora=Lora("w", rank=4, alpha=6), train="b"
    )
    assert set(made.values) == {"b", "w.lora_A", "w.lora_B"}
    x, target = random(2, 5, weight.columns), random(2, 5, weight.rows)
    check(
        made,
        lambda each: functional.mse_loss(
            adapted_linear(double(x), double(weight.floats), each, "w", 1.5) + each["b"], double(target)
        ),
        x=x,
        target=target,
    )


@pytest.mark.parametrize("transposed", [False, True])
def test_a_decoder_trains_what_is_not_quantized_and_adapters_of_what_is(transposed: bool) -> None:
    made = poet_onnx.train_graph(
        decoder(transposed=transposed),
        loss="cross-entropy-last",
        lora=Lora("body*", rank=4, alpha=4),
        train=["g", "up"],
    )
    assert set(made.values) == {"g", "up", "body.lora_A", "body.lora_B"}
    ids, labels = np.array([[1, 5, 29], [0, 7, 7]]), np.array([[5, 29, 3], [7, 7, 1]])

    def loss(each: Tensors) -> Tensor:
        table = double(TABLE.floats)
        hidden = functional.layer_norm(table[torch.tensor(ids)], (TABLE.columns,), each["g"]) @ each["up"]
        hidden = adapted_linear(hidden, double(BODY.floats), each, "body", 1.0)
        return functional.cross_entropy((hidden @ table.T).reshape(-1, TABLE.rows), torch.tensor(labels).reshape(-1))

    check(made, loss, ids=ids, labels=labels)


def test_an_adapter_of_a_tied_table_serves_both() -> None:
    made = poet_onnx.train_graph(
        decoder(), loss="cross-entropy-last", lora=Lora("embed*", rank=4, alpha=4), freeze=["g", "up"]
    )
    assert made.adapters is not None
    (adapter,) = made.adapters.each
    assert (adapter.module, adapter.kind, len(adapter.sums)) == ("embed", "embedding", 2)
    ids, labels = np.array([[1, 5, 29], [0, 7, 7]]), np.array([[5, 29, 3], [7, 7, 1]])

    def loss(each: Tensors) -> Tensor:
        table = double(TABLE.floats) + each["embed.lora_embedding_A"] @ each["embed.lora_embedding_B"]
        normed = functional.layer_norm(table[torch.tensor(ids)], (TABLE.columns,), double(GAIN))
        hidden = normed @ double(UP) @ double(BODY.floats).T
        return functional.cross_entropy((hidden @ table.T).reshape(-1, TABLE.rows), torch.tensor(labels).reshape(-1))

    check(made, loss, ids=ids, labels=labels)


def test_a_quantized_weight_is_not_trained_itself() -> None:
    with pytest.raises(InputError, match="No parameter is named 'w'"):
        poet_onnx.train_graph(product_model(Weight(12, 64)), loss="mse", train="w")
    made = poet_onnx.train_graph(decoder(), loss="cross-entropy-last")
    assert set(made.values) == {"g", "up"}
    with pytest.raises(InputError, match=r"cannot have adapters: 'w' \(of rank 12 at most, below 13"):
        poet_onnx.train_graph(product_model(Weight(12, 64)), loss="mse", lora=Lora("w", rank=13))


def test_numbers_that_the_graph_itself_quantizes_are_refused() -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s"], ["q"], "q"),
        helper.make_node("DequantizeLinear", ["q", "s"], ["d"], "d"),
        helper.make_node("MatMul", ["d", "w"], ["y"], "m"),
    ]
    arrays = {"s": np.array(0.1, np.float32), "w": random(4, 3)}
    initializers = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    model = model_of(nodes, initializers, ("x", TensorProto.FLOAT, (2, 4)), ("y", (2, 3)))
    with pytest.raises(InputError, match="DequantizeLinear in 'd'; QuantizeLinear in 'q'"):
        poet_onnx.train_graph(model, loss="mse")


def test_a_model_in_memory_stays_as_it_is() -> None:
    node = helper.make_node("MatMul", ["x", "w"], ["y"], "w")
    numbers = numpy_helper.from_array(random(64, 32), "w")
    model = model_of([node], [numbers], ("x", TensorProto.FLOAT, (2, 64)), ("y", (2, 32)))
    before = model.SerializeToString()
    for _ in range(2):
        poet_onnx.train_graph(model, loss="mse", lora=Lora(("w",), rank=2), quantize="4bit")
    assert model.SerializeToString() == before


def test_large_tensors_that_keep_their_floats_are_told_of() -> None:
    """Such as the experts of a mixture, one matrix each in a tensor of three dimensions."""
    model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 21]>
        g (float[4, 8, 256] x) => (float[4, 8, 64] y) {
            h = MatMul (x, experts)
            s = MatMul (h, head)
            y = Add (s, bias)
        }""")
    random = np.random.default_rng(0)
    for name, shape in {"experts": (4, 256, 256), "head": (256, 64), "bias": (64,)}.items():
        array = random.standard_normal(shape, np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    with pytest.warns(PoetWarning, match=r"Frozen tensors of 1,048,576 bytes keep their floats, .*: 'experts'\."):
        made = poet_onnx.train_graph(model, loss="mse", train="bias", quantize="4bit")
    assert [node.op_type for node in made.training.graph].count("DequantizeLinear") == 1
