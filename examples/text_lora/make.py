"""On a PC: teach a text network some topics, and make the step by which adapters teach it others on a board."""

from __future__ import annotations

import ast
import re
import sysconfig
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import poet_onnx

KNOWN = ("unittest", "json", "importlib", "multiprocessing", "concurrent", "logging", "ctypes", "urllib", "http")
NEW = ("email", "asyncio", "xml", "statistics", "ipaddress")
"""Packages and modules of Python's library: topics. A text is a sentence of their documentation."""

WORDS, LENGTH, WIDTH, HEADS, BATCH = 4096, 24, 64, 4, 16


class Block(nn.Module):
    """Attention, and a network of two layers, each beside a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.wide = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor, is_word: Tensor) -> Tensor:
        """Return numbers of the same shape [N, LENGTH, WIDTH]; none looks at what is no word."""
        y = self.norms[0](x)
        q, k, v = (layer(y).unflatten(2, (HEADS, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value))
        seen = functional.scaled_dot_product_attention(q, k, v, is_word[:, None, None])
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.wide(self.norms[1](x))


class Net(nn.Module):
    """Two blocks above words, and a layer that tells topics by their mean."""

    def __init__(self, topics: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, topics)

    def forward(self, words: Tensor) -> Tensor:
        """Return scores [N, topics] of words [N, LENGTH], where 0 is none."""
        is_word = words > 0
        x = self.words(words)
        for block in self.blocks:
            x = block(x, is_word)
        weight = is_word.to(x.dtype)[..., None]
        return self.head((x * weight).sum(1) / weight.sum(1))


def sentences(package: str) -> Iterator[str]:
    """Yield the sentences of a package's docstrings, without the package's name."""
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.glob(f"{package}.py")) + sorted(library.glob(f"{package}/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8", errors="replace"))):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                for sentence in re.split(r"[.:]\s", ast.get_docstring(node) or ""):
                    yield sentence.lower().replace(package, " ")


def numbers(sentence: str) -> list[int]:
    """Return a number from 1 for each word, which needs no list of words on the board."""
    return [1 + zlib.crc32(word.encode()) % (WORDS - 1) for word in re.findall(r"[a-z]+", sentence)][:LENGTH]


def texts(packages: tuple[str, ...], most: int) -> tuple[np.ndarray, np.ndarray]:
    """Return words [N, LENGTH] and topics of different sentences of four words or more, at most so many of a topic."""
    rows, topics = [], []
    for topic, package in enumerate(packages):
        found = sorted({tuple(numbers(each)) for each in sentences(package)} - {()})
        found = [each for each in found if len(each) >= 4]
        for row in np.random.default_rng(0).permutation(len(found))[:most]:
            rows.append(list(found[row]) + [0] * (LENGTH - len(found[row])))
            topics.append(topic)
    return np.array(rows), np.array(topics)


def pretrain(net: Net, words: Tensor, topics: Tensor) -> None:
    """Train all of the network in torch."""
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3)
    for _ in range(4):
        for rows in torch.randperm(len(words)).split(32):
            optimizer.zero_grad()
            functional.cross_entropy(net(words[rows]), topics[rows]).backward()
            optimizer.step()


torch.manual_seed(0)
net = Net(len(KNOWN))
pretrain(net, *map(torch.from_numpy, texts(KNOWN, 240)))
net.head = nn.Linear(WIDTH, len(NEW))

words, topics = texts(NEW, 160)
print(f"{len(words)} sentences of {', '.join(NEW)}: {np.bincount(topics)}")
made = poet_onnx.torch.export(
    net,
    torch.from_numpy(words[:BATCH]),
    "topics.onnx",
    loss="cross-entropy",
    lora=poet_onnx.Lora(targets=["words.weight", "*.query.weight", "*.value.weight"], rank=8, alpha=16),
    train="head.*",
    device="a72",
    target="stock",
    ram_budget="52MiB",
)
print(made.check)

order = np.random.default_rng(0).permutation(len(words))
cut = len(order) // 4 // BATCH * BATCH
parts = {"train": order[cut:], "test": order[:cut]}
arrays = {part: words[rows] for part, rows in parts.items()}
np.savez("topics.npz", **arrays, **{f"{part}_topics": topics[rows] for part, rows in parts.items()})
