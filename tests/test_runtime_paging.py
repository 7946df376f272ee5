"""Options of a session's paging, and the statistics that tell what it does."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from ops_models import round_trip_model

from poet_onnx.errors import InputError
from poet_onnx.ops import library_path
from poet_onnx.runtime import PagingOptions, Throttle, count_paging, open_stores, paging_statistics, session_options

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
        assert 0 < paging.statistics.waited_seconds < 10
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


def test_options_are_checked(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"paging rate of 0\.5 bytes per second"):
        Throttle(page_in_bytes_per_second=0.5)
    with pytest.raises(InputError, match="paging latency of -1 seconds"):
        Throttle(page_out_latency_seconds=-1)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("poet.page_out_bytes_per_second", "-3")
    with pytest.raises(Exception, match=r"entry 'poet\.page_out_bytes_per_second' is '-3', but must be a whole number"):
        options.register_custom_ops_library(str(library_path()))
