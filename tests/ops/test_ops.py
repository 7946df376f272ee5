"""The operators of domain `poet` in the ONNX Runtime of this environment, and once more in the stock one.

See tests/stock_environment.py.
"""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from deep import sampled
from folders import ROOT
from onnx import TensorProto, helper
from ops_models import FLOAT, make_model, page_descriptors, paging_nodes, poet_node, round_trip_model
from stock_environment import NEEDS_STOCK, STOCK_PYTHON

from poet_onnx.errors import InputError
from poet_onnx.ops import library_path
from poet_onnx.ops.schemas import register_schemas
from poet_onnx.runtime import count_allocations, session_options

MODES = ["sync", "async"]
TICKETS_BYTES = 64  # of all tokens and tickets of one round trip
CASTABLE = [
    *("FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"),
    *("BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"),
]
SHAPES = [(), (1,), (0,), (3, 0, 2), (7, 11), (1, 2, 1, 2, 1, 2, 1, 2, 1, 2), (1 << 18,)]
RuntimeFailure = Exception  # ONNX Runtime's exceptions have no common base but this one


@pytest.fixture
def make_session(tmp_path: Path):
    """Return a function that makes a session of a serialised model, with a page directory of the test's own."""

    def make(model: bytes, directory: Path = tmp_path) -> onnxruntime.InferenceSession:
        return onnxruntime.InferenceSession(model, session_options(page_dir=directory))

    return make


def sample(shape: tuple[int, ...]) -> np.ndarray:
    values = np.random.default_rng(7).standard_normal(int(np.prod(shape, dtype=np.int64))).astype(np.float32)
    return values.reshape(shape)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("mode", MODES)
def test_paging_returns_the_bits(make_session, mode: str, shape: tuple[int, ...]) -> None:
    session = make_session(round_trip_model(mode, shape))
    for _ in range(3):
        x = sample(shape)
        (y,) = session.run(None, {"x": x})
        assert y.shape == shape
        assert y.tobytes() == x.tobytes()


@pytest.mark.parametrize("dtype", CASTABLE)
@pytest.mark.parametrize("mode", MODES)
def test_paging_and_gate_take_every_element_type(make_session, mode: str, dtype: str) -> None:
    number = TensorProto.DataType.Value(dtype)
    nodes = [
        helper.make_node("Cast", ["x"], ["cast"], to=number),
        *paging_nodes(mode, "cast", "paged", dtype=number, shape=(5, 3)),
        poet_node("Gate", ["paged", "x"], ["gated"]),
        helper.make_node("Cast", ["gated"], ["y"], to=FLOAT),
        helper.make_node("Cast", ["cast"], ["expected"], to=FLOAT),
    ]
    model = make_model(nodes, [("x", FLOAT, (5, 3))], [("y", FLOAT, (5, 3)), ("expected", FLOAT, (5, 3))])
    y, expected = make_session(model).run(None, {"x": np.abs(sample((5, 3))) * 20})
    assert y.tobytes() == expected.tobytes()
    assert len(set(expected.ravel().tolist())) > (0 if dtype == "BOOL" else 5)


@pytest.mark.parametrize("mode", MODES)
def test_paging_allocates_nothing_but_its_tensors(make_session, mode: str) -> None:
    shape = (256, 1024)
    x = sample(shape)
    session = make_session(round_trip_model(mode, shape))
    session.run(None, {"x": x})
    with count_allocations() as memory:
        session.run(None, {"x": x})
        memory.reset_peak()
        before_bytes = memory.allocated_bytes
        result = session.run(None, {"x": x})
        assert memory.transient_peak_bytes == 2 * x.nbytes
        del result
        assert 0 <= memory.allocated_bytes - before_bytes - 3 * x.nbytes <= TICKETS_BYTES


def test_gate_copies_nothing(make_session) -> None:
    """A chain of gates on an activation, an input and an initializer allocates only the outputs of other nodes."""
    shape = (1 << 16,)
    weight = onnx.numpy_helper.from_array(sample(shape), "w")
    nodes = [
        helper.make_node("Neg", ["x"], ["a"]),
        poet_node("Gate", ["a", "x"], ["a1"]),
        poet_node("Gate", ["a1", "x", "w"], ["a2"]),
        poet_node("Gate", ["x", "a2"], ["x1"]),
        poet_node("Gate", ["w", "a"], ["w1"]),
        helper.make_node("Add", ["a2", "x1"], ["zero"]),
        helper.make_node("Add", ["zero", "w1"], ["y"]),
    ]
    session = make_session(make_model(nodes, [("x", FLOAT, shape)], [("y", FLOAT, shape)], [weight]))
    x = sample(shape) * 2
    session.run(None, {"x": x})
    with count_allocations() as memory:
        (y,) = session.run(None, {"x": x})
        assert memory.allocated_bytes == 3 * x.nbytes
    assert y.tobytes() == onnx.numpy_helper.to_array(weight).tobytes()


def test_gate_may_be_a_graph_output(make_session) -> None:
    nodes = [helper.make_node("Neg", ["x"], ["a"]), poet_node("Gate", ["a"], ["y"])]
    session = make_session(make_model(nodes, [("x", FLOAT, (4,))], [("a", FLOAT, (4,)), ("y", FLOAT, (4,))]))
    a, y = session.run(None, {"x": sample((4,))})
    assert a.tobytes() == y.tobytes() == (-sample((4,))).tobytes()


@pytest.mark.parametrize("mode", MODES)
def test_several_page_ins_of_one_page_out(make_session, mode: str) -> None:
    shape = (1000,)
    nodes = [helper.make_node("Neg", ["x"], ["a"]), *paging_nodes(mode, "a", "b", dtype=FLOAT, shape=shape, slot=5)]
    again = {"slot": 5, "dtype": FLOAT, "shape": shape}
    if mode == "sync":
        nodes.append(poet_node("PageIn", ["b_token", "b"], ["c"], **again))
    else:
        nodes.append(poet_node("PageInStart", ["b_token", "b"], ["c_raw", "c_ticket"], **again))
        nodes.append(poet_node("PageInEnd", ["c_raw", "c_ticket"], ["c"]))
    nodes.append(helper.make_node("Add", ["b", "c"], ["y"]))
    session = make_session(make_model(nodes, [("x", FLOAT, shape)], [("y", FLOAT, shape)]))
    for _ in range(5):
        (y,) = session.run(None, {"x": sample(shape)})
        assert (y == -2 * sample(shape)).all()


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_ALL"])
@pytest.mark.parametrize("mode", MODES)
def test_default_session_options_give_the_same_bits(tmp_path: Path, mode: str, level: str) -> None:
    """With an arena, memory patterns and another order the buffers are not blocks of their own: slower, never wrong."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.add_session_config_entry("poet.page_dir", str(tmp_path))
    options.register_custom_ops_library(str(library_path()))
    nodes = [helper.make_node("Neg", ["x"], ["a0"])]
    for i in range(8):
        nodes += paging_nodes(mode, f"a{i}", f"b{i}", dtype=FLOAT, shape=(1 << 18,), slot=i)
        nodes.append(helper.make_node("Add", [f"b{i}", "x"], [f"a{i + 1}"]))
    session = onnxruntime.InferenceSession(
        make_model(nodes, [("x", FLOAT, (1 << 18,))], [("a8", FLOAT, (1 << 18,))]), options
    )
    x = np.round(sample((1 << 18,)) * 8)
    for _ in range(5):
        assert (session.run(None, {"x": x})[0] == 7 * x).all()


def test_page_file_is_private_and_unnamed(make_session, tmp_path: Path) -> None:
    session = make_session(round_trip_model("async", (1 << 16,)))
    sizes = set()
    for _ in range(20):
        session.run(None, {"x": sample((1 << 16,))})
        (descriptor,) = page_descriptors(tmp_path)
        status = os.fstat(descriptor)
        sizes.add((status.st_size, status.st_blocks))
        assert status.st_mode & 0o777 == 0o600
        assert status.st_nlink == 0
        assert not os.get_inheritable(descriptor)
        assert list(tmp_path.iterdir()) == []
    assert sizes == {(4 << 16, (4 << 16) // 512)}
    del session
    assert page_descriptors(tmp_path) == []


def test_each_session_has_a_page_file_of_its_own_as_large_as_its_pages(make_session, tmp_path: Path) -> None:
    sessions = [make_session(round_trip_model("sync", (10,))), make_session(round_trip_model("async", (1 << 16,)))]
    sizes = sorted(os.fstat(descriptor).st_size for descriptor in page_descriptors(tmp_path))
    assert sizes == [4096, 4 << 16]
    del sessions[1]
    (descriptor,) = page_descriptors(tmp_path)
    assert os.fstat(descriptor).st_size == 4096
    assert sessions[0].run(None, {"x": sample((10,))})[0].tobytes() == sample((10,)).tobytes()


@pytest.mark.parametrize("mode", MODES)
def test_sessions_do_not_collide(make_session, mode: str) -> None:
    """Sessions with the same slots in the same directory, run in turns and from several threads at once."""
    shape = (20_000,)
    sessions = [make_session(round_trip_model(mode, shape)) for _ in range(4)]

    def work(number: int) -> None:
        for turn in range(25):
            x = np.full(shape, number * 1000 + turn, np.float32)
            assert (sessions[number].run(None, {"x": x})[0] == x).all()

    for number in range(4):
        work(number)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


@pytest.mark.parametrize(("elements", "turns"), [(20_000, 25), (100, 1_500)])
@pytest.mark.parametrize("mode", MODES)
def test_concurrent_runs_of_one_session_are_right_or_refused(
    make_session, mode: str, elements: int, turns: int
) -> None:
    shape = (elements,)
    session = make_session(round_trip_model(mode, shape))

    def work(number: int) -> int:
        refused = 0
        for turn in range(turns):
            x = np.full(shape, number * 10_000 + turn, np.float32)
            try:
                (y,) = session.run(None, {"x": x})
            except RuntimeFailure as error:
                assert "concurrent run" in str(error), str(error)
                refused += 1
            else:
                assert (y == x).all()
        return refused

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(work, range(4))) < 4 * turns
    assert work(9) == 0


def test_models_with_the_operators_pass_the_checker() -> None:
    register_schemas()
    register_schemas()
    for mode in MODES:
        model = onnx.load_from_string(round_trip_model(mode, (2, 3)))
        onnx.checker.check_model(model, full_check=True)
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
        types = {value.name: value.type.tensor_type for value in inferred.graph.value_info}
        assert [dim.dim_value for dim in types["back"].shape.dim] == [2, 3]
        assert types["back"].elem_type == FLOAT
        assert [dim.dim_value for dim in types["back_token"].shape.dim] == [1]
    missing = make_model([poet_node("PageOut", ["x"], ["t"])], [("x", FLOAT, (1,))], [("t", TensorProto.INT64, (1,))])
    with pytest.raises(onnx.checker.ValidationError, match="slot"):
        onnx.checker.check_model(onnx.load_from_string(missing))


def test_library_that_was_not_built_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("poet_onnx.ops.__path__", [str(tmp_path)])
    with pytest.raises(InputError, match=r"libpoet_ops\.so is not in any of .*pip install"):
        library_path()


QUICK = ("ops/ops", "ops/accumulate", "ops/arena", "ops/refusals", "ops/fork", "ops/threads", "runtime/paging")
LONG = (
    "ops/faults",
    "ops/quantized",
    "ops/vocabulary_loss",
    "runtime/runtime",
    "runtime/directories",
    "runtime/page_sizes",
)


@NEEDS_STOCK
@pytest.mark.parametrize("names", sampled([(QUICK,), (LONG,)], (QUICK,)), ids=["quick", "long"])
def test_the_stock_runtime_passes_these_tests(names: tuple[str, ...]) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "POET_STOCK_PYTHON"}
    files = [str(ROOT / "tests" / name.replace("/", "/test_")) + ".py" for name in names]
    command = [STOCK_PYTHON, "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, (
        f"{done.stdout}\n{done.stderr}\n(POET_STOCK_PYTHON's environment needs poet-onnx[stock] and pytest)"
    )
