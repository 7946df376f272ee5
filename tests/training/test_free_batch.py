"""An exported model takes any number of samples, and makes of each what the model of one batch size makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from adapter_models import Tied, exported
from deep import sampled
from stored_nets import feeds as stored_feeds
from stored_nets import session_of, write_net
from torch import Tensor, nn

import poet_onnx
import poet_onnx.torch
from poet_onnx import TrainingSession
from poet_onnx.errors import InputError

BATCH = 4


class Attention(nn.Module):
    """A class token, positions and attention, which joins batch and heads in one axis."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.places = nn.Parameter(torch.randn(1, 6, 8))
        self.attention = nn.MultiheadAttention(8, 2)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Read the class token of the last layer."""
        y = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        y = y.transpose(0, 1)
        y = y + self.attention(y, y, y, need_weights=False)[0]
        return self.head(y[0])


class Pictures(nn.Module):
    """Convolutions, a batch normalization, and a view that holds the number of samples."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Average what the body makes of a picture."""
        y = self.body(x)
        return self.head(y.view(y.shape[0], 4, -1).mean(2))


class Sequence(nn.Module):
    """An LSTM that begins with zeros for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(5, 6, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Read the last state."""
        return self.head(self.lstm(x)[0][:, -1])


class Sampled(nn.Module):
    """Pictures that are read where each one says, a contraction, and numbers at places of each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Linear(27, 8)
        self.weight = nn.Parameter(torch.randn(3, 4, 5))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Read four points of a picture."""
        places = torch.tanh(self.places(x.flatten(1)))
        points = nn.functional.grid_sample(x, places.view(-1, 2, 2, 2), align_corners=False).flatten(2)
        y = torch.einsum("bcp,cpd->bd", points, self.weight)
        order = places[:, :5].argsort(1)
        return self.head(torch.cat([y.gather(1, order), torch.einsum("bcp,bcq->bp", points, points)[:, :3]], 1))


class Centered(nn.Linear):
    """A layer that sees the other samples."""

    def forward(self, x: Tensor) -> Tensor:
        """Take the mean of the batch away."""
        return super().forward(x - x.mean(0))


class Correlated(nn.Linear):
    """A layer that sums over all samples."""

    def forward(self, x: Tensor) -> Tensor:
        """Multiply by what all samples have in common."""
        return super().forward(x @ torch.einsum("bi,bj->ij", x, x))


def run(path: Path, *arrays: np.ndarray[Any, Any]) -> Any:
    session = onnxruntime.InferenceSession(path)
    return session.run(None, dict(zip((each.name for each in session.get_inputs()), arrays, strict=True)))[0]


def trained(module: nn.Module, shape: tuple[int, ...], folder: Path) -> TrainingSession:
    torch.manual_seed(0)
    x = torch.randn(BATCH, *shape)
    options: dict[str, Any] = {
        "loss": "cross-entropy",
        "device": "a72",
        "target": "stock",
        "gap": 0.9,
        "exporter": "legacy",
    }
    poet_onnx.torch.export(module, x, folder / "net.onnx", **options)
    session = TrainingSession(folder / "net.onnx", folder / "net.safetensors", eval_model=folder / "net.eval.onnx")
    session.step(x.numpy(), np.arange(BATCH) % 3)
    return session


def check_any_number(folder: Path, x: np.ndarray[Any, Any], *, exact: bool = False) -> None:
    """Check 1, 3, the graph's own, and 9 samples of `free.onnx` against `fixed.onnx`."""
    onnx.checker.check_model(onnx.load(folder / "free.onnx"), full_check=True)
    size = x.shape[0]
    many = np.concatenate([x, x[::-1] * np.float32(0.5) if x.dtype == np.float32 else x[::-1]] * 9)
    whole = np.concatenate([run(folder / "fixed.onnx", many[i : i + size]) for i in range(0, 9 + size, size)])
    for count in (1, 3, size, 9):
        found = run(folder / "free.onnx", many[:count])
        assert found.shape == (count, *whole.shape[1:])
        np.testing.assert_allclose(found, whole[:count], rtol=0 if exact else 1e-4, atol=0 if exact else 1e-5)


@pytest.mark.parametrize(
    ("module", "shape"),
    sampled(
        [(Pictures, (3, 6, 6)), (Attention, (5, 8)), (Sequence, (7, 5)), (Sampled, (3, 3, 3))],
        (Attention, (5, 8)),
        (Sampled, (3, 3, 3)),
    ),
    ids=str,
)
def test_any_number_of_samples_is_the_default(module: type[nn.Module], shape: tuple[int, ...], tmp_path: Path) -> None:
    session = trained(module(), shape, tmp_path)
    session.export_inference_model(tmp_path / "free.onnx")
    session.export_inference_model(tmp_path / "fixed.onnx", batch="fixed")
    (shown,) = onnxruntime.InferenceSession(tmp_path / "free.onnx").get_inputs()
    assert shown.shape == ["batch", *shape]
    check_any_number(tmp_path, np.random.default_rng(0).standard_normal((BATCH, *shape), dtype=np.float32))


@pytest.mark.parametrize(
    ("module", "said"),
    [(Centered, "ReduceMean '.*' works along"), (Correlated, "Einsum '.*' sums over samples")],
    ids=str,
)
def test_a_model_whose_samples_see_each_other_keeps_its_batch(
    module: type[nn.Linear], said: str, tmp_path: Path
) -> None:
    session = trained(module(5, 3), (5,), tmp_path)
    session.export_inference_model(tmp_path / "net.trained.onnx")
    (shown,) = onnxruntime.InferenceSession(tmp_path / "net.trained.onnx").get_inputs()
    assert shown.shape == [BATCH, 5]
    with pytest.raises(InputError, match=rf"batches of one size only: {said}.*batch='fixed'"):
        session.export_inference_model(tmp_path / "none.onnx", batch="dynamic")
    with pytest.raises(InputError, match="batch is 'any': give 'dynamic' or 'fixed'"):
        session.export_inference_model(tmp_path / "none.onnx", batch="any")  # type: ignore[arg-type]
    assert not (tmp_path / "none.onnx").exists()


@pytest.mark.parametrize("merge", [True, False])
def test_adapters_in_the_weights_or_beside_them_take_any_number(tmp_path: Path, merge: bool) -> None:
    torch.manual_seed(0)
    forward = exported(Tied(), input_names=["ids"], do_constant_folding=False)
    options: dict[str, Any] = {"device": "a72", "target": "stock", "loss": "mse", "train": "body.2.*", "gap": 0.9}
    files = poet_onnx.rewrite(forward, lora="rank=2,targets=body.0.weight", **options).save(tmp_path / "net.onnx")
    session = TrainingSession(files[0], files[1], eval_model=files[2])
    batch = {name: np.ones(shape, kind) for name, kind, shape in session.data_inputs}
    session.step(batch)
    session.export_inference_model(tmp_path / "free.onnx", merge=merge, batch="dynamic")
    session.export_inference_model(tmp_path / "fixed.onnx", merge=merge, batch="fixed")
    check_any_number(tmp_path, np.arange(batch["ids"].size).reshape(batch["ids"].shape) % 5)


def test_parameters_of_a_store_take_any_number(tmp_path: Path) -> None:
    net = write_net("text", tmp_path / "net.onnx")
    options: dict[str, Any] = {"device": "a72", "target": "stock", "loss": "cross-entropy", "gap": 0.9}
    poet_onnx.rewrite(net, store="always", **options).save(tmp_path / "stored.onnx")
    session = session_of(tmp_path / "stored.onnx", store=tmp_path / "store")
    session.step(stored_feeds(session, 0))
    session.export_inference_model(tmp_path / "free.onnx", model=net, batch="dynamic")
    session.export_inference_model(tmp_path / "fixed.onnx", model=net, batch="fixed")
    check_any_number(tmp_path, np.arange(24).reshape(2, 12))


def test_a_model_that_takes_any_number_stays_so(tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["" : 15]> g (float[n, 3] x) => (float[n, 2] y) { y = MatMul(x, w) }'
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((3, 2), np.float32), "w"))
    files = poet_onnx.rewrite(
        ir.from_proto(proto), device="a72", target="stock", loss="mse", dims={"n": BATCH}, gap=0.9
    ).save(tmp_path / "net.onnx")
    session = TrainingSession(files[0], files[1], eval_model=files[2])
    onnx.save(proto, tmp_path / "forward.onnx")
    session.export_inference_model(tmp_path / "free.onnx", model=tmp_path / "forward.onnx")
    assert run(tmp_path / "free.onnx", np.ones((7, 3), np.float32)).shape == (7, 2)
