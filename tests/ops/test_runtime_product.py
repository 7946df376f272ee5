"""Nodes that multiply by ONNX Runtime's operators share these: a session has one of each kind."""

from __future__ import annotations

import ctypes
import gc

import numpy as np
import onnxruntime
from onnx import TensorProto
from ops_models import FLOAT, make_model, poet_node
from quantized_models import Weight, pack

from poet_onnx.runtime import session_options

WEIGHT = Weight(64, 64, has_zeros=True)
HOW = {"matrix": (64, 64), "panel_rows": 128, "transposed": 0, "biased": 0}
HOW |= {"bits": 4, "block": WEIGHT.size, "signed": 0, "zeroed": 1}
CODES = {"codes": pack(WEIGHT.codes), "scales": WEIGHT.scales, "zeros": pack(WEIGHT.zeros.reshape(1, -1))[0]}
MOST_BYTES = 12 << 10
"""Of the heap for a node: three operators of the runtime's take 9 KiB more."""


class HeapUse(ctypes.Structure):
    """What mallinfo2(3) returns."""

    _fields_ = [(f"field{number}", ctypes.c_size_t) for number in range(10)]


def heap_bytes() -> int:
    gc.collect()
    library = ctypes.CDLL(None)
    library.mallinfo2.restype = HeapUse
    use = library.mallinfo2()
    return int(use.field4 + use.field7)  # hblkhd and uordblks


def session_of(nodes: int) -> onnxruntime.InferenceSession:
    names = [f"y{number}" for number in range(nodes)]
    made = [poet_node("LinearQuantized", ["x", *CODES], [name], **HOW) for name in names]
    inputs = [("x", FLOAT, (5, 64)), ("scales", FLOAT, CODES["scales"].shape)]
    inputs += [(name, TensorProto.UINT8, CODES[name].shape) for name in ("codes", "zeros")]
    return onnxruntime.InferenceSession(make_model(made, inputs, [(names[-1], FLOAT, None)]), session_options())


def test_a_node_takes_no_operators_of_its_own() -> None:
    session_of(3)  # what the first session makes besides
    taken = []
    for nodes in (50, 150):
        before = heap_bytes()
        session = session_of(nodes)
        taken.append(heap_bytes() - before)
        del session
    assert 0 < (taken[1] - taken[0]) / 100 <= MOST_BYTES


def test_a_session_keeps_its_operators_when_others_end() -> None:
    x = np.random.default_rng(1).standard_normal((5, 64)).astype(np.float32)
    expected = x @ WEIGHT.floats
    kept = session_of(2)
    for _ in range(3):
        other = session_of(2)
        np.testing.assert_allclose(other.run(None, {"x": x, **CODES})[0], expected, rtol=1e-4, atol=1e-5)
        del other
        np.testing.assert_allclose(kept.run(None, {"x": x, **CODES})[0], expected, rtol=1e-4, atol=1e-5)
