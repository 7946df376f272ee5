"""On a PC: make the step by which a board learns spoken words, from the microphone's samples to the update."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from scipy.io import wavfile
from torch import Tensor, nn

import poet_onnx

WORDS = ("yes", "no", "up", "left", "right", "stop", "go")
RATE, BATCH = 16_000, 16


class LogMel(nn.Module):
    """Log-mel energies of sound as a convolution with fixed numbers, so that the board needs no code for them."""

    def __init__(self, window: int = 256, hop: int = 192, bands: int = 32) -> None:
        super().__init__()
        self.hop = hop
        hertz = torch.linspace(0, RATE / 2, window // 2 + 1)
        angles = 2 * torch.pi * hertz[:, None] * torch.arange(window) / RATE
        waves = torch.cat([angles.cos(), angles.sin()]) * torch.hann_window(window)
        mel = 2595 * torch.log10(1 + hertz / 700)
        centers = torch.linspace(0, float(mel[-1]), bands + 2)[1:-1, None]
        triangles = (1 - (mel - centers).abs() / (centers[1] - centers[0])).clamp(min=0)
        self.register_buffer("waves", waves[:, None])
        self.register_buffer("triangles", triangles)

    def forward(self, sound: Tensor) -> Tensor:
        """Return energies [N, bands, frames] of sound [N, samples]."""
        real, imaginary = nn.functional.conv1d(sound[:, None], self.waves, stride=self.hop).chunk(2, 1)
        return torch.log(self.triangles @ (real**2 + imaginary**2) + 1e-3)


def separable(channels_in: int, channels_out: int) -> nn.Sequential:
    """Return a convolution over time in each channel, and one over channels."""
    return nn.Sequential(
        nn.Conv1d(channels_in, channels_in, 9, stride=2, padding=4, groups=channels_in, bias=False),
        nn.Conv1d(channels_in, channels_out, 1, bias=False),
        nn.BatchNorm1d(channels_out),
        nn.ReLU(),
    )


def read(folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return sounds [N, samples] from -1 to 1, labels, and who speaks, of a folder in the layout of Speech Commands."""
    files = [(path, label) for label, word in enumerate(WORDS) for path in sorted((folder / word).glob("*.wav"))]
    sounds = np.zeros((len(files), RATE), np.float32)
    for sound, (path, _) in zip(sounds, files, strict=True):
        samples = wavfile.read(path)[1][:RATE]
        sound[: len(samples)] = samples / 32768
    return sounds, np.array([label for _, label in files]), np.array([path.name.split("_")[0] for path, _ in files])


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", type=Path, required=True, help="folder of make_sounds.py, or of Speech Commands")
sounds, labels, voices = read(parser.parse_args().data)

torch.manual_seed(0)
blocks = separable(32, 48), separable(48, 64), separable(64, 64)
net = nn.Sequential(LogMel(), *blocks, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(64, len(WORDS)))
made = poet_onnx.torch.export(
    net,
    torch.from_numpy(sounds[:BATCH]),
    "words.onnx",
    loss="cross-entropy",
    device="a72",
    target="stock",
    ram_budget="48MiB",
)
print(made.check)

tested = np.isin(voices, np.unique(voices)[1::4])  # every fourth voice is new to the network when it is tested
for part, rows in (("train", ~tested), ("test", tested)):
    np.save(f"{part}_sounds.npy", sounds[rows])
    np.save(f"{part}_labels.npy", labels[rows])
