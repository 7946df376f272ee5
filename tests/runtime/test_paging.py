"""Options of a session's paging, and the statistics that tell what it does."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import helper
from ops_models import FLOAT, make_model, page_descriptors, round_trip_model

from poet_onnx.errors import CheckFailedError, InputError
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
        assert 0 < paging.statistics.page_out_seconds < paging.statistics.transfer_seconds
        assert (0 if mode == "async" else 1e-9) <= paging.statistics.waited_seconds
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
        begun, processor_begun = time.perf_counter(), time.process_time()
        run(session)
        seconds, processor_seconds = time.perf_counter() - begun, time.process_time() - processor_begun
        assert seconds >= 0.08
        assert processor_seconds < 0.5 * seconds  # it sleeps
        assert paging.statistics.page_out_seconds >= 0.05
        assert paging.statistics.page_in_seconds >= 0.03
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
        assert described.backend == expected
        assert (described.staging_bytes > 0) == (cipher is not None or described.backend == "direct")
        # The file holds the tensor's bits, or nothing like them.
        (descriptor,) = page_descriptors(tmp_path)
        x = -np.random.default_rng(3).standard_normal(SHAPE).astype(np.float32)
        with Path(f"/proc/self/fd/{descriptor}").open("rb") as file:
            assert (file.read(BYTES) == x.tobytes()) == (cipher is None)
        del session


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


def chain_model() -> bytes:
    nodes = [helper.make_node("Neg", [f"v{i}"], [f"v{i + 1}"], name=f"n{i}") for i in range(4)]
    return make_model(nodes, [("v0", FLOAT, SHAPE)], [("v4", FLOAT, SHAPE)])


def test_a_budget_that_is_exceeded_is_told_with_its_figures() -> None:
    session = onnxruntime.InferenceSession(chain_model(), session_options())
    x = np.ones(SHAPE, np.float32)
    session.run(None, {"v0": x})
    exceeded = "The memory budget of 79999 bytes was exceeded by 1 bytes: ONNX Runtime held 80000 bytes more"
    for _ in range(2):
        with pytest.raises(CheckFailedError, match=exceeded), count_allocations(budget_bytes=2 * BYTES - 1):
            assert session.run(None, {"v0": x})[0].tobytes() == x.tobytes()
        with count_allocations(budget_bytes=2 * BYTES) as memory:
            session.run(None, {"v0": x})
            assert memory.transient_peak_bytes == 2 * BYTES
    with (
        count_allocations(budget_bytes=10 * BYTES),
        pytest.raises(CheckFailedError, match="The memory budget of 40000 bytes"),
        count_allocations(budget_bytes=BYTES),
        count_allocations(),
    ):
        session.run(None, {"v0": x})
    with count_allocations(budget_bytes=2 * BYTES) as memory:
        held = session.run(None, {"v0": x})
        session.run(None, {"v0": x})
        with pytest.raises(CheckFailedError, match="exceeded by 40000 bytes"):
            memory.reset_peak()  # what is held now is the new level
        session.run(None, {"v0": x})
        del held
    # An error of the step is told instead of this one.
    with pytest.raises(Exception, match="INVALID_ARGUMENT"), count_allocations(budget_bytes=1):
        session.run(None, {"v0": np.ones(SHAPE, np.float64)})
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
