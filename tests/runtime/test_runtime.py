"""Session options, the allocation counter and the choice of ONNX Runtime."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from deep import sampled
from onnx import TensorProto, helper
from ops_models import FLOAT, make_model, page_descriptors, paging_nodes, round_trip_model

from poet_onnx.errors import InputError
from poet_onnx.rewriting.options import InspectOptions
from poet_onnx.runtime import (
    count_allocations,
    installed_runtime,
    session_options,
    training_module,
)

FLOATS = 1 << 16
BYTES = 4 * FLOATS


def chain_model(length: int) -> bytes:
    """Negate x `length` times: two tensors are alive at a time."""
    nodes = [helper.make_node("Neg", [f"v{i}"], [f"v{i + 1}"], name=f"n{i}") for i in range(length)]
    return make_model(nodes, [("v0", FLOAT, (FLOATS,))], [(f"v{length}", FLOAT, (FLOATS,))])


def test_options_run_the_nodes_of_the_file_in_its_order(tmp_path: Path) -> None:
    """Two branches, written one after the other: each node of the file runs, in place."""
    nodes = [
        helper.make_node("Neg", ["x"], ["a0"], name="a0"),
        helper.make_node("Abs", ["x"], ["b0"], name="b0"),
        helper.make_node("Neg", ["a0"], ["a1"], name="a1"),
        helper.make_node("Neg", ["x"], ["c0"], name="c0"),  # the same as a0
        helper.make_node("Neg", ["b0"], ["b1"], name="b1"),
        helper.make_node("Sum", ["a1", "b1", "c0"], ["y"], name="y"),
    ]
    options = session_options()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    model = make_model(nodes, [("x", FLOAT, (4,))], [("y", FLOAT, (4,))])
    session = onnxruntime.InferenceSession(model, options)
    session.run(None, {"x": np.ones(4, np.float32)})
    text = Path(session.end_profiling()).read_text()
    positions = [text.index(f'"{node.name}_kernel_time"') for node in nodes]
    assert positions == sorted(positions)


@pytest.mark.parametrize("threads", [1, 2])
def test_peak_is_the_liveness_of_the_file_order(threads: int) -> None:
    session = onnxruntime.InferenceSession(chain_model(6), session_options(threads=threads))
    x = np.ones(FLOATS, np.float32)
    session.run(None, {"v0": x})
    with count_allocations() as memory:
        for _ in range(3):
            memory.reset_peak()
            session.run(None, {"v0": x})
            assert memory.transient_peak_bytes == 2 * BYTES


def test_options_are_checked(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="0 threads cannot run a session"):
        session_options(threads=0)
    for odd in (1.5, True, "1"):
        with pytest.raises(InputError, match="threads cannot run a session"):
            session_options(threads=odd)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=f"{tmp_path}/none does not exist"):
        session_options(page_dir=tmp_path / "none")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=f"{tmp_path}/file does not exist or is no directory"):
        session_options(page_dir=tmp_path / "file")
    deep = tmp_path
    for _ in range(6):
        deep = deep / ("d" * 200)
    deep.mkdir(parents=True)
    with pytest.raises(InputError, match="more than 1024 bytes: give a shorter one"):
        session_options(page_dir=deep)


def test_page_directory_of_the_environment_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POET_PAGE_DIR", str(tmp_path / "none"))
    with pytest.raises(InputError, match=f"page directory {tmp_path}/none does not exist"):
        session_options()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_unwritable_page_directory_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="cannot be written"):
        session_options(page_dir=tmp_path)


def test_page_directory_comes_from_option_then_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = {name: tmp_path / name for name in ("option", "variable", "temporary")}
    for folder in folders.values():
        folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folders["temporary"]))
    monkeypatch.setenv("POET_PAGE_DIR", str(folders["variable"]))
    model = round_trip_model("sync", (10,))
    sessions = [onnxruntime.InferenceSession(model, session_options(page_dir=folders["option"]))]
    assert [len(page_descriptors(folder)) for folder in folders.values()] == [1, 0, 0]
    sessions.append(onnxruntime.InferenceSession(model, session_options()))
    assert [len(page_descriptors(folder)) for folder in folders.values()] == [1, 1, 0]
    monkeypatch.delenv("POET_PAGE_DIR")
    sessions.append(onnxruntime.InferenceSession(model, session_options()))
    assert [len(page_descriptors(folder)) for folder in folders.values()] == [1, 1, 1]
    for session in sessions:
        session.run(None, {"x": np.ones(10, np.float32)})


def test_counter_sees_existing_and_new_sessions() -> None:
    old = onnxruntime.InferenceSession(chain_model(2), onnxruntime.SessionOptions())
    x = np.ones(FLOATS, np.float32)
    with count_allocations() as memory:
        result = old.run(None, {"v0": x})
        assert memory.peak_bytes >= 2 * BYTES
        new = onnxruntime.InferenceSession(chain_model(3), session_options())
        level = memory.current_bytes
        more = new.run(None, {"v0": x})
        assert memory.current_bytes == level + BYTES
        del more
        assert memory.current_bytes == level
    del result


def test_counters_nest() -> None:
    session = onnxruntime.InferenceSession(chain_model(4), session_options())
    x = np.ones(FLOATS, np.float32)
    session.run(None, {"v0": x})
    with count_allocations() as outer:
        session.run(None, {"v0": x})
        with count_allocations() as inner:
            assert inner.transient_peak_bytes == 0
            keep = session.run(None, {"v0": x})
            assert inner.transient_peak_bytes == 2 * BYTES
            inner.reset_peak()
            assert inner.level_bytes == outer.level_bytes + BYTES
            session.run(None, {"v0": x})
            assert inner.transient_peak_bytes == 2 * BYTES
        assert outer.transient_peak_bytes == 3 * BYTES
        del keep


def test_every_allocation_is_counted() -> None:
    session = onnxruntime.InferenceSession(chain_model(3), session_options())
    x = np.ones(FLOATS, np.float32)
    session.run(None, {"v0": x})
    with count_allocations() as memory:
        session.run(None, {"v0": x})
        with count_allocations() as inner:
            session.run(None, {"v0": x})
        assert inner.allocated_bytes == 3 * BYTES
        assert memory.allocated_bytes == 2 * 3 * BYTES


def test_counter_is_exact_with_threads() -> None:
    sessions = [onnxruntime.InferenceSession(chain_model(20), session_options()) for _ in range(4)]
    x = np.ones(FLOATS, np.float32)
    for session in sessions:
        session.run(None, {"v0": x})
    with count_allocations() as memory, ThreadPoolExecutor(4) as pool:
        for _ in range(10):
            list(pool.map(lambda session: session.run(None, {"v0": x})[0].sum(), sessions))
        assert memory.current_bytes == memory.level_bytes
        assert 2 * BYTES <= memory.transient_peak_bytes <= 8 * BYTES


@pytest.mark.parametrize("found", [(), ("onnxruntime", "onnxruntime-training")])
def test_no_or_two_runtimes_are_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, found: tuple[str, ...]
) -> None:
    for name in found:
        (tmp_path / f"{name.replace('-', '_')}-1.0.dist-info").mkdir()
    (tmp_path / "onnxruntime_extensions-1.0.dist-info").mkdir()
    monkeypatch.setattr("sys.path", [str(tmp_path), str(tmp_path / "lib.zip")])
    expected = "both installed and overwrite" if found else "No ONNX Runtime is installed: `pip install"
    with pytest.raises(InputError, match=expected):
        installed_runtime()


@pytest.mark.parametrize(
    ("found", "target"),
    [
        ((), "stock"),
        (("onnxruntime",), "stock"),
        (("onnxruntime-gpu",), "stock"),
        (("onnxruntime-training",), "training"),
        (("onnxruntime", "onnxruntime-training"), "stock"),
    ],
)
def test_what_is_installed_is_what_a_graph_is_made_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, found: tuple[str, ...], target: str
) -> None:
    for name in found:
        (tmp_path / f"{name.replace('-', '_')}-1.23.0.dist-info").mkdir()
    monkeypatch.setattr("sys.path", [*sys.path[:1], str(tmp_path)])
    assert InspectOptions().target == InspectOptions(target="auto").target == target
    assert InspectOptions(target="training").target == "training"


@pytest.mark.parametrize(
    ("name", "version", "wanted"),
    [
        ("onnxruntime", "1.20.1", "onnxruntime>=1.23"),
        ("onnxruntime", "1.9.0", "onnxruntime>=1.23"),
        ("onnxruntime-gpu", "1.22.2.dev1", "onnxruntime-gpu>=1.23"),
        ("onnxruntime-training", "1.19.1+cpu", "onnxruntime-training==1.19.2"),
        ("onnxruntime", "1.23.0", None),
        ("onnxruntime", "2", None),
        ("onnxruntime-training", "1.19.2+cu118", None),
    ],
)
def test_an_older_runtime_than_supported_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, version: str, wanted: str | None
) -> None:
    (tmp_path / f"{name.replace('-', '_')}-{version}.dist-info").mkdir()
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    if wanted is None:
        assert installed_runtime() == (name, version)
        return
    with pytest.raises(InputError, match=rf"^{name} {re.escape(version)} is too old .*`pip install '{wanted}'`\.$"):
        installed_runtime()


def test_the_runtime_that_is_found_is_the_one_that_is_installed() -> None:
    runtime = installed_runtime()
    assert runtime.version == importlib.metadata.version(runtime.distribution)


@pytest.mark.parametrize(("given", "found"), sampled([(None, "1"), ("0", "0")], (None, "1")))
def test_telemetry_is_off_unless_it_is_asked_for(given: str | None, found: str) -> None:
    program = "import os, poet_onnx; poet_onnx.session_options(); print(os.environ['ORT_DISABLE_TELEMETRY'])"
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    environment |= {} if given is None else {"ORT_DISABLE_TELEMETRY": given}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"{found}\n"


def training_artifacts(folder: Path) -> None:
    """Make ONNX Runtime's training artifacts of y = x w + b."""
    from onnxruntime.training import artifacts

    rng = np.random.default_rng(0)
    weights = [
        onnx.numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in (("w", (8, 4)), ("b", (4,)))
    ]
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"], name="gemm")],
        "forward",
        [helper.make_tensor_value_info("x", FLOAT, (2, 8))],
        [helper.make_tensor_value_info("y", FLOAT, (2, 4))],
        initializer=weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)
    artifacts.generate_artifacts(
        model,
        requires_grad=["w", "b"],
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=str(folder),
    )


@pytest.mark.skipif(not installed_runtime().has_training, reason="needs onnxruntime-training")
def test_torch_is_not_imported_with_the_runtime() -> None:
    """It is installed here, and onnxruntime-training imports it by itself: 240 MB and seconds for nothing."""
    program = """
import sys
from poet_onnx.runtime.installed import import_onnxruntime
import_onnxruntime()
print("torch" in sys.modules)
try:
    import onnxruntime.training.ortmodule
except ImportError:  # of what newer versions of torch do not have
    pass
print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


@pytest.mark.skipif(not installed_runtime().has_training, reason="needs onnxruntime-training")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_training_module_runs_the_operators(tmp_path: Path) -> None:
    """A graph with a paged activation trains with onnxruntime.training.api to the same bits."""
    training_artifacts(tmp_path)
    from onnxruntime.training.api import CheckpointState

    model = onnx.load(tmp_path / "training_model.onnx")
    at = next(i for i, node in enumerate(model.graph.node) if node.op_type == "SoftmaxCrossEntropyLoss")
    logits = model.graph.node[at].input[0]
    paged = paging_nodes("async", logits, "paged", dtype=FLOAT, shape=(2, 4))
    model.graph.node[at].input[0] = "paged"
    for node in reversed(paged):
        model.graph.node.insert(at, node)
    model.opset_import.append(helper.make_opsetid("poet", 1))
    onnx.save(model, tmp_path / "paged.onnx")
    feeds = [np.ones((2, 8), np.float32), np.array([1, 3])]
    results = []
    for name in ("training_model.onnx", "paged.onnx"):
        state = CheckpointState.load_checkpoint(str(tmp_path / "checkpoint"))
        module = training_module(tmp_path / name, state, page_dir=tmp_path)
        module.train()
        losses = [module(*feeds).tobytes() for _ in range(3)]
        results.append((losses, np.asarray(state.parameters["w"].grad).tobytes()))
    assert results[0] == results[1]
    assert page_descriptors(tmp_path)


@pytest.mark.skipif(installed_runtime().has_training, reason="needs an environment without onnxruntime-training")
def test_training_module_needs_the_training_runtime(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"needs onnxruntime-training, and this environment has onnxruntime 1\."):
        training_module(tmp_path / "training_model.onnx", None)


def test_scalars_and_integers_are_counted_to_the_byte() -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], to=TensorProto.INT8),
        helper.make_node("Cast", ["a"], ["y"], to=FLOAT),
    ]
    session = onnxruntime.InferenceSession(
        make_model(nodes, [("x", FLOAT, (5,))], [("y", FLOAT, (5,))]), session_options()
    )
    x = np.ones(5, np.float32)
    session.run(None, {"x": x})
    with count_allocations() as memory:
        session.run(None, {"x": x})
        assert memory.allocated_bytes == 5 + 20


@pytest.mark.parametrize("spins", [True, False])
def test_threads_without_work_leave_their_cores_where_they_should(spins: bool) -> None:
    options = session_options(threads=2, spins=spins)
    name = "session.intra_op.allow_spinning"
    if spins:
        with pytest.raises(RuntimeError):  # the runtime's own choice
            options.get_session_config_entry(name)
    else:
        assert options.get_session_config_entry(name) == "0"
