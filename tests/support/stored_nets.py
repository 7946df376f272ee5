"""Nets whose parameters are worth a store, with a table, convolutions, statistics and dropout; and a run of training.

As a program it trains a rewritten net on its store and leaves a checkpoint: it may be killed meanwhile.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

import poet_onnx
from poet_onnx import TrainingSession


def write_net(kind: str, path: Path) -> Path:
    """Export a net without a loss, and return its path.

    Wide ones have megabytes of parameters: more than the buffers of a store, and than importing takes besides.
    """
    import onnx
    import torch
    from export_models import export_forward, quiet
    from torch import nn

    torch.manual_seed(0)
    text = _text(64, 400)
    image = nn.Sequential(
        nn.Conv2d(3, 40, 3, padding=1),
        nn.BatchNorm2d(40),
        nn.ReLU(),
        nn.Conv2d(40, 80, 3, stride=2, padding=1),
        nn.BatchNorm2d(80),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.Linear(80 * 16, 30),
    )
    filters = nn.Sequential(  # of several panels each, on few pixels
        nn.Conv2d(3, 64, 3),
        nn.ReLU(),
        nn.Conv2d(64, 400, 3, stride=2, padding=1),
        nn.BatchNorm2d(400),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Conv2d(400, 600, 1, bias=False),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(600, 30),
    )
    with quiet():
        if kind in ("decoder", "wide_decoder"):
            decoder = _decoder(160 if kind == "decoder" else 320)
            model = export_forward(decoder, {"ids": torch.zeros(1, 12, dtype=torch.long)})
        elif kind in ("text", "wide_text"):
            words = text if kind == "text" else _text(128, 1024)
            model = export_forward(words, {"ids": torch.zeros(2, 12, dtype=torch.long)})
        elif kind == "words":
            model = export_forward(_text(64, 400, words=6000, length=5), {"ids": torch.zeros(1, 5, dtype=torch.long)})
        elif kind == "filters":
            model = export_forward(filters, {"x": torch.zeros(2, 3, 8, 8)})
        else:
            model = export_forward(image, {"x": torch.zeros(2, 3, 8, 8)})
    onnx.save(model, path)
    return path


def _text(width: int, inner: int, words: int = 700, length: int = 12) -> Any:
    """Return a net of four matrices, one of them a table of words."""
    from torch import nn

    return nn.Sequential(
        nn.Embedding(words, width),
        nn.Linear(width, inner),
        nn.GELU(),
        nn.Dropout(0.2),
        nn.Linear(inner, width),
        nn.LayerNorm(width),
        nn.Flatten(),
        nn.Linear(length * width, 30),
    )


def _decoder(width: int) -> Any:
    """Return a decoder of two layers whose head is its table of words."""
    import torch
    from torch import Tensor, nn

    words, heads = 600, 4

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
            self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
            self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)

        def forward(self, x: Tensor) -> Tensor:
            length, y = x.shape[1], self.before(x)
            q, k, v = (
                each(y).reshape(1, length, heads, width // heads).transpose(1, 2) for each in (self.q, self.k, self.v)
            )
            scores = q @ k.transpose(-1, -2) / 6 + torch.triu(torch.full((length, length), -1e9), 1)
            x = x + self.out((torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(1, length, width))
            return x + self.down(nn.functional.gelu(self.up(self.after(x))))

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(words, width)
            self.layers = nn.ModuleList(Layer() for _ in range(2))
            self.norm = nn.LayerNorm(width)

        def forward(self, ids: Tensor) -> Tensor:
            x = self.words(ids)
            for layer in self.layers:
                x = layer(x)
            return nn.functional.linear(self.norm(x), self.words.weight).reshape(-1, words)

    return Decoder()


def feeds(session: TrainingSession, step: int) -> dict[str, Any]:
    """Return the batch of a step."""
    random = np.random.default_rng(step)
    found: dict[str, Any] = {}
    for put in session.data_inputs:
        most = 30 if len(put.shape) == 1 else 600
        whole = random.integers(0, most, put.shape).astype(put.dtype)
        found[put.name] = whole if put.dtype.kind == "i" else random.standard_normal(put.shape).astype(put.dtype)
    return found


def session_of(net: Path, **options: Any) -> TrainingSession:
    """Return a session of what `rewrite` wrote to a file, and beside it."""
    return TrainingSession(
        net, net.with_suffix(".safetensors"), eval_model=net.with_name(f"{net.stem}.eval.onnx"), **options
    )


def train(session: TrainingSession, steps: int) -> list[float]:
    """Train until so many updates are made, and return the losses."""
    return [session.step(feeds(session, step)) for step in range(session.updates, steps)]


def rewritten(net: Path, path: Path, **options: Any) -> Path:
    """Rewrite a net for the stock runtime, and return the file."""
    settings = {"device": "a72", "target": "stock", "loss": "cross-entropy", "gap": 0.5} | options
    poet_onnx.rewrite(net, **settings).save(path)
    return path


def state(session: TrainingSession, path: Path) -> dict[str, bytes]:
    """Return the bytes of all that a session has trained, and collected."""
    session.save_checkpoint(path)
    return {name: array.tobytes() for name, array in load_file(path).items()}


if __name__ == "__main__":
    trained = session_of(Path(sys.argv[1]), store=sys.argv[2], commit_every=int(sys.argv[4]))
    for step in range(trained.updates, int(sys.argv[3])):
        trained.step(feeds(trained, step))
        sys.stdout.write(f"{step}\n")
        sys.stdout.flush()
    trained.save_checkpoint(Path(sys.argv[2], "end.safetensors"))
