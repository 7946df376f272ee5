"""Accumulate and AccumulateRows give the bits that a whole gradient and ONNX Runtime's own accumulator give."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from ops_models import make_model, poet_node
from run_in_place import run_in_place

from poet_onnx.runtime import count_allocations, installed_runtime, session_options

FLOAT, DOUBLE, INT32, INT64, BOOL = (
    getattr(TensorProto, name) for name in ("FLOAT", "DOUBLE", "INT32", "INT64", "BOOL")
)
RuntimeFailure = Exception  # ONNX Runtime's exceptions have no common base but this one


def _session(
    nodes: list[onnx.NodeProto], inputs: list[tuple[str, int, list[int]]], outputs: list[str]
) -> onnxruntime.InferenceSession:
    model = make_model(nodes, inputs, [(name, BOOL, [1]) for name in outputs])
    return onnxruntime.InferenceSession(model, session_options())


def _run(session: onnxruntime.InferenceSession, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run on copies of the feeds and return what they hold afterwards."""
    held = {name: array.copy() for name, array in feeds.items()}
    for output in run_in_place(session, held).values():
        assert output.numpy().shape == (1,)
        assert output.numpy().all()
    return held


def _sample(shape: list[int], dtype: type = np.float32) -> np.ndarray:
    values = np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype)
    values.flat[0] = -0.0
    return values


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(("onnx_type", "dtype"), [(FLOAT, np.float32), (DOUBLE, np.float64)])
def test_parts_go_where_they_belong(overwrite: bool, onnx_type: int, dtype: type) -> None:
    nodes = [
        poet_node("Accumulate", ["buffer", "low", "overwrite"], ["first"], offset=0),
        poet_node("Accumulate", ["buffer", "high", "overwrite", "first"], ["last"], offset=12),
    ]
    inputs = [("buffer", onnx_type, [5, 4]), ("low", onnx_type, [3, 4]), ("high", onnx_type, [2, 4])]
    session = _session(nodes, [*inputs, ("overwrite", BOOL, [1])], ["last"])
    buffer, gradient = _sample([5, 4], dtype), _sample([5, 4], dtype) * 3
    feeds = {"buffer": buffer, "low": gradient[:3], "high": gradient[3:], "overwrite": np.array([overwrite])}
    expected = gradient if overwrite else buffer + gradient
    assert _run(session, feeds)["buffer"].tobytes() == expected.tobytes()


def test_accumulation_is_in_place() -> None:
    nodes = [poet_node("Accumulate", ["buffer", "part", "overwrite"], ["done"], offset=0)]
    size = 1 << 16
    inputs = [("buffer", FLOAT, [size]), ("part", FLOAT, [size]), ("overwrite", BOOL, [1])]
    session = _session(nodes, inputs, ["done"])
    feeds = {"buffer": _sample([size]), "part": _sample([size]), "overwrite": np.array([False])}
    _run(session, feeds)
    with count_allocations() as counter:
        before = counter.current_bytes
        counter.reset_peak()
        _run(session, feeds)
        # The test's own copies of the inputs are OrtValues too; the node itself adds its flag alone.
        assert counter.peak_bytes - before <= 2 * size * 4 + 64


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(("index_type", "index_dtype"), [(INT32, np.int32), (INT64, np.int64)])
@pytest.mark.parametrize("indices", [[3, 0, 3, -1, 3, 6], [0], [6, 5, 4, 3, 2, 1], []])
def test_rows_equal_a_whole_gradient(overwrite: bool, index_type: int, index_dtype: type, indices: list[int]) -> None:
    width, rows = 5, 7
    ours = [poet_node("AccumulateRows", ["buffer", "indices", "gradient", "overwrite"], ["done"])]
    inputs = [("buffer", FLOAT, [rows, width]), ("indices", index_type, [len(indices)])]
    inputs += [("gradient", FLOAT, [len(indices), width]), ("overwrite", BOOL, [1])]
    session = _session(ours, inputs, ["done"])
    buffer = _sample([rows, width])
    buffer[2] = -0.0
    gradient = _sample([len(indices), width]) if indices else np.zeros([0, width], np.float32)
    feeds = {"buffer": buffer, "indices": np.array(indices, index_dtype), "gradient": gradient}
    feeds["overwrite"] = np.array([overwrite])
    expected = np.zeros_like(buffer)
    for place, index in enumerate(indices):
        expected[index] += gradient[place]
    expected = expected if overwrite else buffer + expected
    assert _run(session, feeds)["buffer"].tobytes() == expected.tobytes()


@pytest.mark.skipif(not installed_runtime().has_training, reason="GatherGrad is an operator of onnxruntime-training")
@pytest.mark.parametrize("overwrite", [False, True])
def test_rows_equal_the_runtime_itself(overwrite: bool) -> None:
    rows, width, count = 50, 16, 200
    generator = np.random.default_rng(3)
    theirs = [
        helper.make_node("Shape", ["buffer"], ["shape"]),
        helper.make_node("GatherGrad", ["shape", "indices", "gradient"], ["dense"], domain="com.microsoft", axis=0),
        helper.make_node("InPlaceAccumulatorV2", ["buffer", "dense", "overwrite"], ["done"], domain="com.microsoft"),
    ]
    ours = [poet_node("AccumulateRows", ["buffer", "indices", "gradient", "overwrite"], ["done"])]
    inputs = [("buffer", FLOAT, [rows, width]), ("indices", INT64, [count])]
    inputs += [("gradient", FLOAT, [count, width]), ("overwrite", BOOL, [1])]
    feeds = {
        "buffer": _sample([rows, width]),
        "indices": generator.integers(-rows, rows, count),
        "gradient": _sample([count, width]),
        "overwrite": np.array([overwrite]),
    }
    model = onnx.load_model_from_string(make_model(theirs, inputs, [("done", BOOL, [1])]))
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    reference = onnxruntime.InferenceSession(model.SerializeToString(), session_options())
    expected = _run(reference, feeds)["buffer"]
    assert _run(_session(ours, inputs, ["done"]), feeds)["buffer"].tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", [INT32, INT64])
@pytest.mark.parametrize("taken", [False, True], ids=["its own buffer", "the base's"])
@pytest.mark.parametrize(("first", "count"), [(0, 70), (0, 9), (33, 20), (69, 1)])
def test_rows_are_added_to_a_part_of_a_table(first: int, count: int, taken: bool, dtype: int) -> None:
    """With the bits of a sum of whole gradients, also where the output takes the buffer of a base that nobody reads."""
    rows, width, given = 70, 300, 90
    base, gradient = _sample([count, width]), _sample([given, width])
    base[:1] = -0.0
    indices = np.random.default_rng(1).integers(-rows, rows // 2, given)
    nodes = [helper.make_node("Identity", ["x"], ["base"])] if taken else []
    nodes.append(
        poet_node("AddRows", ["base" if taken else "x", "indices", "gradient"], ["sum"], first=first, rows=rows)
    )
    inputs = [("x", FLOAT, [count, width]), ("indices", dtype, [given]), ("gradient", FLOAT, [given, width])]
    model = make_model(nodes, inputs, [("sum", FLOAT, [count, width])])
    kind = np.int32 if dtype == INT32 else np.int64
    feeds = {"x": base, "indices": indices.astype(kind), "gradient": gradient}
    (found,) = onnxruntime.InferenceSession(model, session_options(threads=2)).run(None, feeds)
    whole = np.zeros((rows, width), np.float32)
    for place, index in enumerate(indices):
        whole[index] += gradient[place]
    assert found.tobytes() == (base + whole[first : first + count]).tobytes()


@pytest.mark.parametrize(
    ("shape", "attributes", "message"),
    [
        ([4, 3], {"first": 3, "rows": 6}, "4 rows from row 3 on do not fit into a table of 6"),
        ([4, 3], {"first": -1, "rows": 6}, "'first' is -1, but must be 0 or more"),
        ([4, 2], {"first": 0, "rows": 6}, "the gradient has 6 elements, but 2 indices of rows of 2 name 4"),
        ([4, 3], {"first": 0, "rows": 5}, "index 5 is outside of a buffer of 5 rows"),
        ([], {"first": 0, "rows": 5}, "the base is a scalar and has no rows"),
    ],
)
def test_rows_that_fit_no_table_are_refused(shape: list[int], attributes: dict[str, int], message: str) -> None:
    nodes = [poet_node("AddRows", ["base", "indices", "gradient"], ["sum"], **attributes)]
    inputs = [("base", FLOAT, shape), ("indices", INT64, [2]), ("gradient", FLOAT, [2, 3])]
    model = make_model(nodes, inputs, [("sum", FLOAT, shape)])
    feeds = {"base": _sample(shape), "indices": np.array([0, 5]), "gradient": _sample([2, 3])}
    with pytest.raises(RuntimeFailure, match=message):
        onnxruntime.InferenceSession(model, session_options()).run(None, feeds)


@pytest.mark.parametrize(
    ("part", "offset", "message"),
    [([5, 4], 1, "does not fit"), ([1], 20, "does not fit"), ([1], 2**62, "does not fit")],
)
def test_a_part_outside_of_the_buffer_is_refused(part: list[int], offset: int, message: str) -> None:
    nodes = [poet_node("Accumulate", ["buffer", "part", "overwrite"], ["done"], offset=offset)]
    session = _session(nodes, [("buffer", FLOAT, [5, 4]), ("part", FLOAT, part), ("overwrite", BOOL, [1])], ["done"])
    feeds = {"buffer": _sample([5, 4]), "part": _sample(part), "overwrite": np.array([False])}
    with pytest.raises(RuntimeFailure, match=message):
        _run(session, feeds)


@pytest.mark.parametrize("offset", [-1, None])
def test_a_bad_offset_is_refused_when_the_session_is_made(offset: int | None) -> None:
    attributes = {} if offset is None else {"offset": offset}
    nodes = [poet_node("Accumulate", ["buffer", "part", "overwrite"], ["done"], **attributes)]
    inputs = [("buffer", FLOAT, [4]), ("part", FLOAT, [4]), ("overwrite", BOOL, [1])]
    with pytest.raises(RuntimeFailure, match="offset"):
        _session(nodes, inputs, ["done"])


@pytest.mark.parametrize(
    ("buffer", "indices", "gradient", "message"),
    [
        ((FLOAT, [4, 2]), [4], [1, 2], "index 4 is outside"),
        ((FLOAT, [4, 2]), [-5], [1, 2], "index -5 is outside"),
        ((FLOAT, [4, 2]), [1], [2, 2], "4 elements"),
        ((FLOAT, []), [0], [1, 2], "scalar"),
        ((DOUBLE, [4, 2]), [0], [1, 2], "both must be float"),
    ],
)
def test_bad_rows_are_refused(
    buffer: tuple[int, list[int]], indices: list[int], gradient: list[int], message: str
) -> None:
    nodes = [poet_node("AccumulateRows", ["buffer", "indices", "gradient", "overwrite"], ["done"])]
    inputs = [("buffer", *buffer), ("indices", INT64, [len(indices)]), ("gradient", FLOAT, gradient)]
    session = _session(nodes, [*inputs, ("overwrite", BOOL, [1])], ["done"])
    values = np.zeros(buffer[1], np.float32 if buffer[0] == FLOAT else np.float64)
    feeds = {"buffer": values, "indices": np.array(indices, np.int64), "gradient": _sample(gradient)}
    with pytest.raises(RuntimeFailure, match=message):
        _run(session, {**feeds, "overwrite": np.array([False])})
