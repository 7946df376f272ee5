"""What a store takes is measured in the directory that is asked for, through the page cache or past it."""

from __future__ import annotations

from pathlib import Path

import pytest

from poet_onnx.errors import InputError
from poet_onnx.profiler.store import StepTimes, fit_store, measure_store

STEP_BYTES = 1 << 20


@pytest.mark.parametrize("page_cache", [True, False])
def test_a_store_is_measured_and_gone(tmp_path: Path, page_cache: bool) -> None:
    try:
        found = measure_store(tmp_path, page_cache=page_cache, repetitions=3, step_bytes=STEP_BYTES)
    except InputError as error:
        if page_cache:
            raise
        pytest.skip(f"not every file system goes past the page cache: {error}")
    for rate in (found.read_bytes_per_second, found.write_bytes_per_second):
        assert 1e6 < rate < 1e11
    assert 0 < found.commit_seconds + found.latency_seconds < 5
    assert (found.commit_bytes_per_second is not None) is page_cache
    assert not list(tmp_path.iterdir())


def test_a_directory_that_cannot_be_written_is_refused() -> None:
    with pytest.raises((InputError, OSError)):
        measure_store(Path("/proc"), page_cache=True)


@pytest.mark.parametrize("page_cache", [True, False])
def test_latencies_and_rates_are_those_of_many_tensors_in_a_step(page_cache: bool) -> None:
    steps = {1 << 17: 64, 1 << 20: 8}
    latency_seconds, read, write, behind = 5e-5, 1e9, 5e8, 1e8
    taken = [
        StepTimes(
            count * (latency_seconds + size / read),
            count * (2 * latency_seconds + size / read + size / write),
            # The page cache gives the storage what is written from the first tensor on; a disk's own cache is small.
            0.003
            + (count * (size / behind - 2 * latency_seconds - size / read - size / write) if page_cache else 0.02),
        )
        for size, count in steps.items()
    ]
    found = fit_store(steps, taken, 0.003, page_cache=page_cache)
    assert found.latency_seconds == pytest.approx(latency_seconds)
    assert found.read_bytes_per_second == pytest.approx(read)
    assert found.write_bytes_per_second == pytest.approx(write)
    assert found.commit_seconds == pytest.approx(0.003 if page_cache else 0.023)
    assert found.commit_bytes_per_second == (pytest.approx(behind) if page_cache else None)


def test_the_noise_of_a_clock_gives_no_rates_below_zero() -> None:
    """A commit may seem quicker than an empty one, and an update than reading alone."""
    found = fit_store({1 << 17: 64, 1 << 20: 8}, [StepTimes(0.03, 0.02, 0.001)] * 2, 0.002, page_cache=True)
    assert found.commit_bytes_per_second == pytest.approx(16 * (1 << 20) / 0.04)
    assert found.write_bytes_per_second == pytest.approx(8 * (1 << 20) / 0.002)
