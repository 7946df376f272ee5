"""Groups of parameters in training: those of torch.optim, from RAM and from a store, resumed, and set anew."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import stored_nets
import torch
from cli_runs import Cli, assert_one_sentence
from deep import sampled
from export_models import export_forward, quiet
from safetensors.numpy import load_file
from stored_nets import session_of
from torch import nn

import poet_onnx
from poet_onnx import SGD, Adam, AdamW, ParameterGroup, TrainingSession, verify
from poet_onnx.errors import InputError

STEPS, RATE, DECAY = 8, 2.0**-7, 0.5
GROUPS = [ParameterGroup("vectors", weight_decay=0.0), ParameterGroup("head.*", lr_scale=4.0)]


class Net(nn.Module):
    """A table, a linear layer with its norm, and a head; all three are worth a store."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(500, 64), nn.LayerNorm(64)
        self.first, self.head = nn.Linear(64, 300), nn.Linear(300, 80)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return scores of each token."""
        return self.head(torch.tanh(self.first(self.norm(self.table(ids))))).flatten(0, 1)


@pytest.fixture(scope="module")
def module() -> Net:
    torch.manual_seed(0)
    return Net()


@pytest.fixture(scope="module")
def net(module: Net, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of the module."""
    path = tmp_path_factory.mktemp("net") / "net.onnx"
    with quiet():
        onnx.save(export_forward(module, {"ids": torch.zeros(2, 6, dtype=torch.long)}), path)
    return path


rewritten = partial(stored_nets.rewritten, groups=GROUPS)


def batch(number: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(number)
    return random.integers(0, 500, (2, 6)), random.integers(0, 80, 12)


def train(session: TrainingSession, first: int = 0, last: int = STEPS) -> list[float]:
    return [session.step(*batch(number)) for number in range(first, last)]


def train_in_torch(
    module: Net, made: Callable[..., torch.optim.Optimizer], dtype: torch.dtype, *, clip: float | None
) -> dict[str, np.ndarray]:
    """Train a copy with torch's own groups, and return the parameters."""
    copy = Net().to(dtype)
    copy.load_state_dict(module.state_dict())
    vectors = [each for each in copy.parameters() if each.dim() < 2]
    others = [copy.table.weight, copy.first.weight]
    optimizer = made(
        [
            {"params": vectors, "weight_decay": 0.0},
            {"params": [copy.head.weight], "lr": 4 * RATE},
            {"params": others},
        ],
        lr=RATE,
        weight_decay=DECAY,
    )
    for number in range(STEPS):
        ids, labels = map(torch.from_numpy, batch(number))
        optimizer.zero_grad()
        nn.functional.cross_entropy(copy(ids), labels).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(copy.parameters(), clip)
        optimizer.step()
    return {name: each.detach().numpy() for name, each in copy.named_parameters()}


@pytest.mark.parametrize(
    "case",
    [
        (AdamW(RATE, epsilon=1e-2, weight_decay=DECAY), lambda *a, **k: torch.optim.AdamW(*a, eps=1e-2, **k), None),
        (Adam(RATE, epsilon=1e-2, weight_decay=DECAY), lambda *a, **k: torch.optim.Adam(*a, eps=1e-2, **k), 0.5),
        (SGD(RATE, 0.9, DECAY), lambda *a, **k: torch.optim.SGD(*a, momentum=0.9, **k), None),
    ],
    ids=["adamw", "adam-clipped", "momentum"],
)
def test_groups_are_those_of_torch(
    module: Net, net: Path, tmp_path: Path, case: tuple[Any, Callable[..., torch.optim.Optimizer], float | None]
) -> None:
    """As near as torch's own single precision is to double; a group less would be a thousand times as far off."""
    ours, theirs, clip = case
    path = rewritten(net, tmp_path / "net.onnx", optimizer=ours.kind, clip_norm=clip is not None)
    session = session_of(path, optimizer=ours, clip_norm=clip)
    train(session)
    single = train_in_torch(module, theirs, torch.float32, clip=clip)
    exact = train_in_torch(module, theirs, torch.float64, clip=clip)
    assert set(exact) == set(session.trained)
    for name, expected in exact.items():
        found = session.parameters[name]
        found = found if found.shape == expected.shape else found.T
        unit = np.spacing(np.float32(np.abs(expected).max()))
        allowed = 4 * np.abs(single[name] - expected).max() + 2 * unit
        assert np.abs(found - expected).max() <= allowed, name
    without = session_of(
        path, optimizer=ours, clip_norm=clip, groups=[ParameterGroup("vectors"), ParameterGroup("head.*")]
    )
    train(without)
    assert any(np.abs(array - session.parameters[name]).max() > 1e-3 for name, array in without.parameters.items()), (
        "the numbers of the groups make no difference"
    )


@pytest.mark.parametrize(
    "options", sampled([{}, {"optimizer": "momentum"}, {"clip_norm": True}], {"clip_norm": True}), ids=str
)
def test_a_store_gives_the_bits_of_ram(net: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    resident = session_of(rewritten(net, tmp_path / "ram.onnx", **options))
    path = rewritten(net, tmp_path / "disk.onnx", store="always", activation_budget="90%", **options)
    stored = session_of(path, store=tmp_path / "store")
    assert train(stored) == train(resident)
    for session, name in ((stored, "a"), (resident, "b")):
        session.save_checkpoint(tmp_path / name)
    first, second = load_file(tmp_path / "a"), load_file(tmp_path / "b")
    assert {name: each.tobytes() for name, each in first.items()} == {n: each.tobytes() for n, each in second.items()}
    rates_bytes = 4 * 10 * 3 if "optimizer" not in options else 4 * 5 * 3
    assert rates_bytes <= resident.resident_bytes["rates"] <= rates_bytes + 1
    model = onnx.load(path)
    updates = [node for node in model.graph.node if any(name.startswith("poet/rates") for name in node.input)]
    assert len({name for node in updates for name in node.input if "rates" in name}) == (
        0 if "clip_norm" in options else 3
    )
    del stored
    again = session_of(path, store=tmp_path / "store")
    assert train(again, STEPS, STEPS + 2) == train(resident, STEPS, STEPS + 2)


def test_a_session_sets_the_numbers_and_goes_on_with_the_same(net: Path, tmp_path: Path) -> None:
    path, saved = rewritten(net, tmp_path / "net.onnx"), tmp_path / "saved.safetensors"
    own = [ParameterGroup("vectors", weight_decay=0.25), "head.*,lr_scale=0"]
    session = session_of(path, optimizer=AdamW(RATE), groups=own)
    head = session.parameters["head.weight"].copy()
    train(session, 0, 2)
    assert (session.parameters["head.weight"] == head).all(), "a factor of 0 keeps a parameter as it is"
    session.save_checkpoint(saved)
    losses = train(session, 2)
    resumed = session_of(path, optimizer=AdamW(RATE), groups=own)
    resumed.load_checkpoint(saved)
    assert train(resumed, 2) == losses
    with pytest.raises(InputError, match="other groups of parameters, or with other numbers of them"):
        session_of(path, optimizer=AdamW(RATE)).load_checkpoint(saved)
    with pytest.raises(
        InputError, match=r"for the group vectors and the group head.\*, not for the group vectors: give"
    ):
        session_of(path, groups=["vectors,weight_decay=0"])


def test_a_graph_that_was_not_rewritten_takes_groups_from_its_session(
    model_path: Callable[..., Path], tmp_path: Path
) -> None:
    path = model_path("mlp-mse")
    out = tmp_path / "out.onnx"
    groups = ["vectors,weight_decay=0,lr_scale=3"]
    poet_onnx.rewrite(path, device="a72", optimizer="adamw", groups=groups).save(out)
    sessions = [
        TrainingSession(model, path.with_name("checkpoint"), optimizer=AdamW(0.01, weight_decay=0.3), groups=given)
        for model, given in ((path, groups), (out, None), (path, None))
    ]
    shape = {put.name: put.shape for put in sessions[0].data_inputs}
    random = np.random.default_rng(0)
    feeds = {name: random.standard_normal(sizes).astype(np.float32) for name, sizes in shape.items()}
    for session in sessions:
        for _ in range(3):
            session.step(feeds)
    found = [b"".join(each.tobytes() for _, each in sorted(session.parameters.items())) for session in sessions]
    assert found[0] == found[1] != found[2]


def test_groups_on_the_command_line(cli: Cli, net: Path, tmp_path: Path) -> None:
    asked = ("rewrite", net, tmp_path / "out.onnx", "--loss", "cross-entropy", "--target", "stock", "--device", "a72")
    groups = ("--group", "vectors,weight_decay=0", "--group", "head.*,lr_scale=4")
    result = cli(*asked, *groups, "--plan-out", tmp_path / "plan.json", "--json")
    assert json.loads(result.out)["optimizer"] == "adamw, 2 groups of parameters"
    session = session_of(tmp_path / "out.onnx")
    same = session_of(rewritten(net, tmp_path / "python.onnx"))
    assert train(session) == train(same)
    assert_one_sentence(cli(*asked, "--plan", tmp_path / "plan.json", "--force"), 2, "--clip-norm and --group")
    assert_one_sentence(cli(*asked, "--group", "*.gamma", "--force"), 2, r"No trained parameter is in the group")
    assert_one_sentence(cli(*asked, "--group", "a,b=1", "--force"), 2, "cannot be read from 'b=1'")
    assert_one_sentence(cli(*asked, *groups, "--optimizer", "none", "--force"), 2, "Without an optimizer")


@pytest.mark.parametrize("store", ["never", "always"])
def test_verify_knows_groups(net: Path, tmp_path: Path, store: str) -> None:
    made = poet_onnx.train_graph(net, loss="cross-entropy")
    made.save(tmp_path)
    path = tmp_path / "training_model.onnx"
    out = tmp_path / "out.onnx"
    groups = [*GROUPS, "table.*,weight_decay=0.5"]
    asked = {"target": "stock", "optimizer": "adamw", "activation_budget": "100%", "store": store}
    poet_onnx.rewrite(path, device="a72", groups=groups, **asked).save(out)  # type: ignore[arg-type]
    assert verify(path, out, feeds=1).passed
