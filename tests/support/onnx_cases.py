"""What tests/gradients/test_onnx_cases.py runs in the stock runtime's interpreter: ONNX's own cases of its operators.

python tests/support/onnx_cases.py
Each case with a floating-point result gets a loss and gradients by everything floating-point that it takes;
these are checked against differences of the loss. Printed is a JSON list of {case, operators, verdict, message}.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test import loader
from onnx.backend.test.case import node

import poet_onnx
from poet_onnx.errors import InputError, PoetError

RELEASED_OPSET = 22
"""Newer ones are known to the newest runtimes alone, and only a few operators are new in them."""

FLOAT = onnx.TensorProto.FLOAT


def cases() -> Iterator[tuple[str, onnx.ModelProto, list[Any]]]:
    """Yield the name, the model and the inputs of each case."""
    with np.errstate(all="ignore"):
        for case in node.collect_testcases(None):
            yield case.name, case.model, list(case.data_sets[0][0]) if case.data_sets else []
    for kind in ("pytorch-converted", "pytorch-operator"):
        for case in loader.load_model_tests(kind=kind):
            folder = Path(case.model_dir, "test_data_set_0")
            files = sorted(folder.glob("input_*.pb"), key=lambda file: int(file.stem.split("_")[1]))
            inputs = [numpy_helper.to_array(onnx.load_tensor(file)) for file in files]
            yield case.name, onnx.load(Path(case.model_dir, "model.onnx")), inputs


def trainable(model: onnx.ModelProto, inputs: list[Any]) -> bool:
    """Make parameters of a case's floating-point inputs, and constants of the others; return whether there are any."""
    graph = model.graph
    there = {each.name for each in graph.initializer}
    found = any(each.data_type == FLOAT for each in graph.initializer)
    for value, array in zip([each for each in graph.input if each.name not in there], inputs, strict=False):
        is_batch = isinstance(array, np.ndarray) and array.dtype == np.float32 and array.size == 1
        if not isinstance(array, np.ndarray) or is_batch:
            continue
        graph.initializer.append(numpy_helper.from_array(array, value.name))
        graph.input.remove(value)
        found = found or array.dtype == np.float32
    for opset in model.opset_import:
        if opset.domain == "" and opset.version > RELEASED_OPSET + 2:
            opset.version = RELEASED_OPSET
    model.ir_version = min(max(model.ir_version, 4), 10)
    return found and any(each.type.tensor_type.elem_type == FLOAT for each in graph.output)


def untrainable(graph: onnx.GraphProto) -> list[str]:
    """Return the parameters with numbers that are not finite, such as masks with -inf: the others train beside them.

    Where there are no others they get finite numbers, and train: the check draws numbers of its own.
    """
    found = {each.name: numpy_helper.to_array(each) for each in graph.initializer if each.data_type == FLOAT}
    endless = [name for name, array in found.items() if not np.isfinite(array).all()]
    if len(endless) < len(found):
        return endless
    for tensor in graph.initializer:
        if tensor.name in endless:
            array = np.nan_to_num(found[tensor.name], nan=1.0, posinf=1.0, neginf=-1.0)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return []


def verdict(model: onnx.ModelProto) -> tuple[str, str]:
    """Return right, wrong or undecided, and unchecked or refused with the reason."""
    try:
        freeze = untrainable(model.graph)
        training = poet_onnx.train_graph(model, train="*", freeze=freeze, loss="mse").training
    except InputError as refusal:
        return "refused", str(refusal)
    try:
        report = poet_onnx.verify_gradients(training, directions=1)
    except PoetError as reason:
        return "unchecked", str(reason)
    found = {check.verdict for check in report.parameters}
    return next(each for each in ("wrong", "undecided", "right") if each in found), ""


def main() -> None:
    """Print what became of the cases."""
    found = []
    for name, model, inputs in cases():
        operators = sorted({each.op_type for each in model.graph.node})
        if trainable(model, inputs):
            word, message = verdict(model)
            found.append({"case": name, "operators": operators, "verdict": word, "message": message})
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
