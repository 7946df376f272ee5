"""The paging operators when something goes wrong: full disks, lost pages, aborted runs, forks."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from file_sizes import file_size_limit
from onnx import TensorProto, helper
from ops_models import FLOAT, Keeper, make_model, page_descriptors, paging_nodes, round_trip_model
from paging_sessions import MODES, RuntimeFailure, make_session

from poet_onnx.ops import library_path
from poet_onnx.runtime import count_allocations, session_options

LARGE = (1 << 22,)  # 16 MiB: its transfer is under way when the next node fails


def default_options(directory: Path) -> onnxruntime.SessionOptions:
    """Return ONNX Runtime's own options, with a page directory that nobody has checked."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("poet.page_dir", str(directory))
    options.register_custom_ops_library(str(library_path()))
    return options


def io_tasks() -> set[Path]:
    """Return the I/O threads of the operator library in this process."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            name = (task / "comm").read_text()
        except (FileNotFoundError, ProcessLookupError):  # it has just ended
            continue
        if name == "poet-io\n":
            found.add(task)
    return found


def io_threads_come_down_to(count: int) -> bool:
    """Return whether only so many are left soon: the kernel lists a thread a little longer than it can be joined."""
    for _ in range(200):
        if io_threads() == count:
            return True
        time.sleep(0.01)
    return False


def io_threads() -> int:
    return len(io_tasks())


def failing_model(mode: str, shape: tuple[int, ...], fail_between: str) -> bytes:
    """Page a tensor out and in, with a Gather that fails for a bad `index` between the halves of one transfer."""
    page_out, page_in = 1, 1
    nodes = [helper.make_node("Neg", ["x"], ["a"])]
    paging = paging_nodes(mode, "a", "b", dtype=FLOAT, shape=shape)
    middle = len(paging) // 2
    fail = helper.make_node("Gather", ["table", "index"], ["picked"])
    if fail_between == "out":
        paging.insert(page_out, fail)
    else:
        paging.insert(middle + page_in, fail)
    nodes += [*paging, helper.make_node("Neg", ["b"], ["y"])]
    table = helper.make_tensor("table", FLOAT, [2], [1.0, 2.0])
    return make_model(
        nodes,
        [("x", FLOAT, shape), ("index", TensorProto.INT64, ())],
        [("y", FLOAT, shape), ("picked", FLOAT, ())],
        [table],
    )


@pytest.mark.parametrize("mode", MODES)
def test_missing_page_directory_is_named(tmp_path: Path, mode: str) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(RuntimeFailure, match=rf"cannot make a page file in {missing}: No such file .*errno 2"):
        onnxruntime.InferenceSession(round_trip_model(mode, (4,)), default_options(missing))
    missing.mkdir()
    session = onnxruntime.InferenceSession(round_trip_model(mode, (4,)), default_options(missing))
    missing.rmdir()  # the file has no name: the directory may go
    assert session.run(None, {"x": np.ones(4, np.float32)})[0].tolist() == [1.0] * 4


def test_page_directory_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        RuntimeFailure, match=rf"cannot make a page file in {tmp_path}/file: Not a directory .*errno 20"
    ):
        onnxruntime.InferenceSession(round_trip_model("sync", (4,)), default_options(tmp_path / "file"))


@pytest.mark.parametrize("mode", MODES)
def test_full_disk_is_found_when_the_session_is_made(tmp_path: Path, mode: str) -> None:
    model = round_trip_model(mode, (1 << 16,))
    with (
        file_size_limit(4096),
        pytest.raises(
            RuntimeFailure,
            match=rf"PageOut.* node '.*': cannot reserve 262144 bytes of the page file in {tmp_path}: "
            r"File too large \(errno 27\) at offset 0; \d+ bytes are free there: free more or choose another",
        ),
    ):
        make_session(model, tmp_path)
    x = np.ones(1 << 16, np.float32)
    assert make_session(model, tmp_path).run(None, {"x": x})[0].tobytes() == x.tobytes()


@pytest.mark.parametrize("mode", MODES)
def test_full_disk_in_a_step_fails_the_step_and_no_other(tmp_path: Path, mode: str) -> None:
    shape = (1 << 16,)
    session = make_session(round_trip_model(mode, shape), tmp_path)
    x = np.ones(shape, np.float32)
    for _ in range(3):
        with (
            file_size_limit(8192),
            pytest.raises(
                RuntimeFailure,
                match=rf"cannot write slot 0 to the page file in {tmp_path}: File too large \(errno 27\), "
                "after 8192 of 262144 bytes at offset 0",
            ),
        ):
            session.run(None, {"x": x})
        assert session.run(None, {"x": x})[0].tobytes() == x.tobytes()


@pytest.mark.parametrize("mode", MODES)
def test_full_disk_for_a_tensor_of_unknown_size(tmp_path: Path, mode: str) -> None:
    page_out = paging_nodes(mode, "x", "y", dtype=FLOAT, shape=(1,))[: -1 if mode == "sync" else -2]
    model = make_model(page_out, [("x", FLOAT, ("n",))], [("y_token", TensorProto.INT64, (1,))])
    session = make_session(model, tmp_path)
    for count in (10, 5, 3000, 0, 100_000):
        with file_size_limit(0):
            if count in (10, 3000, 100_000):
                with pytest.raises(RuntimeFailure, match=rf"cannot reserve {-count * 4 // 4096 * -4096} bytes"):
                    session.run(None, {"x": np.ones(count, np.float32)})
        session.run(None, {"x": np.ones(count, np.float32)})


@pytest.mark.parametrize("mode", MODES)
def test_lost_page_is_an_error(tmp_path: Path, mode: str) -> None:
    session = Keeper(session_options(page_dir=tmp_path), (5000,), mode=mode)
    x = np.ones(5000, np.float32)
    token = session.write(x)
    (descriptor,) = page_descriptors(tmp_path)
    os.truncate(descriptor, 4096)
    with pytest.raises(
        RuntimeFailure,
        match=rf"cannot read slot 0 from the page file in {tmp_path}: unexpected end of file, "
        "after 4096 of 20000 bytes at offset 0",
    ):
        session.read(token)
    assert session.read(session.write(x)).tobytes() == x.tobytes()


@pytest.mark.parametrize("fail_between", ["out", "in"])
@pytest.mark.parametrize("mode", MODES)
def test_aborted_runs_leave_nothing_in_flight(tmp_path: Path, mode: str, fail_between: str) -> None:
    """A run that fails between a start and its end frees the buffers at once; the memory is then used again."""
    session = make_session(failing_model(mode, LARGE, fail_between), tmp_path)
    x = np.arange(LARGE[0], dtype=np.float32)
    good, bad = np.array(0), np.array(9)
    session.run(None, {"x": x, "index": good})
    with count_allocations() as memory:
        level = memory.current_bytes
        for _ in range(10):
            with pytest.raises(RuntimeFailure, match="Gather"):
                session.run(None, {"x": x, "index": bad})
            assert memory.current_bytes <= level
            scratch = np.zeros(LARGE, np.float32)  # very likely where the transfer's buffer was
            y, _ = session.run(None, {"x": x, "index": good})
            assert y.tobytes() == x.tobytes()
            assert not scratch.any()
            del y


@pytest.mark.parametrize("fail_between", ["out", "in"])
def test_aborted_runs_in_an_arena_leave_nothing_in_flight(tmp_path: Path, fail_between: str) -> None:
    """An arena does not tell when it takes a buffer back: transfers of its memory end within their start."""
    session = onnxruntime.InferenceSession(failing_model("async", LARGE, fail_between), default_options(tmp_path))
    before = io_threads()
    x = np.arange(LARGE[0], dtype=np.float32)
    for _ in range(5):
        with pytest.raises(RuntimeFailure, match="Gather"):
            session.run(None, {"x": x, "index": np.array(9)})
        assert session.run(None, {"x": x, "index": np.array(0)})[0].tobytes() == x.tobytes()
    assert io_threads() == before


@pytest.mark.parametrize("left_out", ["PageOutEnd", "PageInEnd"])
def test_transfers_may_have_no_end(tmp_path: Path, left_out: str) -> None:
    """Memory that goes away is touched no more; memory that is shown holds zeros or the page, and nothing else."""
    nodes = [helper.make_node("Neg", ["x"], ["a"]), *paging_nodes("async", "a", "b", dtype=FLOAT, shape=LARGE)]
    nodes = [node for node in nodes if node.op_type != left_out]
    if left_out == "PageInEnd":
        nodes += [helper.make_node("Neg", ["b_raw"], ["y"])]
    else:
        nodes = [*nodes[:2], helper.make_node("Identity", ["x"], ["y"])]
    model = make_model(nodes, [("x", FLOAT, LARGE)], [("y", FLOAT, LARGE)])
    session = make_session(model, tmp_path)
    x = np.full(LARGE, 5, np.float32)
    with count_allocations() as memory:
        level = memory.current_bytes
        for _ in range(6):
            scratch = np.full(LARGE, 9, np.float32)
            del scratch  # what is in freed memory
            (y,) = session.run(None, {"x": x})
            assert np.isin(y, (0, 5)).all()
            del y
            assert memory.current_bytes <= level
        assert (x == 5).all()


def test_destruction_with_transfers_in_flight(tmp_path: Path) -> None:
    for fail_between in ("out", "in"):
        for _ in range(5):
            session = make_session(failing_model("async", LARGE, fail_between), tmp_path)
            with pytest.raises(RuntimeFailure, match="Gather"):
                session.run(None, {"x": np.zeros(LARGE, np.float32), "index": np.array(9)})
            assert io_threads() >= 1
            del session


def test_terminated_runs_can_be_repeated(tmp_path: Path) -> None:
    nodes = [helper.make_node("Neg", ["x"], ["a0"])]
    for i in range(40):
        nodes += paging_nodes("async", f"a{i}", f"b{i}", dtype=FLOAT, shape=(1 << 20,), slot=i)
        nodes.append(helper.make_node("Add", [f"b{i}", "x"], [f"a{i + 1}"]))
    model = make_model(nodes, [("x", FLOAT, (1 << 20,))], [("a40", FLOAT, (1 << 20,))])
    session = make_session(model, tmp_path)
    x = np.ones(1 << 20, np.float32)
    terminated = 0
    for delay_seconds in (0.0, 0.005, 0.01, 0.02, 0.04):
        options = onnxruntime.RunOptions()
        timer = threading.Timer(delay_seconds, lambda o=options: setattr(o, "terminate", True))
        timer.start()
        try:
            session.run(None, {"x": x}, options)
        except RuntimeFailure as error:
            assert "terminate" in str(error)
            terminated += 1
        timer.join()
        assert (session.run(None, {"x": x})[0] == 39 * x).all()
    assert terminated > 0


def test_io_thread_sleeps_while_there_is_nothing_to_do(tmp_path: Path) -> None:
    others = io_tasks()
    session = make_session(round_trip_model("async", (1 << 16,)), tmp_path)
    session.run(None, {"x": np.ones(1 << 16, np.float32)})
    (task,) = io_tasks() - others

    def switches() -> list[str]:
        return [line for line in (task / "status").read_text().splitlines() if "ctxt_switches" in line]

    def sleeps_through() -> bool:
        before = switches()
        time.sleep(0.3)
        return switches() == before

    assert any(sleeps_through() for _ in range(20))  # on a busy machine it takes longer to fall asleep
    # Signals are for the application's threads.
    blocked = next(line for line in (task / "status").read_text().splitlines() if line.startswith("SigBlk"))
    assert int(blocked.split()[1], 16) >> (signal.SIGINT - 1) & 1 == 1


@pytest.mark.parametrize("mode", MODES)
def test_many_runs_leave_nothing_behind(tmp_path: Path, mode: str) -> None:
    """Memory of the runtime, descriptors, threads and the page file are after 3,000 runs what they were before."""
    session = make_session(round_trip_model(mode, (64,)), tmp_path)
    x = np.ones(64, np.float32)

    def held() -> tuple[int, int, int, int]:
        (descriptor,) = page_descriptors(tmp_path)
        descriptors = len(list(Path("/proc/self/fd").iterdir()))
        return memory.current_bytes, descriptors, io_threads(), os.fstat(descriptor).st_size

    with count_allocations() as memory:
        session.run(None, {"x": x})
        before = held()
        for _ in range(3000):
            session.run(None, {"x": x})
        assert held() == before


def test_many_sessions_in_threads(tmp_path: Path) -> None:
    """24 sessions in 4 threads, made, run and destroyed beside each other, with both kinds of paging."""
    x = np.arange(10_000, dtype=np.float32)
    before = io_threads()

    def work(number: int) -> None:
        directory = tmp_path / str(number % 2)
        directory.mkdir(exist_ok=True)
        for turn in range(3):
            session = make_session(round_trip_model(MODES[(number + turn) % 2], x.shape), directory)
            for _ in range(10):
                assert (session.run(None, {"x": x + number})[0] == x + number).all()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(24)))
    assert page_descriptors(tmp_path) == []
    assert io_threads_come_down_to(before)
