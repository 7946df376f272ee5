"""What ONNX Runtime computes of a small model: where its answer counts, and not that of a definition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from poet_onnx.errors import InputError
from poet_onnx.runtime.installed import import_onnxruntime

Array = npt.NDArray[Any]


def computed(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    """Return the outputs of a model of a few nodes.

    Args:
        model: whole, without other files.
        feeds: its inputs, by name.

    Raises:
        InputError: if it cannot be run, or no ONNX Runtime is installed.
    """
    runtime = import_onnxruntime()
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        made = runtime.InferenceSession(model.SerializeToString(), options).run(None, dict(feeds))
    except Exception as error:  # its exceptions have no common base but this one
        first = str(error).strip().splitlines()[0]
        raise InputError(f"ONNX Runtime cannot run {model.graph.node[0].op_type}: {first}") from error
    return [np.asarray(each) for each in made]
