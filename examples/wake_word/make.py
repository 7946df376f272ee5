"""On a PC: teach a network a wake word from many voices, and make the step by which a board tunes it to its user."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from scipy.io import wavfile
from torch import Tensor, nn
from torch.nn import functional

import poet_onnx

RATE, BATCH = 16_000, 16
SPEAKERS = 100
"""Whose sounds are read, at most: Speech Commands has 2,600 speakers, and would take 7 GB."""


class Net(nn.Module):
    """Ears for 32 pitches, convolutions over longer and longer times, and the largest score of all times."""

    def __init__(self) -> None:
        super().__init__()
        hertz = 700 * (10 ** (torch.linspace(100, 2840, 32) / 2595) - 1)  # evenly spaced on the mel scale
        waves = torch.cos(2 * torch.pi * hertz[:, None] * torch.arange(256) / RATE) * torch.hann_window(256)
        self.register_buffer("ears", waves[:, None])
        self.times = nn.ModuleList(nn.Conv1d(32, 32, 3, dilation=2**depth) for depth in range(4))
        self.head = nn.Conv1d(32, 1, 1)

    def forward(self, sound: Tensor) -> Tensor:
        """Return scores [N] of sounds [N, samples]."""
        energies = functional.conv1d(sound[:, None], self.ears, stride=64) ** 2
        heard = torch.log(functional.avg_pool1d(energies, 4) + 1e-3)
        for layer in self.times:
            heard = functional.relu(layer(heard))
        return self.head(heard).amax((1, 2))


class WithLoss(nn.Module):
    """The network with its loss, in which the rare wake word counts as much as all other words."""

    def __init__(self, net: Net, others: float) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("others", torch.tensor([others]))

    def forward(self, sound: Tensor, is_word: Tensor) -> dict[str, Tensor]:
        """Return the loss, and probabilities."""
        score = self.net(sound)
        loss = functional.binary_cross_entropy_with_logits(score, is_word, pos_weight=self.others)
        return {"loss": loss, "probability": torch.sigmoid(score)}


def read(folder: Path, word: str) -> tuple[Tensor, Tensor, np.ndarray]:
    """Return sounds [N, samples] from -1 to 1, 1 for the word and 0 for others, and who speaks."""
    files = sorted(folder.glob("*/*_nohash_*.wav"))
    speakers = sorted({path.name.split("_")[0] for path in files})[:SPEAKERS]
    files = [path for path in files if path.name.split("_")[0] in speakers]
    sounds = torch.zeros(len(files), RATE)
    for sound, path in zip(sounds, files, strict=True):
        samples = wavfile.read(path)[1][:RATE]
        sound[: len(samples)] = torch.from_numpy(samples / 32768)
    is_word = torch.tensor([float(path.parent.name == word) for path in files])
    return sounds, is_word, np.array([path.name.split("_")[0] for path in files])


def pretrain(net: WithLoss, sounds: Tensor, is_word: Tensor) -> None:
    """Train all of the network in torch."""
    optimizer = torch.optim.AdamW(net.parameters(), 4e-3)
    for _ in range(5):
        for rows in torch.randperm(len(sounds)).split(32):
            optimizer.zero_grad()
            net(sounds[rows], is_word[rows])["loss"].backward()
            optimizer.step()


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--data", type=Path, required=True, help="folder of make_sounds.py, or of Speech Commands")
parser.add_argument("--word", default="marvin", help="which word wakes the machine (default: %(default)s)")
parser.add_argument("--user", help="whose voice the board learns, as file names begin (default: who speaks most)")
asked = parser.parse_args()
sounds, is_word, voices = read(asked.data, asked.word)
names, times = np.unique(voices, return_counts=True)
own = voices == (asked.user or names[times.argmax()])

torch.manual_seed(0)
net = WithLoss(Net(), others=float((1 - is_word).sum() / is_word.sum()))
pretrain(net, sounds[~own], is_word[~own])

rows = np.random.default_rng(0).permutation(np.flatnonzero(own))
batch = {"sound": sounds[rows[:BATCH]], "is_word": is_word[rows[:BATCH]]}
made = poet_onnx.torch.export(
    net, batch, "wake.onnx", loss="output:loss", device="a72", target="stock", ram_budget="46MiB"
)
print(made.check)

for part, chosen in (("train", rows[: len(rows) // 2]), ("test", rows[len(rows) // 2 :])):
    np.savez(f"{part}.npz", sound=sounds[chosen].numpy(), is_word=is_word[chosen].numpy())
