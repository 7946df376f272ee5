"""A model with a region, and sessions of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from ops_models import FLOAT, make_model, poet_node

from poet_onnx.addresses.marks import marks
from poet_onnx.addresses.region import Address, StepAddresses
from poet_onnx.runtime import (
    session_options,
)

SIDE = 24
SHAPE = (1, 8, SIDE, SIDE)
BYTES = 4 * 8 * SIDE * SIDE
WORKSPACE_BYTES = 1 << 20
REGION_BYTES = 3 * BYTES + WORKSPACE_BYTES
Block = tuple[int, int, int]
Step = tuple[int, int, list[Block]]
# Conv (with workspace), Neg, Add, a Gather that fails for a bad index, and Neg, whose result leaves with the caller.
PLANNED: list[Step] = [
    (3 * BYTES, WORKSPACE_BYTES, [(0, BYTES, 2)]),
    (0, 0, [(BYTES, BYTES, 2)]),
    (0, 0, [(2 * BYTES, BYTES, 4)]),
    (0, 0, [(0, 4, 3)]),
    (0, 0, [(-1, BYTES, 4)]),
]


def numbers(steps: list[Step]) -> list[int]:
    """Return the attribute `layout` of some steps."""
    found = []
    for offset, size, blocks in steps:
        found += [offset, size, len(blocks), *(number for block in blocks for number in block)]
    return found


def with_arena(nodes: list[onnx.NodeProto], steps: list[Step], region_bytes: int) -> list[onnx.NodeProto]:
    """Return nodes, one for each step, behind the one with their layout, and with the marks that the layout needs."""
    told = marks([StepAddresses(at, size, tuple(Address(*block) for block in blocks)) for at, size, blocks in steps])
    made = [poet_node("Arena", ["x"], ["armed"], region_bytes=region_bytes, layout=numbers(steps))]
    for index, node in enumerate([*nodes, None]):
        if index in told:
            made.append(helper.make_node("Mark", ["x"], [], f"mark{index}", domain="poet", step=told[index]))
        if node is not None:
            made.append(node)
    return made


def model(steps: list[Step] | None, region_bytes: int = REGION_BYTES) -> bytes:
    """Compute -(conv(x) + -conv(x) ...): a model with a layout, or without one for None."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Neg", ["x"], ["n"]),
        helper.make_node("Add", ["c", "n"], ["s"]),
        helper.make_node("Gather", ["table", "index"], ["picked"]),
        helper.make_node("Neg", ["s"], ["y"]),
    ]
    if steps is not None:
        nodes = with_arena(nodes, steps, region_bytes)
    weights = np.random.default_rng(1).standard_normal((8, 8, 3, 3)).astype(np.float32)
    initializers = [
        helper.make_tensor("w", FLOAT, weights.shape, weights.tobytes(), raw=True),
        helper.make_tensor("table", FLOAT, [2], [1.0, 2.0]),
    ]
    inputs = [("x", FLOAT, SHAPE), ("index", TensorProto.INT64, ())]
    return make_model(nodes, inputs, [("y", FLOAT, SHAPE)], initializers)


def make_session(payload: bytes, directory: Path, threads: int = 1) -> onnxruntime.InferenceSession:
    options = session_options(page_dir=directory, threads=threads)
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(payload, options)


def feeds(seed: int = 0, index: int = 0) -> dict[str, np.ndarray]:
    x = np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)
    return {"x": x, "index": np.array(index)}
