"""A store of a few arrays, arrays that an optimizer updates, and nodes that run on them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime
from onnx import TensorProto
from ops_models import FLOAT, INT64, make_model, poet_node

from poet_onnx.description.optimizers import KINDS
from poet_onnx.files.values import Kind
from poet_onnx.runtime import session_options
from poet_onnx.training.store_file import Stored, StoreFile, make_store

Array = np.ndarray
BOOL, INT32 = TensorProto.BOOL, TensorProto.INT32
TYPES = {np.dtype(np.float32): FLOAT, np.dtype(np.int64): INT64, np.dtype(np.int32): INT32, np.dtype(np.bool_): BOOL}


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


def run(op_type: str, arrays: Mapping[str, Array], output: int = BOOL, **attributes: int | tuple[int, ...]) -> Array:
    """Run one node and return what it makes."""
    inputs = [(name, TYPES[array.dtype], list(array.shape)) for name, array in arrays.items()]
    node = poet_node(op_type, list(arrays), ["made"], **attributes)
    session = onnxruntime.InferenceSession(make_model([node], inputs, [("made", output, None)]), session_options())
    (made,) = session.run(None, dict(arrays))
    return np.asarray(made)


def handle(store: StoreFile, name: str = "w") -> Array:
    """Return what stands for a tensor among a graph's inputs."""
    return np.array([store.handle(name)], np.int64)
