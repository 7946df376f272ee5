"""Options of a session's paging, and the statistics that tell what it does."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from ops_models import FLOAT, make_model, page_descriptors, paging_nodes, poet_node, round_trip_model

from poet_onnx.errors import InputError
from poet_onnx.ops import library_path
from poet_onnx.runtime import (
    PagingOptions,
    Throttle,
    count_allocations,
    count_paging,
    describe_store,
    open_stores,
    paging_statistics,
    session_options,
)
from poet_onnx.runtime.options import BACKENDS, CIPHERS

SHAPE = (10_000,)
BYTES = 40_000
MODES = ["sync", "async"]


def open_session(directory: Path, mode: str, paging: PagingOptions | None = None) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(
        round_trip_model(mode, SHAPE), session_options(page_dir=directory, paging=paging)
    )


def run(session: onnxruntime.InferenceSession) -> None:
    x = np.random.default_rng(3).standard_normal(SHAPE).astype(np.float32)
    assert session.run(None, {"x": x})[0].tobytes() == x.tobytes()


@pytest.mark.parametrize("mode", MODES)
def test_statistics_are_each_sessions_own(tmp_path: Path, mode: str) -> None:
    others = set(open_stores())
    sessions = [open_session(tmp_path, mode) for _ in range(2)]
    first, second = (number for number in open_stores() if number not in others)
    with count_paging() as everything, count_paging(second) as paging:
        for session in (sessions[0], sessions[1], sessions[1]):
            run(session)
        assert everything.statistics.page_out_bytes == 3 * BYTES
        assert paging.statistics.page_outs == paging.statistics.page_ins == 2
        assert paging.statistics.page_out_bytes == paging.statistics.page_in_bytes == 2 * BYTES
        assert 0 < paging.statistics.page_out_seconds < paging.statistics.transfer_seconds < 10
        assert (0 if mode == "async" else 1e-9) <= paging.statistics.waited_seconds < 10
        assert 0 <= paging.statistics.hidden_share <= 1
        paging.reset()
        assert paging.statistics.page_out_bytes == 0
        assert paging.statistics.hidden_share == 1
    assert paging_statistics(first).page_in_bytes == BYTES
    del session, sessions
    assert {first, second}.isdisjoint(open_stores())
    with pytest.raises(InputError, match=f"No session has page store {first} open"):
        paging_statistics(first)


@pytest.mark.parametrize("mode", MODES)
def test_throttle_makes_paging_as_slow_as_asked(tmp_path: Path, mode: str) -> None:
    throttle = Throttle(page_out_bytes_per_second=BYTES / 0.05, page_in_latency_seconds=0.03)
    session = open_session(tmp_path, mode, PagingOptions(throttle=throttle))
    run(session)
    with count_paging() as paging:
        begun = time.perf_counter()
        processor = time.process_time()
        run(session)
        assert 0.08 <= time.perf_counter() - begun < 0.5
        assert time.process_time() - processor < 0.04  # it sleeps
        assert 0.05 <= paging.statistics.page_out_seconds < 0.25
        assert 0.03 <= paging.statistics.page_in_seconds < 0.25
        assert paging.statistics.waited_seconds >= 0.075
    run(open_session(tmp_path, mode))


def newest_store() -> int:
    return open_stores()[-1]


@pytest.mark.parametrize("cipher", [None, *CIPHERS])
@pytest.mark.parametrize("backend", BACKENDS)
def test_back_ends_and_ciphers_keep_the_bits(tmp_path: Path, backend: str, cipher: str | None) -> None:
    for mode in MODES:
        session = open_session(tmp_path, mode, PagingOptions(backend=backend, cipher=cipher))
        for _ in range(3):
            run(session)
        described = describe_store(newest_store())
        assert described.page_dir == str(tmp_path)
        expected = {"auto": "cached"}.get(backend, backend)
        assert described.backend == expected or (
            backend == "io_uring" and "io_uring is not possible" in described.reason
        )
        assert (described.staging_bytes > 0) == (cipher is not None or described.backend in ("direct", "io_uring"))
        # The file holds the tensor's bits, or nothing like them.
        (descriptor,) = page_descriptors(tmp_path)
        x = -np.random.default_rng(3).standard_normal(SHAPE).astype(np.float32)
        with Path(f"/proc/self/fd/{descriptor}").open("rb") as file:
            assert (file.read(BYTES) == x.tobytes()) == (cipher is None)
        del session


def test_a_page_file_beyond_the_free_memory_stays_out_of_the_page_cache(tmp_path: Path) -> None:
    text = Path("/proc/meminfo").read_text()
    available = next(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("MemAvailable"))
    size = available // 6 // 4096 * 4096
    model = planned_model("sync", {"bytes": size, "plan_slots": 1, "plan_bytes": size}, shape=("n",))
    session = onnxruntime.InferenceSession(model, session_options(page_dir=tmp_path))
    (descriptor,) = page_descriptors(tmp_path)
    assert os.fstat(descriptor).st_blocks == 0
    run(session)
    assert os.fstat(descriptor).st_blocks * 512 == 40_960  # the plan's word reserves nothing
    described = describe_store(newest_store())
    assert described.backend in ("uncached", "direct", "io_uring")
    assert f"{size >> 20} MiB of pages" in described.reason


def test_staging_memory_is_counted(tmp_path: Path) -> None:
    with count_allocations() as memory:
        session = open_session(tmp_path, "sync", PagingOptions(backend="direct"))
        staging_bytes = describe_store(newest_store()).staging_bytes
        assert memory.current_bytes >= memory.level_bytes + staging_bytes > memory.level_bytes
        run(session)
        memory.reset_peak()
        run(session)
        assert memory.transient_peak_bytes == 2 * BYTES
        level = memory.current_bytes
        del session
        assert memory.current_bytes <= level - staging_bytes
    with (
        count_allocations(budget_bytes=1 << 19),
        pytest.raises(Exception, match=r"no room for staging pages: an allocation of 1048576 bytes exceeds the memory"),
    ):
        open_session(tmp_path, "sync", PagingOptions(backend="direct"))


def planned_model(mode: str, plan: dict[str, int], shape: Sequence[int | str] = SHAPE) -> bytes:
    """Return a model whose page-out node says what plan it belongs to."""
    nodes = [
        helper.make_node("Neg", ["x"], ["copy"]),
        *paging_nodes(mode, "copy", "back", dtype=FLOAT, shape=SHAPE),
        helper.make_node("Neg", ["back"], ["y"]),
    ]
    model = onnx.load_from_string(make_model(nodes, [("x", FLOAT, shape)], [("y", FLOAT, SHAPE)]))
    for node in model.graph.node:
        if node.op_type in ("PageOut", "PageOutStart"):
            node.attribute.extend(helper.make_attribute(name, value) for name, value in plan.items())
    return model.SerializeToString()


@pytest.mark.parametrize("mode", MODES)
def test_the_file_of_the_plan_is_reserved_when_the_session_is_made(tmp_path: Path, mode: str) -> None:
    model = planned_model(mode, {"bytes": BYTES, "plan_slots": 1, "plan_bytes": 40_960})
    session = onnxruntime.InferenceSession(model, session_options(page_dir=tmp_path))
    (descriptor,) = page_descriptors(tmp_path)
    status = os.fstat(descriptor)
    assert (status.st_size, status.st_blocks * 512) == (40_960, 40_960)
    for _ in range(3):
        run(session)
    assert os.fstat(descriptor).st_size == 40_960


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (
            {"bytes": BYTES, "plan_slots": 1, "plan_bytes": 4096},
            "slot 0 needs 40000 bytes, but 4096 are left of a plan",
        ),
        ({"bytes": BYTES, "plan_slots": 0, "plan_bytes": 40960}, "are 40000, 0 and 40960, but must be 0, 1 and 0 or"),
        ({"bytes": -1, "plan_slots": 1, "plan_bytes": 40960}, "are -1, 1 and 40960, but must be 0, 1 and 0 or more"),
        ({"bytes": BYTES, "plan_slots": 1}, "belong together, but not all of them are there"),
        (
            {"bytes": BYTES + 1, "plan_slots": 1, "plan_bytes": 40960},
            "tensor has 40000 bytes, but its slot 0 has 40001",
        ),
        (
            {"bytes": BYTES - 1, "plan_slots": 1, "plan_bytes": 40960},
            "tensor has 40000 bytes, but its slot 0 has 39999",
        ),
        ({"bytes": 2**62, "plan_slots": 1, "plan_bytes": 2**62}, "tensor has 40000 bytes, but its slot 0 has 46116860"),
        (
            {"bytes": BYTES, "plan_slots": 1, "plan_bytes": 20 << 30},
            "the slots of a plan of 1 slots and 21474836480 bytes need 40960 bytes",
        ),
        (
            {"bytes": BYTES, "plan_slots": 1, "plan_bytes": 2**63 - 1},
            "1 slots and 9223372036854775807 bytes need 40960",
        ),
    ],
)
def test_plans_that_their_tensors_do_not_need_are_refused(tmp_path: Path, mode: str, plan: dict, message: str) -> None:
    with pytest.raises(Exception, match=rf"PageOut.* node '.*{message}"):
        onnxruntime.InferenceSession(planned_model(mode, plan), session_options(page_dir=tmp_path))
    assert page_descriptors(tmp_path) == []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("slots", [1, 2])
def test_sizes_that_only_the_plan_says_reserve_nothing(tmp_path: Path, mode: str, slots: int) -> None:
    size = 2**62 // slots
    model = planned_model(mode, {"bytes": size, "plan_slots": slots, "plan_bytes": slots * size}, shape=("n",))
    session = onnxruntime.InferenceSession(
        model, session_options(page_dir=tmp_path, paging=PagingOptions(backend="cached"))
    )
    (descriptor,) = page_descriptors(tmp_path)
    assert os.fstat(descriptor).st_blocks == 0
    run(session)
    assert os.fstat(descriptor).st_blocks * 512 == 40_960


@pytest.mark.parametrize("mode", MODES)
def test_a_page_file_is_capped(tmp_path: Path, mode: str) -> None:
    plan = {"bytes": BYTES, "plan_slots": 1, "plan_bytes": 40_960}
    for model in (planned_model(mode, plan), round_trip_model(mode, SHAPE)):
        run(
            onnxruntime.InferenceSession(
                model, session_options(page_dir=tmp_path, paging=PagingOptions(most_bytes=40_960))
            )
        )
        with pytest.raises(Exception, match=r"40959 bytes .*PagingOptions\(most_bytes"):
            onnxruntime.InferenceSession(
                model, session_options(page_dir=tmp_path, paging=PagingOptions(most_bytes=40_959))
            )
    unknown = onnxruntime.InferenceSession(
        planned_model(mode, {}, shape=("n",)),
        session_options(page_dir=tmp_path, paging=PagingOptions(most_bytes=40_959)),
    )
    with pytest.raises(Exception, match=r"slot 0 needs 40000 bytes beside 0 of other slots, but .* no more than 40959"):
        run(unknown)


@pytest.mark.parametrize("mode", MODES)
def test_a_tensor_larger_than_its_slot_fails_the_step(tmp_path: Path, mode: str) -> None:
    model = planned_model(mode, {"bytes": 39_999, "plan_slots": 1, "plan_bytes": 40_960}, shape=("n",))
    session = onnxruntime.InferenceSession(model, session_options(page_dir=tmp_path))
    with pytest.raises(Exception, match="tensor of 40000 bytes does not fit into slot 0, which has 39999 bytes by its"):
        run(session)


def test_slots_beyond_the_plan_and_plans_that_differ_are_refused(tmp_path: Path) -> None:
    plan = {"bytes": 40, "plan_slots": 2, "plan_bytes": 8192}
    for second, message in (
        ({**plan, "slot": 2}, "slot 2 does not exist in a plan of 2 slots and 8192 bytes"),
        (
            {**plan, "slot": 1, "plan_slots": 3},
            "belongs to a plan of 3 slots and 8192 bytes, but other nodes of the model",
        ),
        ({"slot": 1}, "belongs to no plan, but other nodes of the model to a plan of 2 slots"),
        ({**plan, "bytes": 41, "slot": 0}, "slot 0 has 40 bytes by another node's word, but 41 by this one's"),
    ):
        nodes = [
            poet_node("PageOut", ["x"], ["first"], **plan, slot=0),
            poet_node("PageOut", ["x"], ["second"], **second),
        ]
        tokens = [(name, TensorProto.INT64, (1,)) for name in ("first", "second")]
        model = make_model(nodes, [("x", FLOAT, ("n",))], tokens)
        with pytest.raises(Exception, match=message):
            onnxruntime.InferenceSession(model, session_options(page_dir=tmp_path))


@pytest.mark.parametrize("mode", MODES)
def test_two_page_outs_of_a_slot_share_it(tmp_path: Path, mode: str) -> None:
    """A value that is paged out again ends the page of before; the second page-in reads what was written last."""
    plan = {"bytes": 40, "plan_slots": 1, "plan_bytes": 4096}
    nodes = [
        helper.make_node("Neg", ["x"], ["a"]),
        *paging_nodes(mode, "a", "b", dtype=FLOAT, shape=(10,)),
        helper.make_node("Neg", ["b"], ["c"]),
        *paging_nodes(mode, "c", "d", dtype=FLOAT, shape=(10,)),
        helper.make_node("Add", ["c", "d"], ["y"]),
    ]
    for node in nodes:
        if node.op_type.startswith("PageOut") and node.op_type != "PageOutEnd":
            node.attribute.extend(helper.make_attribute(name, value) for name, value in plan.items())
    model = make_model(nodes, [("x", FLOAT, (10,))], [("y", FLOAT, (10,))])
    session = onnxruntime.InferenceSession(model, session_options(page_dir=tmp_path))
    x = np.arange(10, dtype=np.float32)
    for _ in range(3):
        assert session.run(None, {"x": x})[0].tolist() == (2 * x).tolist()
    (descriptor,) = page_descriptors(tmp_path)
    assert os.fstat(descriptor).st_size == 4096


def chain_model() -> bytes:
    nodes = [helper.make_node("Neg", [f"v{i}"], [f"v{i + 1}"], name=f"n{i}") for i in range(4)]
    return make_model(nodes, [("v0", FLOAT, SHAPE)], [("v4", FLOAT, SHAPE)])


def test_a_budget_fails_the_step_that_exceeds_it_and_no_other() -> None:
    session = onnxruntime.InferenceSession(chain_model(), session_options())
    x = np.ones(SHAPE, np.float32)
    session.run(None, {"v0": x})
    for _ in range(3):
        with count_allocations(budget_bytes=2 * BYTES - 1) as memory:
            with pytest.raises(
                Exception,
                match=r"Neg node\. Name:'n1'.* an allocation of 40000 bytes exceeds the memory budget: "
                r"40000 bytes are in use and the budget is 79999 bytes",
            ):
                session.run(None, {"v0": x})
            assert memory.current_bytes == memory.level_bytes
            assert memory.limit_bytes == memory.level_bytes + 2 * BYTES - 1
        with count_allocations(budget_bytes=2 * BYTES) as memory:
            assert session.run(None, {"v0": x})[0].tobytes() == x.tobytes()
            assert memory.transient_peak_bytes == 2 * BYTES
    with (
        count_allocations(budget_bytes=10 * BYTES),
        count_allocations(budget_bytes=BYTES),
        count_allocations(),
        pytest.raises(Exception, match="the budget is 40000 bytes"),
    ):
        session.run(None, {"v0": x})
    with count_allocations(budget_bytes=2 * BYTES) as memory:
        held = session.run(None, {"v0": x})
        with pytest.raises(Exception, match="80000 bytes are in use"):
            session.run(None, {"v0": x})
        memory.reset_peak()  # what is held now is the new level
        session.run(None, {"v0": x})
        del held
    with pytest.raises(InputError, match="A budget of 0 bytes"), count_allocations(budget_bytes=0):
        pass


def test_options_are_checked(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no paging back end 'floppy': give one of auto, cached"):
        PagingOptions(backend="floppy")
    with pytest.raises(InputError, match="no page cipher 'rot13': give one of aes-256-gcm"):
        PagingOptions(cipher="rot13")
    with pytest.raises(InputError, match="No session has page store 999999 open"):
        describe_store(999_999)
    with pytest.raises(InputError, match="A page file of at most 0 bytes"):
        PagingOptions(most_bytes=0)
    with pytest.raises(InputError, match=r"paging rate of 0\.5 bytes per second"):
        Throttle(page_in_bytes_per_second=0.5)
    with pytest.raises(InputError, match="paging latency of -1 seconds"):
        Throttle(page_out_latency_seconds=-1)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("poet.page_out_bytes_per_second", "-3")
    with pytest.raises(Exception, match=r"entry 'poet\.page_out_bytes_per_second' is '-3', but must be a whole number"):
        options.register_custom_ops_library(str(library_path()))
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("poet.page_backend", "floppy")
    with pytest.raises(
        Exception, match=r"'poet\.page_backend' is 'floppy', but must be one of auto, cached, uncached, dir"
    ):
        options.register_custom_ops_library(str(library_path()))


def test_a_budget_is_kept_where_a_kernels_own_thread_allocates() -> None:
    """The kernel keeps memory for each thread of the pool and does not look whether it got any."""
    size = 512
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["a", "b"], ["product"], name="product")],
        "product",
        [
            helper.make_tensor_value_info("a", TensorProto.UINT8, (size, size)),
            helper.make_tensor_value_info("b", TensorProto.INT8, (size, size)),
        ],
        [helper.make_tensor_value_info("product", TensorProto.INT32, (size, size))],
    )
    imports = [helper.make_opsetid("", 15), helper.make_opsetid("poet", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString()
    random = np.random.default_rng(0)
    feeds = {
        "a": random.integers(0, 255, (size, size)).astype(np.uint8),
        "b": random.integers(-9, 9, (size, size)).astype(np.int8),
    }
    expected = feeds["a"].astype(np.int32) @ feeds["b"].astype(np.int32)
    onnxruntime.InferenceSession(model, session_options()).run(None, feeds)  # this thread has its memory
    options = session_options(threads=2)
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model, options)
    with count_allocations(budget_bytes=expected.nbytes) as memory:
        for _ in range(1000):  # until the other thread takes part
            assert np.array_equal(session.run(None, feeds)[0], expected)
            if memory.current_bytes > memory.level_bytes:
                break
        assert memory.transient_peak_bytes > expected.nbytes  # counted, where it could not be refused
        with pytest.raises(Exception, match=f"an allocation of {expected.nbytes} bytes exceeds the memory budget"):
            session.run(None, feeds)
    with count_allocations(budget_bytes=expected.nbytes):
        assert np.array_equal(session.run(None, feeds)[0], expected)
