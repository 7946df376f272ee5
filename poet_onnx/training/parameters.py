"""Where a training session gets its first parameters from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from poet_onnx.errors import InputError
from poet_onnx.extract import load_model
from poet_onnx.training.checkpoint import read_all
from poet_onnx.training.contents import constant_array
from poet_onnx.training.ort_checkpoint import is_ort_checkpoint, read_ort_checkpoint

Array = npt.NDArray[np.generic]
Source = str | os.PathLike[str] | Mapping[str, Array]
"""A checkpoint of onnxruntime-training, a safetensors file, an ONNX model with weights, or arrays by name."""

OWN_PREFIX = "poet/"
"""Of tensors that are no parameters: what training keeps besides."""


def read_parameters(source: Source) -> dict[str, Array]:
    """Return parameters by name.

    Raises:
        InputError: if they cannot be read.
    """
    if isinstance(source, Mapping):
        for name, array in source.items():
            if not isinstance(array, np.ndarray):
                raise InputError(f"Parameter '{name}' is a {type(array).__name__}, but must be a numpy array.")
        return dict(source)
    path = Path(source)
    try:
        if path.suffix == ".safetensors":
            return read_all(path, lambda name: not name.startswith(OWN_PREFIX))
        if path.is_file() and is_ort_checkpoint(path):
            return read_ort_checkpoint(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from error
    model = load_model(path)
    return {name: constant_array(name, value.const_value) for name, value in model.graph.initializers.items()}
