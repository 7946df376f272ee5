"""Where a training session gets its first parameters from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from poet_onnx.description.names import OWN_PREFIX
from poet_onnx.errors import InputError
from poet_onnx.files.checkpoint import open_checkpoint
from poet_onnx.files.regular import as_path
from poet_onnx.files.tensor_file import is_tensor_file
from poet_onnx.files.values import Kind, Values
from poet_onnx.training.ort_checkpoint import is_ort_checkpoint, read_ort_checkpoint

Array = npt.NDArray[np.generic]
Source = str | os.PathLike[str] | Mapping[str, Array]
"""A checkpoint of onnxruntime-training, a safetensors file, an ONNX model with weights, or arrays by name.

What a file is, its contents tell, whatever its name.
"""


def read_parameters(source: Source) -> Mapping[str, Array]:
    """Return parameters by name; those of a file are read one by one, when they are asked for.

    Raises:
        InputError: if they cannot be read.
    """
    if isinstance(source, Mapping):
        for name, array in source.items():
            if not isinstance(array, np.ndarray):
                raise InputError(f"Parameter '{name}' is a {type(array).__name__}, but must be a numpy array.")
        return dict(source)
    path = as_path(source)
    try:
        is_file = path.is_file()
        if is_file and is_ort_checkpoint(path):
            return read_ort_checkpoint(path)
        if path.suffix == ".safetensors" or (is_file and is_tensor_file(path)):
            return _of_tensors(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from error
    return _of_model(path)


def _of_tensors(path: Path) -> Values:
    """Return the parameters in a safetensors file."""
    file = open_checkpoint(path)
    kinds = {name: kind for name, kind in file.kinds().items() if not name.startswith(OWN_PREFIX)}
    return Values(path, kinds, file.read_into, file.pieces)


def _of_model(path: Path) -> Values:
    """Return the parameters in an ONNX model: this alone needs the `onnx` package."""
    from poet_onnx.graph.extract import load_model
    from poet_onnx.graph.extract.contents import constant_array

    tensors = {name: value.const_value for name, value in load_model(path).graph.initializers.items()}
    kinds = {
        name: Kind(tensor.dtype.numpy().name, tuple(tensor.shape.numpy()))
        for name, tensor in tensors.items()
        if tensor is not None
    }
    return Values(path, kinds, lambda name, array: np.copyto(array, constant_array(name, tensors[name])))
