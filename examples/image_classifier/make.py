"""On a PC: teach a network the digits 0 to 4, and make the step by which a board teaches it 5 to 9."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import poet_onnx

KNOWN = 5
"""The network learns the digits below this one here, and the others on the board."""

EACH, BATCH = 20, 20
"""Pictures of each new digit that the board learns from, and pictures of a step."""


def block(channels_in: int, channels_out: int) -> nn.Sequential:
    """Return a convolution that halves the picture."""
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(),
    )


def head(classes: int) -> nn.Sequential:
    """Return the layer that tells classes by what the body sees."""
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64 * 4 * 4, classes))


class Net(nn.Module):
    """Three convolutions and a linear layer."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(block(1, 16), block(16, 32), block(32, 64))
        self.head = head(classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores of the classes."""
        return self.head(self.body(images))


def pretrain(net: nn.Module, images: Tensor, labels: Tensor) -> None:
    """Train all of the network in torch."""
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3)
    for _ in range(6):
        for rows in torch.randperm(len(images)).split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(images[rows]), labels[rows]).backward()
            optimizer.step()
    net.eval()
    print(f"digits 0 to 4: {(net(images).argmax(1) == labels).float().mean():.1%} right after training here")


torch.manual_seed(0)
digits = load_digits()  # 1,797 pictures of 8 x 8 pixels, from 0 to 16
images = torch.from_numpy(digits.images[:, None] / 16).float().repeat_interleave(4, 2).repeat_interleave(4, 3)
labels = torch.from_numpy(digits.target)

net = Net(KNOWN)
pretrain(net, images[labels < KNOWN], labels[labels < KNOWN])
net.head = head(10 - KNOWN)  # one that knows nothing of the new digits; its dropout is on

made = poet_onnx.torch.export(
    net,  # its body is in eval mode: batch normalizations keep to what they have seen
    images[:BATCH],
    "digits.onnx",
    loss="cross-entropy",
    freeze=["body.0.*", "body.1.*"],  # edges and strokes are the same in all digits
    device="a72",
    target="stock",
    ram_budget="44MiB",
)
print(made.check)

new = [np.flatnonzero(labels.numpy() == digit) for digit in range(KNOWN, 10)]
split = {
    "train": np.concatenate([rows[:EACH] for rows in new]),
    "test": np.concatenate([rows[EACH : EACH + 140] for rows in new]),
}
arrays = {f"{part}_images": images[rows].numpy() for part, rows in split.items()}
arrays |= {f"{part}_labels": labels[rows].numpy() - KNOWN for part, rows in split.items()}
np.savez("digits.npz", **arrays)
