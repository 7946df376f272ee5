"""Types and numbers out of a model that may come from a stranger."""

from __future__ import annotations

import logging

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from poet_onnx.errors import InputError
from poet_onnx.files.embedded import EmbeddedTensor
from poet_onnx.files.turned_tensor import TurnedTensor

Array = npt.NDArray[np.generic]


def constant_array(name: str, tensor: ir.TensorProtocol | None) -> Array:
    """Return the numbers of an initializer.

    Raises:
        InputError: if it has none, or others than its type and shape say.
    """
    try:
        array: Array | None = None if tensor is None else tensor.numpy()
    except (ValueError, TypeError, AssertionError, OverflowError, MemoryError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"The data of initializer '{name}' cannot be read: {reason}: export the model again."
        ) from error
    if array is None:
        raise InputError(f"Initializer '{name}' has no data: export the model again.")
    return array


def constant_view(name: str, tensor: ir.TensorProtocol | None) -> Array:
    """Return the numbers of an initializer where they are, to be looked at and forgotten: a file's are mapped.

    Raises:
        InputError: as `constant_array`.
    """
    return tensor.looked_at() if isinstance(tensor, (EmbeddedTensor, TurnedTensor)) else constant_array(name, tensor)


def infer_types(model: ir.Model) -> None:
    """Write the types and shapes that ONNX can tell into a model; where it cannot, the model stays as it is."""
    log = logging.getLogger(ShapeInferencePass.__module__)  # it would print what stopped it
    was, log.disabled = log.disabled, True
    try:
        ShapeInferencePass(check_type=False, strict_mode=False)(model)
    finally:
        log.disabled = was
