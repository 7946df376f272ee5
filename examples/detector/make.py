"""On a PC: make the step by which a board learns to find handwritten digits in a picture, and read them."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

import poet_onnx

SIZE, CELL, BATCH = 48, 8, 16
"""Pixels of a picture and of a cell, and pictures of a step. The cell that has the middle of a digit finds it."""


def layer(channels_in: int, channels_out: int, stride: int) -> nn.Sequential:
    """Return a convolution with its normalization."""
    convolution = nn.Conv2d(channels_in, channels_out, 3, stride=stride, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(channels_out), nn.ReLU())


class Detector(nn.Module):
    """For each cell: whether a digit's middle is there, its box, and which digit it is; and the loss of all that."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(layer(1, 16, 2), layer(16, 32, 2), layer(32, 64, 2), layer(64, 64, 1))
        self.head = nn.Conv2d(64, 1 + 4 + 10, 1)

    def forward(self, images: Tensor, is_there: Tensor, boxes: Tensor, digits: Tensor) -> dict[str, Tensor]:
        """Return the loss, and what is found.

        Args:
            images: [N, 1, SIZE, SIZE].
            is_there: [N, cells, cells], 1 where the middle of a digit is, else 0.
            boxes: [N, 4, cells, cells], x and y of the middle in the cell, width and height, all in cells.
            digits: [N, cells, cells].
        """
        found, box, scores = self.head(self.body(images)).split([1, 4, 10], 1)
        found, count = found.squeeze(1), is_there.sum() + 1e-6
        is_found = functional.binary_cross_entropy_with_logits(found, is_there)
        off = (functional.smooth_l1_loss(box, boxes, reduction="none").sum(1) * is_there).sum() / count
        misread = (functional.cross_entropy(scores, digits, reduction="none") * is_there).sum() / count
        return {"loss": 5 * is_found + off + misread, "found": found.sigmoid(), "box": box, "scores": scores.softmax(1)}


def scene(pictures: np.ndarray, labels: np.ndarray, random: np.random.Generator) -> dict[str, np.ndarray]:
    """Return a picture with two or three digits of many sizes, and what is to be found in it."""
    cells = SIZE // CELL
    made = {
        "images": random.uniform(0, 0.3, (1, SIZE, SIZE)).astype(np.float32),
        "is_there": np.zeros((cells, cells), np.float32),
        "boxes": np.zeros((4, cells, cells), np.float32),
        "digits": np.zeros((cells, cells), np.int64),
    }
    for half in random.permutation(4)[: random.integers(2, 4)]:  # a quarter of the picture for each
        width, height = random.integers(14, 24, 2)
        left = half % 2 * SIZE // 2 + random.integers(0, SIZE // 2 - width + 1)
        top = half // 2 * SIZE // 2 + random.integers(0, SIZE // 2 - height + 1)
        which = random.integers(len(pictures))
        rows, columns = np.arange(height) * 8 // height, np.arange(width) * 8 // width
        made["images"][0, top : top + height, left : left + width] += pictures[which][np.ix_(rows, columns)] / 16
        x, y = (left + width / 2) / CELL, (top + height / 2) / CELL
        cell = int(y), int(x)
        made["is_there"][cell] = 1
        made["boxes"][:, cell[0], cell[1]] = x - int(x), y - int(y), width / CELL, height / CELL
        made["digits"][cell] = labels[which]
    return made


digits, random = load_digits(), np.random.default_rng(0)
half = len(digits.images) // 2  # digits that are tested are of other writers
parts = {"train": slice(0, half), "test": slice(half, None)}
for part, count in (("train", 640), ("test", 160)):
    scenes = [scene(digits.images[parts[part]], digits.target[parts[part]], random) for _ in range(count)]
    np.savez(f"{part}.npz", **{name: np.stack([each[name] for each in scenes]) for name in scenes[0]})

torch.manual_seed(0)
batch = {name: torch.from_numpy(array[:BATCH]) for name, array in np.load("train.npz").items()}
made = poet_onnx.torch.export(
    Detector(), batch, "detector.onnx", loss="output:loss", device="a72", target="stock", ram_budget="46MiB"
)
print(made.check)
