"""Random inputs for a training graph: right types and shapes, indices in range, weights scaled by fan-in."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import numpy.typing as npt

from poet_onnx.description.optimizers import KINDS, of_rows
from poet_onnx.errors import InputError
from poet_onnx.graph import Node, Tensor, TrainingGraph
from poet_onnx.graph.operators import vocabulary

_PASS_VALUES_ON = frozenset(
    ("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Cast", "Transpose", "Slice", "Expand", "Tile", "Split")
)
_INDEX_INPUT = {"Gather": 1, "GatherElements": 1, "ArrayFeatureExtractor": 1}
_LABEL_INPUT = {"SoftmaxCrossEntropyLoss": 1, "SoftmaxCrossEntropyLossInternal": 1, "NegativeLogLikelihoodLoss": 1}
_UPDATES = {
    operator: optimizer
    for optimizer in KINDS.values()
    for operator in (optimizer.operator, of_rows(optimizer.operator))
}
_UPDATE_NUMBER, _UPDATE_RATE = 10, 1e-3
_SECOND_MOMENT_INPUT = {"UpdateAdam": 4, "UpdateRowsAdam": 4}
_WEIGHT_OPERATORS = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul", "FusedMatMul"))

_FLOAT_TYPES: dict[str, type] = {
    "FLOAT": np.float32,
    "DOUBLE": np.float64,
    "FLOAT16": np.float16,
    "BFLOAT16": ml_dtypes.bfloat16,
}
_INTEGER_TYPES: dict[str, type] = {
    "INT64": np.int64,
    "INT32": np.int32,
    "INT16": np.int16,
    "INT8": np.int8,
    "UINT64": np.uint64,
    "UINT32": np.uint32,
    "UINT16": np.uint16,
    "UINT8": np.uint8,
}


def random_feeds(graph: TrainingGraph, seed: int) -> dict[str, npt.NDArray[np.generic]]:
    """Return a random array for every graph input; the same seed gives the same arrays.

    What an optimizer in the step works with is what it may be in training: small rates, squares that are positive.
    Integers that reach the indices of a Gather stay below its rows, labels of a loss below its classes, and other
    integers are 0 or 1 (masks, segments). Weights are scaled by their fan-in, vectors are positive around 1 (a running
    variance must be), other floats are standard normal, booleans are tossed.

    Args:
        graph: the training graph.
        seed: of the generator; every input draws from a generator of its own, so inputs do not depend on each other.

    Raises:
        InputError: an input has an element type that no operator here computes with.
    """
    readers: dict[str, list[tuple[Node, int]]] = defaultdict(list)
    for node in graph.nodes:
        for index, name in enumerate(node.inputs):
            readers[name].append((node, index))
    feeds: dict[str, npt.NDArray[np.generic]] = {}
    for position, name in enumerate(graph.inputs):
        generator = np.random.default_rng((seed, position))
        feeds[name] = _random_array(graph, graph.tensors[name], list(_uses(readers, name)), generator)
    return feeds


def _uses(readers: dict[str, list[tuple[Node, int]]], name: str) -> Iterator[tuple[Node, int]]:
    """Yield every reader of a tensor's values and its input index, also behind operators that only pass values on."""
    pending, seen = [name], {name}
    while pending:
        for node, index in readers.get(pending.pop(), ()):
            yield node, index
            if node.op_type in _PASS_VALUES_ON and index == 0:
                new = [output for output in node.outputs if output and output not in seen]
                seen.update(new)
                pending.extend(new)


def _random_array(
    graph: TrainingGraph, tensor: Tensor, uses: list[tuple[Node, int]], generator: np.random.Generator
) -> npt.NDArray[np.generic]:
    if tensor.dtype == "BOOL":
        return generator.integers(0, 2, tensor.shape).astype(np.bool_)
    if tensor.dtype in _INTEGER_TYPES:
        bound = min((b for use in uses if (b := _index_bound(graph, *use)) is not None), default=2)
        limit = int(np.iinfo(_INTEGER_TYPES[tensor.dtype]).max)
        return generator.integers(0, max(1, min(bound, limit)), tensor.shape).astype(_INTEGER_TYPES[tensor.dtype])
    if tensor.dtype in _FLOAT_TYPES:
        return _random_floats(tensor, uses, generator).astype(_FLOAT_TYPES[tensor.dtype])
    raise InputError(f"Cannot make random values for input {tensor.name!r} of element type {tensor.dtype}.")


def _random_floats(
    tensor: Tensor, uses: list[tuple[Node, int]], generator: np.random.Generator
) -> npt.NDArray[np.float64]:
    updates = [(node, index) for node, index in uses if node.op_type in _UPDATES]
    if updates and updates[0][1] == 1:
        return _UPDATES[updates[0][0].op_type].rates(_UPDATE_NUMBER, _UPDATE_RATE, 1.0).astype(np.float64)
    if any(_SECOND_MOMENT_INPUT.get(node.op_type) == index for node, index in updates):
        return 1.0 + np.square(generator.standard_normal(tensor.shape))
    if len(tensor.shape) <= 1:
        return generator.uniform(0.5, 1.5, tensor.shape)
    values = generator.standard_normal(tensor.shape)
    if any(node.op_type in _WEIGHT_OPERATORS and index == 1 for node, index in uses):
        fan_in = math.prod(tensor.shape[1:]) if len(tensor.shape) > 2 else max(tensor.shape)
        values *= math.sqrt(2.0 / max(1, fan_in))
    return values


def _index_bound(graph: TrainingGraph, node: Node, index: int) -> int | None:
    if _INDEX_INPUT.get(node.op_type) == index:
        shape = graph.tensors[node.inputs[0]].shape
        axis = node.attributes.get("axis", 0)
        return shape[axis] if isinstance(axis, int) and shape else None
    if (node.op_type, index) == (vocabulary.WITH_GRADIENT, vocabulary.LABELS):
        matrix = node.attributes.get("matrix")
        return int(matrix[0]) if isinstance(matrix, tuple) else None
    if _LABEL_INPUT.get(node.op_type) == index:
        shape = graph.tensors[node.inputs[0]].shape
        return shape[1] if len(shape) > 1 else None
    return None
