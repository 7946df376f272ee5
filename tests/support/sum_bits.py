"""Compare the bits of kernels of many operands with those of what ChainOperands makes of them, on random tensors.

A program: python sum_bits.py CASES.
"""

from __future__ import annotations

import json
import sys

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import helper

from poet_onnx.passes import ChainOperands

OPERATORS = ("Sum", "Mean", "Max", "Min")
EXTREME = (0.0, -0.0, np.nan, np.inf, -np.inf)


def tensor(generator: np.random.Generator, shape: tuple[int, ...], kind: type) -> npt.NDArray[np.floating]:
    """Return numbers of all magnitudes; for one tensor in two half of them zeros, infinities, NaNs and denormals."""
    numbers = np.asarray(generator.standard_normal(shape) * 10.0 ** generator.integers(-12, 13, shape)).astype(kind)
    if generator.random() < 0.5:
        limits = np.finfo(kind)
        special = np.array([*EXTREME, limits.tiny / 8, -limits.tiny / 4, limits.max, -limits.max], kind)
        chosen = special[generator.integers(0, len(special), shape)]
        numbers = np.where(generator.random(shape) < 0.5, chosen, numbers)
    return np.asarray(numbers, kind)


def shapes(generator: np.random.Generator, count: int) -> list[tuple[int, ...]]:
    """Return shapes that broadcast, or that are the same."""
    whole = tuple(int(size) for size in generator.integers(1, 40, generator.integers(0, 4)))
    if generator.random() < 0.5:
        return [whole] * count
    kept = [tuple(size if generator.random() < 0.6 else 1 for size in whole) for _ in range(count)]
    return [shape[int(generator.integers(0, len(shape) + 1)) :] for shape in kept]


def run(model: onnx.ModelProto, feeds: dict[str, npt.NDArray[np.floating]]) -> npt.NDArray[np.floating]:
    """Run a model as its file says."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return np.asarray(
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(
            None, feeds
        )[0]
    )


def main(cases: int) -> None:
    """Write how many cases were compared, and those that differ."""
    generator, different = np.random.default_rng(0), []
    for case in range(cases):
        op, count = OPERATORS[case // 2 % len(OPERATORS)], int(generator.integers(3, 12))
        kind = np.float64 if case % 2 and op != "Mean" else np.float32  # the runtime has no Mean of doubles
        feeds = {f"x{index}": tensor(generator, shape, kind) for index, shape in enumerate(shapes(generator, count))}
        element = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
        output = helper.make_tensor_value_info("y", element, None)
        inputs = [helper.make_tensor_value_info(name, element, array.shape) for name, array in feeds.items()]
        graph = helper.make_graph([helper.make_node(op, list(feeds), ["y"])], "g", inputs, [output])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)
        chained = ir.from_proto(model)
        ChainOperands()(chained)
        first, second = run(model, feeds), run(ir.to_proto(chained), feeds)
        if any(len(node.inputs) > 2 for node in chained.graph) or first.tobytes() != second.tobytes():
            different.append([op, kind.__name__, [array.shape for array in feeds.values()]])
    sys.stdout.write(json.dumps({"cases": cases, "different": different}) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))
