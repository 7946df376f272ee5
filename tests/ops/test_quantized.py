"""Products with matrices of few bits, and rows of such tables, have the bits of DequantizeLinear and a whole product.

The stock runtime runs these tests, too (test_ops.py).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper
from ops_models import FLOAT, INT64, make_model, poet_node
from quantized_models import Weight, bias_of, pack
from stored_arrays import held

from poet_onnx.graph import Tensor
from poet_onnx.graph.operators import Call, spec_of
from poet_onnx.runtime import count_allocations, session_options

Array = np.ndarray
RuntimeFailure = Exception  # ONNX Runtime's exceptions have no common base but this one
TYPES = {np.dtype(np.float32): FLOAT, np.dtype(np.int64): INT64, np.dtype(np.uint8): TensorProto.UINT8}
PANELS = {"panel_rows": 128, "biased": 0}
WEIGHTS = [
    Weight(300, 140, size=16, has_zeros=True),
    Weight(320, 128, has_zeros=True),
    Weight(321, 100, size=64, has_zeros=True),
    Weight(64, 512, size=256, has_zeros=True),
    Weight(700, 96),
    Weight(130, 34, size=16, has_zeros=True),
    Weight(300, 129, size=128, bits=8, has_zeros=True),
    Weight(257, 256, bits=8),
]
"""A last panel that is narrow, just not, or has rows of its own; one panel; blocks that end early, zeros that begin
within a byte."""


TALL = Weight(2230, 70, size=32, has_zeros=True)
"""Rows of several windows, which are read from a store one at a time."""


def parts_of(weight: Weight, *, signed: bool = False) -> dict[str, Array]:
    """Return codes, scales and zeros as the operators take them."""
    flip = 1 << (weight.bits - 1) if signed else 0
    codes, zeros = weight.codes ^ flip, weight.zeros ^ flip
    zeros = pack(zeros.reshape(1, -1))[0] if weight.bits == 4 else zeros.reshape(-1)
    return {"codes": pack(codes) if weight.bits == 4 else codes, "scales": weight.scales, "zeros": zeros}


def attributes_of(weight: Weight, *, signed: bool = False, **others: object) -> dict[str, object]:
    numbers = {"bits": weight.bits, "block": weight.size, "signed": int(signed), "zeroed": 1}
    return {"matrix": (weight.rows, weight.columns), **numbers, **others}


def session_of(node: NodeProto, arrays: Mapping[str, Array]) -> onnxruntime.InferenceSession:
    read = {name: arrays[name] for name in node.input}
    inputs = [(name, TYPES[array.dtype], list(array.shape)) for name, array in read.items()]
    return onnxruntime.InferenceSession(make_model([node], inputs, [("y", FLOAT, None)]), session_options())


def run(node: NodeProto, arrays: Mapping[str, Array]) -> Array:
    return np.asarray(session_of(node, arrays).run(None, {name: arrays[name] for name in node.input})[0])


def unfused(
    weight: Weight, x: Array, readers: Sequence[NodeProto], *, signed: bool, bias: Array | None = None
) -> Array:
    """Return what the runtime computes of floats of the whole weight, `w`."""
    node, initializers = weight.dequantized("w", "q", turned=False, signed=signed)
    if bias is not None:
        initializers.append(numpy_helper.from_array(bias, "b"))
    model = make_model([node, *readers], [("x", TYPES[x.dtype], x.shape)], [("y", FLOAT, None)], initializers)
    return np.asarray(onnxruntime.InferenceSession(model, session_options()).run(None, {"x": x})[0])


@pytest.mark.parametrize("weight", WEIGHTS, ids=str)
@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("signed", [False, True])
def test_a_product_has_the_bits_of_the_whole_one(weight: Weight, transposed: int, signed: bool) -> None:
    taken = weight.columns if transposed else weight.rows
    x = np.random.default_rng(8).standard_normal((2, 5, taken)).astype(np.float32)
    node = poet_node(
        "LinearQuantized",
        ["x", "codes", "scales", "zeros"],
        ["y"],
        **attributes_of(weight, signed=signed, panel_rows=128, transposed=transposed, biased=0),
    )
    y = run(node, {"x": x, **parts_of(weight, signed=signed)})
    whole = [
        *([helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0])] if transposed else []),
        helper.make_node("MatMul", ["x", "t" if transposed else "w"], ["y"]),
    ]
    assert y.tobytes() == unfused(weight, x, whole, signed=signed).tobytes()


@pytest.mark.parametrize("weight", WEIGHTS[:3], ids=str)
@pytest.mark.parametrize("transposed", [0, 1])
def test_a_bias_is_added_as_a_gemm_does(weight: Weight, transposed: int) -> None:
    taken, made = (weight.columns, weight.rows) if transposed else (weight.rows, weight.columns)
    x = np.random.default_rng(8).standard_normal((9, taken)).astype(np.float32)
    bias = np.resize(bias_of(weight), made)
    node = poet_node(
        "LinearQuantized",
        ["x", "codes", "scales", "zeros", "bias"],
        ["y"],
        **attributes_of(weight, panel_rows=128, transposed=transposed, biased=1),
    )
    y = run(node, {"x": x, "bias": bias, **parts_of(weight)})
    gemm = helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=transposed)
    assert y.tobytes() == unfused(weight, x, [gemm], signed=False, bias=bias).tobytes()


@pytest.mark.parametrize("weight", WEIGHTS, ids=str)
@pytest.mark.parametrize("signed", [False, True])
def test_rows_of_a_table_have_the_bits_of_those_of_the_whole_one(weight: Weight, signed: bool) -> None:
    ids = np.array([[0, weight.rows - 1, 7], [-1, -weight.rows, 7]])
    node = poet_node(
        "GatherQuantized", ["x", "codes", "scales", "zeros"], ["y"], **attributes_of(weight, signed=signed)
    )
    y = run(node, {"x": ids, **parts_of(weight, signed=signed)})
    gather = helper.make_node("Gather", ["w", "x"], ["y"])
    assert y.tobytes() == unfused(weight, ids, [gather], signed=signed).tobytes()
    assert y.tobytes() == weight.floats[ids].tobytes()


def test_a_weight_without_zeros_has_its_zero_at_code_0() -> None:
    weight = Weight(140, 64)
    parts = parts_of(weight, signed=True)
    attributes = attributes_of(weight, signed=True, panel_rows=128, transposed=1, biased=0) | {"zeroed": 0}
    node = poet_node("LinearQuantized", ["x", "codes", "scales"], ["y"], **attributes)
    x = np.random.default_rng(8).standard_normal((9, 64)).astype(np.float32)
    gemm = helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)
    assert run(node, {"x": x, **parts}).tobytes() == unfused(weight, x, [gemm], signed=True).tobytes()


@pytest.mark.parametrize("weight", [WEIGHTS[0], WEIGHTS[2], WEIGHTS[6], TALL], ids=str)
@pytest.mark.parametrize("stored", [(), ("codes",), ("scales", "zeros"), ("codes", "scales", "zeros")])
def test_what_is_in_a_store_is_read_panel_by_panel(weight: Weight, stored: Sequence[str], tmp_path: Path) -> None:
    """Workspace and bytes moved are those that are declared."""
    parts = parts_of(weight)
    store = held(tmp_path, {name: parts[name] for name in stored} or {"other": np.ones(3, np.float32)})
    given = parts | {name: np.array([store.handle(name)]) for name in stored}
    before = store.statistics()
    tall = np.array([3, 0, -1, 3, weight.rows // 2])
    for operator, x, others in (
        (
            "LinearQuantized",
            np.ones((3, weight.columns), np.float32),
            {**PANELS, "transposed": 1},
        ),
        ("LinearQuantized", np.ones((3, weight.rows), np.float32), {**PANELS, "transposed": 0}),
        ("GatherQuantized", tall, {}),
    ):
        attributes = attributes_of(weight, **others)
        node = poet_node(operator, ["x", "codes", "scales", "zeros"], ["y"], **attributes)
        expected = run(node, {"x": x, **parts})
        session = session_of(node, {"x": x, **given})
        with count_allocations() as counter:
            y = np.asarray(session.run(None, {"x": x, **given})[0])
            taken_bytes = counter.transient_peak_bytes - y.nbytes
        assert y.tobytes() == expected.tobytes()
        inputs = tuple(
            Tensor(name, TensorProto.DataType.Name(TYPES[array.dtype]), array.shape, array.nbytes, name)
            for name, array in {"x": x, **given}.items()
        )
        call = Call(operator, "poet", attributes, inputs, (Tensor("y", "FLOAT", y.shape, y.nbytes, "y"),))
        spec = spec_of("poet", operator)
        assert spec.workspace is not None
        assert spec.storage is not None
        assert spec.workspace(call) == taken_bytes
        moved = spec.storage(call).read_bytes
        assert moved <= sum(parts[name].nbytes for name in stored) + 2
        assert bool(moved) == bool(stored)
    assert bool(stored) == (store.statistics().read_bytes > before.read_bytes)
    store.close()


@pytest.mark.parametrize("weight", [WEIGHTS[0], WEIGHTS[2], WEIGHTS[6]], ids=str)
def test_floats_are_made_on_all_threads_with_the_same_bits(weight: Weight) -> None:
    """Products of several threads have bits of their own: a matrix of ones and zeros shows the floats themselves."""
    parts = parts_of(weight)
    attributes = attributes_of(weight, **PANELS, transposed=0)
    node = poet_node("LinearQuantized", ["x", "codes", "scales", "zeros"], ["y"], **attributes)
    x = np.eye(weight.rows, dtype=np.float32)
    for threads in (1, 3):
        inputs = [(name, TYPES[array.dtype], array.shape) for name, array in {"x": x, **parts}.items()]
        model = make_model([node], inputs, [("y", FLOAT, None)])
        session = onnxruntime.InferenceSession(model, session_options(threads=threads))
        np.testing.assert_array_equal(session.run(None, {"x": x, **parts})[0], weight.floats)


def test_threads_may_run_one_session_at_once() -> None:
    weight = WEIGHTS[0]
    node = poet_node(
        "LinearQuantized",
        ["x", "codes", "scales", "zeros"],
        ["y"],
        **attributes_of(weight, panel_rows=128, transposed=1, biased=0),
    )
    xs = [np.random.default_rng(seed).standard_normal((4, weight.columns)).astype(np.float32) for seed in range(4)]
    session = session_of(node, {"x": xs[0], **parts_of(weight)})
    expected = [np.asarray(session.run(None, {"x": x, **parts_of(weight)})[0]).tobytes() for x in xs]
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(20):
            y = np.asarray(session.run(None, {"x": xs[number], **parts_of(weight)})[0])
            if y.tobytes() != expected[number]:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(xs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bits": 3}, "the attribute 'bits' is 3, not 4 or 8"),
        ({"block": 0}, "the attribute 'block' is 0"),
        ({"block": 17}, "in blocks of 17, does not begin with a byte"),
        ({"block": 64}, "input 2 has 6000 bytes of element type 1, but must have 3600"),
        ({"matrix": (300, 141)}, "a row of 141 codes of 4 bits"),
        ({"matrix": (299, 140)}, "input 1 has 21000 bytes of element type 2, but must have 20930"),
        ({"matrix": (300,)}, r"a matrix of shape \[300\] has no panels"),
        ({"bits": 8}, "input 1 has 21000 bytes of element type 2, but must have 42000"),
        ({"transposed": 0}, r"x is of element type 1 and shape \[4,140\], but must be float and end in 300"),
        ({"biased": 1}, "input 4"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, object], message: str) -> None:
    weight = Weight(300, 140, size=32, has_zeros=True)
    attributes = attributes_of(weight, panel_rows=128, transposed=1, biased=0) | change
    node = poet_node("LinearQuantized", ["x", "codes", "scales", "zeros"], ["y"], **attributes)
    with pytest.raises(RuntimeFailure, match=message):
        run(node, {"x": np.ones((4, 140), np.float32), **parts_of(weight)})


def test_rows_beyond_the_table_are_refused() -> None:
    weight = WEIGHTS[1]
    node = poet_node("GatherQuantized", ["x", "codes", "scales", "zeros"], ["y"], **attributes_of(weight))
    with pytest.raises(RuntimeFailure, match="320"):
        run(node, {"x": np.array([320]), **parts_of(weight)})
