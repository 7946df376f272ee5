"""What is no regular file is refused at once, in one sentence, by everything that reads a file."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cli_runs import Cli, assert_one_sentence
from torch import nn
from training_batches import session_of

import poet_onnx
import poet_onnx.torch
from poet_onnx import Lora, TrainingSession
from poet_onnx.costing.device import load_device
from poet_onnx.errors import InputError
from poet_onnx.reporting.inspection import inspect

MODEL = """
<ir_version: 8, opset_import: ["" : 15]> forward (float[2, 3] x) => (float[2, 2] y)
<float[3, 2] w = {1, 2, 3, 4, 5, 6}> { y = MatMul(x, w) }
"""


@pytest.fixture
def forward(tmp_path: Path) -> Path:
    path = tmp_path / "forward.onnx"
    onnx.save(onnx.parser.parse_model(MODEL), path)
    return path


@contextlib.contextmanager
def soon(seconds: int = 20) -> Iterator[None]:
    """Let what waits for a writer fail."""

    def waited(*_: object) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, waited)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def make(path: Path, kind: str) -> None:
    """Put something else in the place of a file."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/null")


KINDS = ("pipe", "folder", "device")
READERS: dict[str, tuple[str, Callable[[Path, Path], object]]] = {
    "device": ("d.toml", lambda path, forward: load_device(path)),
    "costs": ("c.json", lambda path, forward: rewrite(forward, costs=path)),
    "plan": ("p.json", lambda path, forward: rewrite(forward, plan=path)),
    "known plan": ("p.json", lambda path, forward: rewrite(forward, activation_budget="90%", known_plans=[path])),
    "class weights": ("w.txt", lambda path, forward: rewrite(forward, loss="cross-entropy", class_weights=path)),
    "array of class weights": (
        "w.npy",
        lambda path, forward: rewrite(forward, loss="cross-entropy", class_weights=path),
    ),
    "model": ("m.onnx", lambda path, forward: poet_onnx.rewrite(path, device="a72", loss="mse")),
    "inspected": ("m.onnx", lambda path, forward: inspect(path, device="a72")),
    "verified": ("m.onnx", lambda path, forward: poet_onnx.verify(forward, path)),
    "trained": ("m.onnx", lambda path, forward: TrainingSession(path, {})),
    "parameters": ("p.safetensors", lambda path, forward: TrainingSession(forward, path)),
    "ort parameters": ("checkpoint", lambda path, forward: TrainingSession(forward, path)),
    "evaluated": ("e.onnx", lambda path, forward: TrainingSession(forward, {}, eval_model=path)),
    "torch": ("p.safetensors", lambda path, forward: poet_onnx.torch.load_trained(nn.Linear(1, 1), path)),
}


def rewrite(forward: Path, **options: Any) -> object:
    return poet_onnx.rewrite(forward, **{"device": "a72", "loss": "mse", **options})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reader", READERS)
def test_every_reader_refuses_what_is_no_file(forward: Path, tmp_path: Path, reader: str, kind: str) -> None:
    name, read = READERS[reader]
    make(tmp_path / name, kind)
    with soon(), pytest.raises(InputError, match=rf"{name}\b.*([Ii]s a directory|device, pipe or socket)") as refused:
        read(tmp_path / name, forward)
    assert str(refused.value).endswith(".")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_session_refuses_what_is_no_file(model_path: Callable[..., Path], tmp_path: Path, kind: str) -> None:
    session = session_of(model_path("mlp-mse"))
    make(tmp_path / "c.safetensors", kind)
    with soon(), pytest.raises(InputError, match=r"c\.safetensors cannot be read: "):
        session.load_checkpoint(tmp_path / "c.safetensors")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
def test_adapters_refuse_what_is_no_file(forward: Path, tmp_path: Path, name: str, kind: str) -> None:
    model = onnx.load(forward)
    model.graph.initializer[0].name = model.graph.node[0].input[1] = "net.weight"
    result = poet_onnx.rewrite(
        model, device="a72", loss="mse", optimizer="sgd", target="stock", lora=Lora(("net.*",), 1)
    )
    result.save(tmp_path / "out.onnx")
    session = TrainingSession(tmp_path / "out.onnx", tmp_path / "out.safetensors")
    session.export_adapter(tmp_path / "adapter")
    (tmp_path / "adapter" / name).unlink()
    make(tmp_path / "adapter" / name, kind)
    with soon(), pytest.raises(InputError, match=rf"{name} cannot be read"):
        session.load_adapter(tmp_path / "adapter")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--device", "pipe.toml"),
        ("--device", "a72", "--costs", "pipe"),
        ("--device", "a72", "--plan", "pipe"),
        ("--device", "a72", "--class-weights", "pipe"),
    ],
    ids=lambda arguments: arguments[-2],
)
def test_the_command_line_refuses_a_pipe(
    cli: Cli, forward: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo(arguments[-1])
    with soon():
        result = cli("rewrite", forward, tmp_path / "out.onnx", "--loss", "cross-entropy", *arguments)
    assert_one_sentence(result, 2, "device, pipe or socket")


def test_a_link_to_a_file_is_read(tmp_path: Path) -> None:
    np.save(tmp_path / "real.npy", np.ones(2, np.float32))
    (tmp_path / "w.npy").symlink_to("real.npy")
    from poet_onnx.gradients.class_weights import read_weights

    assert read_weights(tmp_path / "w.npy") == (1.0, 1.0)
