"""A store of a few arrays, and arrays that an optimizer updates."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from poet_onnx.description.optimizers import KINDS
from poet_onnx.files.values import Kind
from poet_onnx.training.store_file import Stored, StoreFile, make_store

Array = np.ndarray


def held(directory: Path, arrays: Mapping[str, Array]) -> StoreFile:
    """Return a store of these arrays, committed. Another tensor lies before them, so that no handle ends in 0."""
    arrays = {"first": np.ones(5, np.float32), **arrays}
    kinds = {name: Stored(Kind(array.dtype.name, array.shape), True) for name, array in arrays.items()}
    store = make_store(directory, kinds, {}, {})
    for name, array in arrays.items():
        store.write(name, array)
    store.commit({})
    return store


def samples(kind: str, shape: tuple[int, ...]) -> tuple[Array, dict[str, Array]]:
    """Return a gradient, and a parameter with what an optimizer keeps for it."""
    random = np.random.default_rng(shape[0])
    arrays = {name: np.abs(random.standard_normal(shape, np.float32)) for name in ("w", *KINDS[kind].slots)}
    return random.standard_normal(shape, np.float32), arrays


def check_holds(store: StoreFile, arrays: Mapping[str, Array]) -> None:
    values = store.values()
    for name, array in arrays.items():
        assert values[name].tobytes() == array.tobytes(), name
