"""Sessions whose allocations come from a region: the bits are the same, and what is not as planned is counted."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from arena_models import BYTES, PLANNED, REGION_BYTES, SHAPE, Step, feeds, make_session, model, with_arena
from deep import sampled
from onnx import TensorProto, helper
from ops_models import FLOAT, make_model, paging_nodes, poet_node

from poet_onnx.errors import CheckFailedError, InputError
from poet_onnx.ops.schemas import register_schemas
from poet_onnx.runtime import (
    PagingOptions,
    arena_statistics,
    count_allocations,
    count_arena,
    open_arenas,
    session_options,
)
from poet_onnx.runtime.arena import SharedRegion

RuntimeFailure = Exception  # ONNX Runtime's exceptions have no common base but this one


BLOCKS_OF_A_RUN = 5  # those of the region, and the convolution's workspace


@pytest.fixture(autouse=True)
def _no_session_is_open() -> None:
    """Let sessions go that an earlier test's exception still holds by its traceback: where arenas are counted."""
    gc.collect()


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_steps_come_from_the_region_with_the_same_bits(tmp_path: Path, threads: int) -> None:
    plain = make_session(model(None), tmp_path, threads)
    planned = make_session(model(PLANNED), tmp_path, threads)
    (arena,) = open_arenas()
    with count_arena(arena) as counter, count_allocations() as memory:
        for seed in range(4):
            memory.reset_peak()
            expected = plain.run(None, feeds(seed))[0].tobytes()
            peak_bytes = memory.transient_peak_bytes
            memory.reset_peak()
            counter.reset()
            assert planned.run(None, feeds(seed))[0].tobytes() == expected
            assert memory.transient_peak_bytes == peak_bytes
            seen = counter.statistics
            assert (seen.steps, seen.planned + seen.workspace, seen.unplanned) == (1, BLOCKS_OF_A_RUN, 0)
        assert seen.region_bytes == REGION_BYTES
        assert seen.largest_end_bytes <= REGION_BYTES


def test_bound_outputs_are_expected_not_to_be_asked_for(tmp_path: Path) -> None:
    session = make_session(model(PLANNED), tmp_path)
    expected = make_session(model(None), tmp_path).run(None, feeds())[0]
    result = np.zeros(SHAPE, np.float32)
    binding = session.io_binding()
    for name, array in feeds().items():
        binding.bind_cpu_input(name, array)
    binding.bind_ortvalue_output("y", onnxruntime.OrtValue.ortvalue_from_numpy(result, "cpu"))
    with count_arena() as counter:
        for _ in range(3):
            session.run_with_iobinding(binding)
        seen = counter.statistics
        assert (seen.planned + seen.workspace, seen.unplanned) == (3 * BLOCKS_OF_A_RUN, 0)
    assert binding.copy_outputs_to_cpu()[0].tobytes() == expected.tobytes()


WRONG = {
    "no room for the workspace": ([(0, 0, PLANNED[0][2]), *PLANNED[1:]], 3 * BYTES),
    "blocks that overlap": ([PLANNED[0], (0, 0, [(0, BYTES, 2)]), *PLANNED[2:]], REGION_BYTES),
    "no blocks": ([(0, 0, []) for _ in PLANNED], 64),
    "other sizes": ([(0, 0, [(0, 128, 4)]) for _ in PLANNED], 256),
    "an output that is not known as one": ([*PLANNED[:4], (0, 0, [(0, BYTES, 4)])], REGION_BYTES),
    "steps that are missing": (
        [(size, room, [(at, n, 1) for at, n, _ in blocks]) for size, room, blocks in PLANNED[:2]],
        REGION_BYTES,
    ),
}


@pytest.mark.parametrize("case", sampled(WRONG, *list(WRONG)[::2]))
def test_wrong_layouts_give_the_same_bits_and_are_counted(tmp_path: Path, case: str) -> None:
    steps, region_bytes = WRONG[case]
    plain, session = make_session(model(None), tmp_path), make_session(model(steps, region_bytes), tmp_path)
    kept = []
    with count_arena(*open_arenas()) as counter:
        for seed in range(6):
            kept.append((session.run(None, feeds(seed))[0], plain.run(None, feeds(seed))[0].tobytes()))
        seen = counter.statistics
    assert all(result.tobytes() == expected for result, expected in kept)
    assert seen.steps == 6
    assert seen.unplanned >= 5  # the first run of some has room
    assert seen.unplanned_most_bytes >= BYTES
    del session
    gc.collect()
    assert all(result.tobytes() == expected for result, expected in kept)  # the region stays for what is in it
    kept.clear()
    gc.collect()
    assert arena_statistics().region_bytes == 0


def test_a_failed_run_leaves_the_region_to_the_next(tmp_path: Path) -> None:
    plain, session = make_session(model(None), tmp_path), make_session(model(PLANNED), tmp_path)
    with count_arena() as counter, count_allocations() as memory:
        for seed in range(8):
            level_bytes = memory.current_bytes
            with pytest.raises(RuntimeFailure, match="Gather"):
                session.run(None, feeds(seed, index=9))
            assert memory.current_bytes == level_bytes
            assert session.run(None, feeds(seed))[0].tobytes() == plain.run(None, feeds(seed))[0].tobytes()
        assert counter.statistics.unplanned == 0


def test_a_budget_counts_blocks_of_the_region(tmp_path: Path) -> None:
    session = make_session(model(PLANNED), tmp_path)
    with (
        pytest.raises(CheckFailedError, match=f"The memory budget of {2 * BYTES} bytes was exceeded"),
        count_allocations(budget_bytes=2 * BYTES),
    ):
        session.run(None, feeds())


def test_sessions_have_regions_of_their_own(tmp_path: Path) -> None:
    for _ in range(3):
        sessions = [make_session(model(PLANNED), tmp_path) for _ in range(4)]
        assert len(open_arenas()) == 4
        assert arena_statistics().region_bytes == 4 * REGION_BYTES
        results = {session.run(None, feeds())[0].tobytes() for session in sessions * 3}
        assert len(results) == 1
        assert [arena_statistics(arena).steps for arena in open_arenas()] == [3] * 4
        assert [arena_statistics(arena).unplanned for arena in open_arenas()] == [0] * 4
        gone = open_arenas()[0]
        del sessions
        gc.collect()
        assert open_arenas() == ()
        assert arena_statistics().region_bytes == 0
        with pytest.raises(InputError, match=rf"No session has arena {gone} open"):
            arena_statistics(gone)


def test_concurrent_runs_of_one_session_are_right(tmp_path: Path) -> None:
    session = make_session(model(PLANNED), tmp_path)
    expected = [make_session(model(None), tmp_path).run(None, feeds(seed))[0].tobytes() for seed in range(4)]

    def work(seed: int) -> bool:
        return all(session.run(None, feeds(seed))[0].tobytes() == expected[seed] for _ in range(50))

    with count_arena() as counter, ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))
        assert counter.statistics.steps + counter.statistics.refused_steps == 200


@pytest.mark.parametrize("backend", ["cached", "direct"])
def test_pages_move_from_and_to_the_region(tmp_path: Path, backend: str) -> None:
    """Direct I/O reaches blocks at whole pages; others are copied. A run that is aborted lets the transfer go first."""
    floats = 1 << 18
    page_out, end_out, page_in, end_in = paging_nodes("async", "a", "b", dtype=FLOAT, shape=(floats,))
    gather = helper.make_node("Gather", ["table", "index"], ["picked"])
    last = helper.make_node("Neg", ["b"], ["y"])
    nodes = [helper.make_node("Neg", ["x"], ["a"]), page_out, end_out, page_in, gather, end_in, last]
    size = 4 * floats
    for offset in (0, 64):
        steps: list[Step] = [
            (0, 0, [(offset, size, 2)]),
            (0, 0, [(size + 4096, 8, 2)]),
            (0, 0, [(size + 4160, 8, 3)]),
            (0, 0, [(offset, size, 6), (size + 4096, 8, 5)]),
            (0, 0, [(-1, 4, 4)]),
            (0, 0, []),
            (0, 0, [(-1, size, 6)]),
        ]
        payload = make_model(
            with_arena(nodes, steps, size + 8192),
            [("x", FLOAT, (floats,)), ("index", TensorProto.INT64, ())],
            [("picked", FLOAT, ()), ("y", FLOAT, (floats,))],
            [helper.make_tensor("table", FLOAT, [2], [1.0, 2.0])],
        )
        options = session_options(page_dir=tmp_path, paging=PagingOptions(backend=backend))
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(payload, options)
        x = np.random.default_rng(2).standard_normal(floats).astype(np.float32)
        with count_arena() as counter:
            for _ in range(4):
                with pytest.raises(RuntimeFailure, match="Gather"):
                    session.run(None, {"x": x, "index": np.array(9)})
                assert session.run(None, {"x": x, "index": np.array(0)})[1].tobytes() == x.tobytes()
            seen = counter.statistics
            assert (seen.steps, seen.unplanned) == (8, 0)


def test_sessions_that_share_a_region_take_turns_and_never_meet_in_it(tmp_path: Path) -> None:
    shared, larger = SharedRegion(), SharedRegion()
    with shared.shared():
        first, second = (make_session(model(PLANNED), tmp_path) for _ in range(2))
    alone = make_session(model(PLANNED), tmp_path)
    assert arena_statistics().region_bytes == 2 * REGION_BYTES
    with larger.shared():
        small = make_session(model(PLANNED), tmp_path)
        large = make_session(model(PLANNED, REGION_BYTES + 64), tmp_path)
    assert arena_statistics().region_bytes == 4 * REGION_BYTES + 64
    expected = [alone.run(None, feeds(seed))[0].tobytes() for seed in range(20)]
    for session in (first, second, small, large, first):
        with count_arena() as counter:
            assert session.run(None, feeds(0))[0].tobytes() == expected[0]
            assert (counter.statistics.steps, counter.statistics.unplanned) == (1, 0)

    def run(session: onnxruntime.InferenceSession) -> bool:
        found = [session.run(None, feeds(seed % 20))[0].tobytes() == expected[seed % 20] for seed in range(200)]
        return all(found)

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(run, (first, second)))
    del first, session
    gc.collect()
    assert second.run(None, feeds(0))[0].tobytes() == expected[0]
    del second, alone, small, large
    gc.collect()
    assert arena_statistics().region_bytes == 0


LOAD = """
    import resource, sys
    import onnxruntime
    from poet_onnx.runtime import session_options
    options = session_options(page_dir={directory!r})
    options.log_severity_level = 4
    used = next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmData:"))
    resource.setrlimit(resource.RLIMIT_DATA, (used + (64 << 20), used + (64 << 20)))
    try:
        onnxruntime.InferenceSession({path!r}, options)
    except Exception as error:
        print(error)
"""


def test_a_region_that_the_system_lacks_fails_at_load_with_both_numbers(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(model(PLANNED, 256 << 20))
    program = textwrap.dedent(LOAD.format(directory=str(tmp_path), path=str(path)))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    found = re.search(
        rf"Arena node '.*': the step needs a region of {256 << 20} bytes, but the system has (\d+) bytes left "
        r"\(the resource limit RLIMIT_DATA\): plan for a smaller budget",
        done.stdout,
    )
    assert found is not None, done.stdout + done.stderr
    given_back = 1 << 20  # by the process, at most, after it was asked how much it has
    assert 0 < int(found[1]) <= (64 << 20) + given_back


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"layout": [0, 0, 0]}, "the integer attribute 'region_bytes' is missing"),
        ({"region_bytes": 64}, "the integer list attribute 'layout' is missing"),
        ({"region_bytes": 65, "layout": []}, "'region_bytes' is 65, but must be a multiple of 64"),
        ({"region_bytes": 64, "layout": [0, 0, 1, 0, 65, 0]}, "step 0 a block of 65 bytes at 0, which does not fit"),
        ({"region_bytes": 64, "layout": [0, 0, 1, 0, 8, 3]}, "dies in step 3, but 1 steps"),
    ],
)
def test_bad_layouts_are_refused_at_load(tmp_path: Path, attributes: dict, message: str) -> None:
    nodes = [poet_node("Arena", ["x"], ["armed"], **attributes), helper.make_node("Neg", ["x"], ["y"])]
    payload = make_model(nodes, [("x", FLOAT, (4,))], [("y", FLOAT, (4,))])
    with pytest.raises(RuntimeFailure, match=message):
        make_session(payload, tmp_path)


def test_the_output_may_be_read(tmp_path: Path) -> None:
    nodes = [
        poet_node("Arena", ["x"], ["armed"], region_bytes=64, layout=[0, 0, 0]),
        helper.make_node("Cast", ["armed"], ["y"], to=FLOAT),
    ]
    session = make_session(make_model(nodes, [("x", FLOAT, (4,))], [("y", FLOAT, (1,))]), tmp_path)
    assert session.run(None, {"x": np.ones(4, np.float32)})[0].tolist() == [1.0]


def test_models_with_a_layout_pass_the_checker() -> None:
    register_schemas()
    checked = onnx.shape_inference.infer_shapes(onnx.load_model_from_string(model(PLANNED)), True, True, True)
    onnx.checker.check_model(checked, full_check=True)
    (armed,) = [value for value in checked.graph.value_info if value.name == "armed"]
    assert armed.type.tensor_type.elem_type == TensorProto.BOOL
