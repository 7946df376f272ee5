"""A small parameter store: what it holds after a step, and how to check that."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from poet_onnx.files.values import Kind
from poet_onnx.training.store_file import PAGE_BYTES, Stored, StoreFile, make_store

SHAPES = {"weight": (PAGE_BYTES // 2 + 3,), "moment": (PAGE_BYTES // 2 + 3,), "bias": (7,), "frozen": (3, 5)}
"""The first two take three pages each."""


def tensors(step: int) -> dict[str, np.ndarray]:
    """Return what a store holds after a step."""
    random = np.random.default_rng(step)
    found = {name: random.random(shape, np.float32) for name, shape in SHAPES.items()}
    found["frozen"] = np.random.default_rng(99).random(SHAPES["frozen"], np.float32)
    return found


LARGE = {"table": (64, PAGE_BYTES // 4)}
"""With it a store reads ahead and writes behind where it stays in the page cache, too."""


def made(path: Path, access: str = "auto", *, is_large: bool = False) -> StoreFile:
    """Return a store that was committed at step 0; a large one has a table of zeros besides."""
    shapes = SHAPES | (LARGE if is_large else {})
    kinds = {name: Stored(Kind("float32", shape), name not in ("frozen", "table")) for name, shape in shapes.items()}
    store = make_store(path, kinds, {"model": "net"}, {"step": 0}, access=access)
    for name, array in tensors(0).items():
        store.write(name, array)
    store.commit({"step": 0})
    return store


def train(store: StoreFile, step: int) -> None:
    """Make a step without a commit: read what is trained, as updates do, and write it."""
    store.begin_step()
    for name in ("weight", "moment", "bias"):
        for _ in store.pieces(name):
            pass
    for name, array in tensors(step).items():
        if name != "frozen":
            store.write(name, array)


def check_is_at(store: StoreFile, step: int) -> None:
    """Check that a store holds all of a step."""
    values = store.values()
    assert store.committed() == {"step": step}
    for name, array in tensors(step).items():
        assert values[name].tobytes() == array.tobytes(), name
