"""Forward models as text, and a step of their training graphs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from lowering_runs import run_step

import poet_onnx

HEADER = '<ir_version: 8, opset_import: ["" : 15]>'


def parse(text: str, arrays: Mapping[str, np.ndarray[Any, np.dtype[Any]]]) -> ir.Model:
    """Return a model from ONNX's text, with initializers."""
    proto = onnx.parser.parse_model(f"{HEADER} {text}")
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    return ir.from_proto(proto)


def random(*shape: int) -> np.ndarray[Any, np.dtype[Any]]:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


LINEAR = "g (float[4, 3] x) => (float[4, 5] y) { y = MatMul(x, w) }"
NORMALIZED = """g (float[4, 3, 2, 2] x) => (float[4, 3, 2, 2] y) {
    OUTPUTS = BatchNormalization <training_mode = MODE> (x, norm_scale, norm_bias, mean, variance)
    y = Mul(h, w)
}"""


NORM_ARRAYS = {
    "w": random(3, 1, 1),
    "norm_scale": np.ones(3, np.float32),
    "norm_bias": np.zeros(3, np.float32),
    "mean": np.zeros(3, np.float32),
    "variance": np.ones(3, np.float32),
}


def weights(path: Path) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
    """Return the initializers of a model file, by name."""
    return {each.name: onnx.numpy_helper.to_array(each) for each in onnx.load(path).graph.initializer}


def normalized(training_mode: int) -> ir.Model:
    outputs = "h, new_mean, new_variance" if training_mode else "h"
    return parse(NORMALIZED.replace("MODE", str(training_mode)).replace("OUTPUTS", outputs), NORM_ARRAYS)


def linear(outputs: int = 5) -> ir.Model:
    return parse(LINEAR.replace("5", str(outputs)), {"w": random(3, outputs)})


def step(made: poet_onnx.TrainGraph, **feeds: np.ndarray[Any, Any]) -> tuple[float, dict[str, np.ndarray[Any, Any]]]:
    """Return the loss and the gradients of one step."""
    feeds |= made.values
    feeds |= {f"{name}_grad.accumulation.buffer": np.zeros_like(array) for name, array in made.values.items()}
    after = run_step(ir.to_proto(made.training).SerializeToString(), {**feeds, "lazy_reset_grad": np.ones(1, np.bool_)})
    gradients = {name: after[f"after:{name}_grad.accumulation.buffer"] for name in made.values}
    return float(after[made.loss]), gradients
