"""One node of domain `poet` alone: what it makes of arrays, and how far that is from float64."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime
from onnx import helper
from ops_models import FLOAT, make_model, poet_node

from poet_onnx.runtime import session_options

Array = np.ndarray[Any, Any]


def run_node(op_type: str, arrays: Sequence[Array], outputs: int = 1, **attributes: object) -> list[Array]:
    """Return what a node makes, each time a number of floats."""
    names = [f"x{index}" for index in range(len(arrays))]
    made = [f"y{index}" for index in range(outputs)]
    inputs = [
        (name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in zip(names, arrays, strict=True)
    ]
    node = poet_node(op_type, names, made, **attributes)
    model = make_model([node], inputs, [(name, FLOAT, None) for name in made])
    session = onnxruntime.InferenceSession(model, session_options())
    return [np.asarray(array) for array in session.run(None, dict(zip(names, arrays, strict=True)))]


def distance(found: Array, expected: Array) -> float:
    """Return how far numbers are from others, as a part of their norm; infinite where shapes differ."""
    if found.shape != expected.shape:
        return float("inf")
    return float(np.linalg.norm(found - expected) / max(np.linalg.norm(expected), np.finfo(np.float32).tiny))
