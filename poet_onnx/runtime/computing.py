"""What ONNX Runtime computes of a small model: where its answer counts, and not that of a definition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from poet_onnx.errors import InputError
from poet_onnx.runtime.installed import import_onnxruntime, runtime_errors
from poet_onnx.runtime.options import session_options

Array = npt.NDArray[Any]


def computed(model: bytes, feeds: Mapping[str, Array], *, failure: str, threads: int = 1) -> dict[str, Array]:
    """Return the outputs of a model by name.

    Args:
        model: whole, without other files.
        feeds: its inputs, by name.
        failure: what to say where it fails, without a full stop.
        threads: inside an operator.

    Raises:
        InputError: if it cannot be run, or no ONNX Runtime is installed.
    """
    runtime = import_onnxruntime()
    try:
        session = runtime.InferenceSession(model, session_options(threads=threads))
        names = [output.name for output in session.get_outputs()]
        made = session.run(names, dict(feeds))
    except runtime_errors() as error:
        raise InputError(f"{failure}: {error}") from error
    return {name: np.asarray(each) for name, each in zip(names, made, strict=True)}
