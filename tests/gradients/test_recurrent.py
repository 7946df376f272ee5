"""Recurrent networks of torch, from the exporter to a rewritten step, and layers that are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from deep import sampled
from export_models import export_forward, quiet
from forward_models import parse, random, step
from onnx import load
from torch import nn
from torch.nn import functional

import poet_onnx
from poet_onnx.errors import InputError

STEPS, BATCH, WIDTH, HIDDEN, CLASSES = 5, 2, 6, 8, 5


class Classifier(nn.Module):
    """Two layers of a recurrent cell in both directions, and scores of the last state."""

    def __init__(self, cell: str) -> None:
        super().__init__()
        kind, *functions = cell.split()
        options = {"nonlinearity": functions[0]} if functions else {}
        self.cell = getattr(nn, kind)(WIDTH, HIDDEN, num_layers=2, bidirectional=True, **options)
        self.scores = nn.Linear(2 * HIDDEN, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the scores of each sequence."""
        return self.scores(self.cell(x)[0][-1])


@pytest.mark.parametrize("cell", sampled(["GRU", "LSTM", "RNN", "RNN relu"], "LSTM", "RNN relu"))
def test_an_exported_network_has_the_gradients_of_torch(cell: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, x = Classifier(cell), random(STEPS, BATCH, WIDTH)
    labels = np.array([1, 3])
    with quiet():
        forward = export_forward(module, {"x": torch.tensor(x)})
    made = poet_onnx.train_graph(forward)
    parameters = dict(module.named_parameters())
    assert set(made.values) == set(parameters)
    found, gradients = step(made, x=x, labels=labels)
    expected = functional.cross_entropy(module(torch.tensor(x)), torch.tensor(labels))
    expected.backward()
    assert found == pytest.approx(expected.item(), rel=1e-5)
    for name, parameter in parameters.items():
        assert parameter.grad is not None
        np.testing.assert_allclose(gradients[name], parameter.grad.numpy(), rtol=1e-4, atol=1e-6, err_msg=name)
    made.save(tmp_path / "made")
    path = tmp_path / "made" / "training_model.onnx"
    assert {node.op_type for node in load(path).graph.node}.isdisjoint({"GRU", "LSTM", "RNN"})
    if cell != "RNN":  # the smallest
        return
    result = poet_onnx.rewrite(path, device="a72", activation_budget="70%", time_limit_seconds=10)
    result.save(tmp_path / "rewritten.onnx")
    assert poet_onnx.verify(path, tmp_path / "rewritten.onnx").passed


@pytest.mark.parametrize("direction", ["forward", "reverse"])
@pytest.mark.parametrize(("kind", "gates"), [("GRU", 3), ("LSTM", 4), ("RNN", 1)])
def test_a_sequence_without_a_step_ends_in_zeros_as_in_onnx_runtime(kind: str, gates: int, direction: str) -> None:
    """Whatever its first state; no gradient goes there."""
    last = "y = Add(h, c)" if kind == "LSTM" else "y = Identity(h)"
    made, more = ("s, h, c", ", h0, c0") if kind == "LSTM" else ("s, h", ", h0")
    text = f"""g (float[4, 3, 6] x, int32[3] lengths) => (float[1, 3, 5] y) {{
        {made} = {kind} <hidden_size = 5, direction = "{direction}"> (x, w, r, , lengths{more})
        {last}
    }}"""
    arrays = {"w": random(1, 5 * gates, 6), "r": random(1, 5 * gates, 5), "h0": random(1, 3, 5), "c0": random(1, 3, 5)}
    model = parse(text, {name: array for name, array in arrays.items() if kind == "LSTM" or name != "c0"})
    x, lengths = random(4, 3, 6), np.array([4, 0, 2], np.int32)
    ours = poet_onnx.train_graph(model, loss="mse", train=["w", "h0"])
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
    expected = np.array(session.run(None, {"x": x, "lengths": lengths})[0])
    if kind == "RNN":  # onnxruntime-training 1.19 returns what its memory had before
        expected[0, 1] = 0
    target = random(1, 3, 5)
    loss, gradients = step(ours, x=x, lengths=lengths, target=target)
    assert loss == pytest.approx(np.mean((expected - target) ** 2), rel=1e-5)
    assert not expected[0, 1].any()
    assert not gradients["h0"][0, 1].any()
    assert gradients["h0"][0, 2].any()


@pytest.mark.parametrize(
    ("kind", "gates", "activations"),
    [
        ("RNN", 1, ["Softsign", "Relu"]),
        ("GRU", 3, ["Sigmoid", "Relu", "Softsign", "Tanh"]),
        ("LSTM", 4, ["Sigmoid", "Relu", "Relu", "Tanh", "Softplus", "Sigmoid"]),
    ],
)
def test_other_activations_are_computed_as_by_onnx_runtime(kind: str, gates: int, activations: list[str]) -> None:
    """Each direction has its own; the gradients of what the layer becomes are those of its operators."""
    named = ", ".join(f'"{name}"' for name in activations)
    text = f"""g (float[4, 3, 6] x) => (float[4, 2, 3, 5] y) {{
        y = {kind} <hidden_size = 5, direction = "bidirectional", activations = [{named}]> (x, w, r, b)
    }}"""
    shapes = {"w": (2, 5 * gates, 6), "r": (2, 5 * gates, 5), "b": (2, 10 * gates)}
    model = parse(text, {name: random(*shape) for name, shape in shapes.items()})
    x, target = random(4, 3, 6), random(4, 2, 3, 5)
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
    expected = np.mean((session.run(None, {"x": x})[0] - target) ** 2)
    loss, gradients = step(poet_onnx.train_graph(model, loss="mse"), x=x, target=target)
    assert loss == pytest.approx(expected, rel=1e-5)
    assert all(gradients[name].any() for name in shapes)


@pytest.mark.parametrize(
    ("kind", "attributes", "inputs", "message"),
    [
        ("RNN", 'activations = ["Elu"]', "x, w, r", "its activations are Elu, not 1 of Relu, Sigmoid, Softplus,"),
        ("RNN", 'activations = ["Relu", "Relu"]', "x, w, r", "its activations are Relu, Relu, not 1 of Relu,"),
        ("RNN", "clip = 1.0", "x, w, r", "it has the attribute clip"),
    ],
)
def test_what_is_not_expanded_is_refused_by_name(kind: str, attributes: str, inputs: str, message: str) -> None:
    given = f"hidden_size = 4{', ' if attributes else ''}{attributes}"
    text = f"g (float[3, 2, 5] x) => (float[1, 2, 4] y) {{ skipped, y = {kind} <{given}> ({inputs}) }}"
    model = parse(text, {"w": random(1, 4, 5), "r": random(1, 4, 4)})
    with pytest.raises(InputError, match=message):
        poet_onnx.train_graph(model, loss="mse")


def test_a_frozen_layer_with_nothing_to_train_before_it_stays() -> None:
    torch.manual_seed(0)
    module, x, labels = Classifier("GRU"), random(STEPS, BATCH, WIDTH), np.array([1, 3])
    with quiet():
        forward = export_forward(module, {"x": torch.tensor(x)})
    made = poet_onnx.train_graph(forward, train="scores.*")
    assert [node.op_type for node in made.training.graph].count("GRU") == 2
    found, gradients = step(made, x=x, labels=labels)
    expected = functional.cross_entropy(module(torch.tensor(x)), torch.tensor(labels))
    expected.backward()
    assert found == pytest.approx(expected.item(), rel=1e-5)
    for name, gradient in gradients.items():
        exact = module.get_parameter(name).grad
        assert exact is not None
        np.testing.assert_allclose(gradient, exact.numpy(), rtol=1e-4, atol=1e-6)
    rewritten = poet_onnx.rewrite(made.training, device="a72", target="stock", optimizer="sgd", paging=False)
    assert [node.op_type for node in rewritten.model.graph].count("GRU") == 2
