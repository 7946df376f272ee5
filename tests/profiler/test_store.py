"""What a store takes is measured in the directory that is asked for, through the page cache or past it."""

from __future__ import annotations

from pathlib import Path

import pytest

from poet_onnx.errors import InputError
from poet_onnx.profiler.store import measure_store

SIZES = (1 << 18, 1 << 20, 1 << 22)


@pytest.mark.parametrize("page_cache", [True, False])
def test_a_store_is_measured_and_gone(tmp_path: Path, page_cache: bool) -> None:
    try:
        found = measure_store(tmp_path, page_cache=page_cache, repetitions=3, sizes_bytes=SIZES)
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
