"""A table that is embedding and output layer trains as in torch, in parts with the bits of the whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from export_models import export_forward, quiet
from torch import Tensor, nn

import poet_onnx
from poet_onnx import SGD, TrainingSession

WORDS, WIDTH, TOKENS = 5000, 64, 12
STEPS, RATE = 3, 0.5


class Tied(nn.Module):
    """A language model of one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the scores of the next token, at each place."""
        scores: Tensor = self.head(torch.tanh(self.layer(self.table(tokens))))
        return scores


def batches() -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    generator = np.random.default_rng(5)
    return [generator.integers(0, WORDS, (1, TOKENS)) for _ in range(STEPS)]


@pytest.fixture(scope="module")
def forward(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tied, Path]:
    torch.manual_seed(3)
    net, path = Tied(), tmp_path_factory.mktemp("tied") / "net.onnx"
    with quiet():
        onnx.save(export_forward(net, {"tokens": torch.tensor(batches()[0])}), path)
    return net, path


def trained(forward: Path, folder: Path, **options: Any) -> tuple[dict[str, bytes], int, set[str]]:
    """Train some steps, and return what was learned, the step's bytes besides parameters, and its operators."""
    settings = {"device": "host", "target": "stock", "loss": "causal-lm", "optimizer": "sgd", "gap": 0.5} | options
    result = poet_onnx.rewrite(forward, **settings)
    folder.mkdir()
    result.save(folder / "net.onnx")
    store = folder / "store" if options.get("store") == "always" else None
    path, values = folder / "net.onnx", folder / "net.safetensors"
    with TrainingSession(path, values, optimizer=SGD(RATE), store=store) as session:
        for tokens in batches():
            session.step({"tokens": tokens, "labels": tokens})
        found = {name: np.array(array) for name, array in session.parameters.items()}
    operators = {node.op_type for node in onnx.load(path).graph.node}
    return (
        {name: array.tobytes() for name, array in found.items()},
        result.plan.prediction.transient_peak_bytes,
        operators,
    )


def test_a_small_budget_and_a_store_have_the_bits_of_whole_gradients(
    forward: tuple[Tied, Path], tmp_path: Path
) -> None:
    _, path = forward
    table_bytes = 4 * WORDS * WIDTH
    plain, plain_bytes, operators = trained(path, tmp_path / "plain", activation_budget="100%", store="never")
    assert {"AddRows", "UpdateSgd"} <= operators
    assert plain_bytes < 2 * table_bytes, "no other tensor as large as the table"
    for store in ("never", "always"):
        small, small_bytes, operators = trained(path, tmp_path / store, activation_budget=900 << 10, store=store)
        assert small_bytes < table_bytes
        assert "AddRows" in operators
        assert small == plain


def test_updates_are_those_of_torch(forward: tuple[Tied, Path], tmp_path: Path) -> None:
    net, path = forward
    found, _, _ = trained(path, tmp_path / "ours", activation_budget="100%", store="never")
    double = Tied().double()
    double.load_state_dict({name: value.double() for name, value in net.state_dict().items()})
    optimizer = torch.optim.SGD(double.parameters(), lr=RATE)
    for batch in batches():
        tokens = torch.tensor(batch)
        scores = double(tokens)[:, :-1].reshape(-1, WORDS)
        optimizer.zero_grad()
        nn.functional.cross_entropy(scores, tokens[:, 1:].reshape(-1)).backward()
        optimizer.step()
    for name, value in double.named_parameters():
        ours = np.frombuffer(found[name], np.float32).reshape(value.shape)
        moved = np.abs(value.detach().numpy() - net.state_dict()[name].numpy()).max()
        assert np.abs(ours - value.detach().numpy()).max() < 1e-5 * moved, name
