"""Small training graphs, made where a test needs one with certain operators."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

FLOAT = onnx.TensorProto.FLOAT


def export_small(
    folder: Path,
    nodes: Sequence[onnx.NodeProto],
    parameters: Mapping[str, Sequence[int]],
    *,
    x: Sequence[int | str],
    classes: int,
    frozen: Sequence[str] = (),
) -> Path:
    """Make the training graph of a classifier that computes `scores` of `x` in a folder, and return its path.

    Args:
        folder: where all the artifacts go.
        nodes: from `x` to `scores`, of ONNX opset 15.
        parameters: their shapes; they are random.
        x: shape of the input, the batch first.
        classes: scores of each sample.
        frozen: parameters without gradients.
    """
    from onnxruntime.training import artifacts

    generator = np.random.default_rng(0)
    graph = helper.make_graph(
        nodes,
        "forward",
        [helper.make_tensor_value_info("x", FLOAT, x)],
        [helper.make_tensor_value_info("scores", FLOAT, (x[0], classes))],
        [
            onnx.numpy_helper.from_array(generator.standard_normal(shape).astype(np.float32), name)
            for name, shape in parameters.items()
        ],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        artifacts.generate_artifacts(
            helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8),
            requires_grad=[name for name in parameters if name not in frozen],
            frozen_params=list(frozen),
            loss=artifacts.LossType.CrossEntropyLoss,
            optimizer=artifacts.OptimType.AdamW,
            artifact_directory=str(folder),
        )
    return folder / "training_model.onnx"
