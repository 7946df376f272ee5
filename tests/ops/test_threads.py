"""Kernels on the threads of their session: the bits are those of one thread, whatever the number, and errors come back.

test_ops.py runs it in the stock runtime, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from ops_models import make_model, poet_node

from poet_onnx.runtime import session_options

Array = np.ndarray
RuntimeFailure = Exception  # ONNX Runtime's exceptions have no common base but this one
RNG = np.random.default_rng(11)
BOOL = np.array([False])
TURNS = 3
"""Runs of each session: threads come in another order each time."""


def floats(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def places(most: int, *shape: int) -> Array:
    return RNG.integers(0, most, shape)


@dataclass(frozen=True)
class Case:
    """A node, with what it reads and the element types of what it makes; it changes some of its inputs in place."""

    op_type: str
    inputs: tuple[Array, ...]
    outputs: tuple[int, ...]
    attributes: dict[str, Any]


FLOAT, FLAG = TensorProto.FLOAT, TensorProto.BOOL
IMAGES = (3, 37, 21, 23)
WINDOW = {"kernel": [3, 5], "strides": [2, 1], "dilations": [1, 1], "begins": [1, 2]}
TILES = {"kernel": [2, 2], "strides": [2, 2], "dilations": [1, 1], "begins": [0, 0]}
CHANNELS = IMAGES[1]
COUNT = 50_001
HEADS = (floats(2, 130, 4, 32), floats(2, 2, 130, 32), floats(2, 130, 2, 32))
HIDING = np.triu(np.full((1, 1, 130, 130), -np.inf, np.float32), 1)
ATTENTION = {"block_rows": 64, "tokens_first": [1, 0, 1, 1], "heads": [0] * 4, "capped": 0, "masked": 1, "guarded": 0}

CASES = {
    "Accumulate": Case("Accumulate", (floats(COUNT + 7), floats(COUNT), BOOL), (FLAG,), {"offset": 7}),
    "AccumulateRows": Case(
        "AccumulateRows", (floats(700, 300), places(700, 1500), floats(1500, 300), BOOL), (FLAG,), {}
    ),
    "AccumulateRows anew": Case(
        "AccumulateRows", (floats(700, 300), places(90, 1500), floats(1500, 300), ~BOOL), (FLAG,), {}
    ),
    "AddRows": Case(
        "AddRows", (floats(600, 300), places(700, 1500), floats(1500, 300)), (FLOAT,), {"first": 50, "rows": 700}
    ),
    "Attend": Case("Attend", (*HEADS, np.float32([0.2, 0]), HIDING), (FLOAT,), ATTENTION),
    "AttendGradient": Case(
        "AttendGradient", (floats(2, 130, 4, 32), *HEADS, np.float32([0.2, 0]), HIDING), (FLOAT,) * 3, ATTENTION
    ),
    "UpdateSgd": Case("UpdateSgd", (floats(COUNT), floats(3), floats(COUNT)), (FLAG,), {"offset": 0}),
    "UpdateMomentum": Case(
        "UpdateMomentum", (floats(COUNT), floats(5), floats(COUNT), floats(COUNT)), (FLAG,), {"offset": 0}
    ),
    "UpdateAdam": Case(
        "UpdateAdam",
        (floats(COUNT), np.abs(floats(10)), floats(COUNT), floats(COUNT), np.abs(floats(COUNT))),
        (FLAG,),
        {"offset": 0},
    ),
    "UpdateRowsAdam": Case(
        "UpdateRowsAdam",
        (
            *(floats(1500, 300), np.abs(floats(10)), floats(700, 300), floats(700, 300), np.abs(floats(700, 300))),
            places(90, 1500),
        ),
        (FLAG,),
        {},
    ),
    "BatchNormalize": Case(
        "BatchNormalize",
        (floats(*IMAGES), *(floats(CHANNELS) for _ in range(4)), np.array([1e-5, 0.9, 1], np.float32)),
        (FLOAT,) * 3,
        {},
    ),
    "BatchNormalizeGradient": Case(
        "BatchNormalizeGradient",
        (floats(*IMAGES), floats(*IMAGES), *(floats(CHANNELS) for _ in range(3))),
        (FLOAT,) * 3,
        {},
    ),
    "GatedActivate": Case("GatedActivate", (floats(COUNT), floats(COUNT)), (FLOAT,), {"activation": 0}),
    "GatedActivateGradient": Case(
        "GatedActivateGradient", (floats(COUNT), floats(COUNT), floats(COUNT)), (FLOAT,) * 2, {"activation": 2}
    ),
    "GatherGradient": Case(
        "GatherGradient", (places(90, 1500), floats(1500, 300)), (FLOAT,), {"shape": [700, 300], "axis": 0}
    ),
    "GatherGradient within": Case(
        "GatherGradient", (places(60, 5, 300), floats(4, 5, 300, 20)), (FLOAT,), {"shape": [4, 60, 20], "axis": 1}
    ),
    "LayerNormalizeGradient": Case(
        "LayerNormalizeGradient",
        (floats(150, 330), floats(150, 330), floats(330), floats(150, 1), floats(150, 1)),
        (FLOAT,) * 3,
        {},
    ),
    "CountedDropout": Case(
        "CountedDropout",
        (floats(COUNT), np.float32(0.3).reshape(1), np.array([12345], np.int64)),
        (FLOAT, FLAG),
        {"seed": 4},
    ),
    "CountedNormal": Case(
        "CountedNormal",
        (np.array([12345], np.int64),),
        (FLOAT,),
        {"seed": 4, "shape": (COUNT,), "mean": 0.5, "scale": 2.0},
    ),
    "CountedUniform": Case(
        "CountedUniform",
        (np.array([12345], np.int64),),
        (FLOAT,),
        {"seed": 4, "shape": (COUNT,), "low": -1.0, "high": 2.0},
    ),
    "CrossEntropyGradient": Case(
        "CrossEntropyGradient", (floats(60, 1000), places(1000, 60), np.array([0.25], np.float32)), (FLOAT,), {}
    ),
    "CrossEntropyGradient of pixels": Case(
        "CrossEntropyGradient", (floats(2, 21, 33, 35), places(21, 2, 33, 35), floats(2, 33, 35)), (FLOAT,), {}
    ),
    "ConvDataGradient": Case(
        "ConvDataGradient",
        (floats(3, 2 * CHANNELS, 11, 23), floats(2 * CHANNELS, CHANNELS, 3, 5)),
        (FLOAT,),
        {"image": [21, 23], **WINDOW, "pixels": [11, 23], "group": 1, "images": 1, "rows": 4},
    ),
    "ConvWeightGradient": Case(
        "ConvWeightGradient",
        (floats(3, 2 * CHANNELS, 11, 23), floats(*IMAGES)),
        (FLOAT,),
        {**WINDOW, "pixels": [11, 23], "group": 1, "images": 2, "rows": 11, "columns": 31},
    ),
    "DepthwiseDataGradient": Case(
        "DepthwiseDataGradient",
        (floats(3, CHANNELS, 11, 23), floats(CHANNELS, 1, 3, 5)),
        (FLOAT,),
        {"image": [21, 23], **WINDOW},
    ),
    "DepthwiseWeightGradient": Case(
        "DepthwiseWeightGradient", (floats(3, 2 * CHANNELS, 11, 23), floats(*IMAGES)), (FLOAT,), WINDOW
    ),
    "MaxPoolTaps": Case("MaxPoolTaps", (floats(*IMAGES),), (FLOAT, TensorProto.UINT8), {**WINDOW, "pixels": [11, 23]}),
    "MaxPoolGradient": Case(
        "MaxPoolGradient",
        (floats(3, 25, 20, 20), places(4, 3, 25, 20, 20).astype(np.uint8)),
        (FLOAT,),
        {**TILES, "image": [40, 40]},
    ),
    "ActivationGradient": Case(
        "ActivationGradient",
        (floats(150, 330), floats(150, 330), floats(330)),
        (FLOAT,),
        {"activation": 1, "biased": 1},
    ),
    "SoftmaxGradient": Case("SoftmaxGradient", (floats(150, 330), floats(150, 330)), (FLOAT,), {}),
    "RectifierGradient": Case(
        "RectifierGradient", (floats(COUNT), floats(COUNT), np.zeros(1, np.float32)), (FLOAT,), {}
    ),
    "Rotate": Case(
        "Rotate",
        (floats(3, 5, 70, 64), floats(70, 32), floats(70, 32)),
        (FLOAT,),
        {"rotated": 32, "interleaved": 0, "inverse": 0, "heads": 0},
    ),
    "RmsNormalize": Case("RmsNormalize", (floats(150, 330), floats(330)), (FLOAT,) * 2, {"epsilon": 1e-5}),
    "RmsNormalizeGradient": Case(
        "RmsNormalizeGradient", (floats(150, 330), floats(150, 330), floats(330), floats(150, 1)), (FLOAT,), {}
    ),
    "RmsNormalizeScaleGradient": Case(
        "RmsNormalizeScaleGradient", (floats(150, 330), floats(150, 330), floats(150, 1)), (FLOAT,), {}
    ),
    "RectifierGradient that leaks": Case(
        "RectifierGradient", (floats(COUNT), floats(COUNT), np.full(1, 0.1, np.float32)), (FLOAT,), {}
    ),
}


def session_of(case: Case, threads: int) -> onnxruntime.InferenceSession:
    """Return a session of the node alone."""
    names = [f"x{index}" for index in range(len(case.inputs))]
    inputs = [
        (name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in zip(names, case.inputs, strict=True)
    ]
    outputs = [(f"y{index}", dtype, None) for index, dtype in enumerate(case.outputs)]
    node = poet_node(case.op_type, names, [name for name, _, _ in outputs], **case.attributes)
    return onnxruntime.InferenceSession(make_model([node], inputs, outputs), session_options(threads=threads))


def bits(case: Case, threads: int) -> list[list[bytes]]:
    """Return the bits of what some runs read, which they may change, and make."""
    session, found = session_of(case, threads), []
    for _ in range(TURNS):
        binding = session.io_binding()
        read = [array.copy() for array in case.inputs]
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(array, "cpu") for array in read]  # borrow the memory
        for index, value in enumerate(values):
            binding.bind_ortvalue_input(f"x{index}", value)
        for output in session.get_outputs():
            binding.bind_output(output.name)
        session.run_with_iobinding(binding)
        found.append([array.tobytes() for array in (*read, *(made.numpy() for made in binding.get_outputs()))])
    return found


@pytest.mark.parametrize("name", CASES)
def test_bits_do_not_depend_on_the_number_of_threads(name: str) -> None:
    case = CASES[name]
    first, *others = bits(case, 1)
    assert others == [first] * (TURNS - 1)
    for threads in (2, 4):
        assert bits(case, threads) == [first] * TURNS
    is_changed = any(array.tobytes() != after for array, after in zip(case.inputs, first, strict=False))
    assert is_changed or any(first[-1]), "the node does nothing"


def changed(name: str, index: int, array: Array) -> Case:
    case = CASES[name]
    inputs = (*case.inputs[:index], array, *case.inputs[index + 1 :])
    return Case(case.op_type, inputs, case.outputs, case.attributes)


def test_errors_of_work_on_several_threads_are_the_kernels() -> None:
    astray = places(4, 3, 25, 20, 20).astype(np.uint8)
    astray[1, 7, 3, 4] = 4
    with pytest.raises(RuntimeFailure, match="a tap of a window lies beside the image"):
        bits(changed("MaxPoolGradient", 1, astray), 4)
    labels = places(1000, 60)
    labels[59] = 1000
    with pytest.raises(RuntimeFailure, match="label 1000 is none of 1000 classes"):
        bits(changed("CrossEntropyGradient", 1, labels), 4)
