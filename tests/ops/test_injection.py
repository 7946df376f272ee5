"""The operator library when its system calls and allocations fail (injected_faults.py), and when bits flip."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from folders import SUPPORT
from ops_builds import faulty_library
from ops_models import Keeper, page_descriptors

from poet_onnx.runtime import PagingOptions, session_options
from poet_onnx.runtime.options import BACKENDS, CIPHERS

FAULTS = SUPPORT / "injected_faults.py"
LONG = "bert-2-sync-more or bert-2-async or resnet18-async"  # of the tests in FAULTS
RuntimeFailure = Exception  # ONNX Runtime's exceptions have no common base but this one


@pytest.mark.deep
@pytest.mark.parametrize("chosen", [f"not ({LONG})", LONG])
def test_whatever_fails_the_library_withstands(chosen: str) -> None:
    environment = {**os.environ, "POET_FAULTY_OPS": str(faulty_library())}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, str(FAULTS)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("cipher", [None, *CIPHERS])
@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_every_flipped_bit_that_is_read_is_noticed(tmp_path: Path, backend: str, cipher: str | None) -> None:
    """100 flips for each of 9 ways to store a page."""
    options = session_options(page_dir=tmp_path, paging=PagingOptions(backend=backend, cipher=cipher))
    session = Keeper(options, (3001,))
    x = np.random.default_rng(1).standard_normal(3001).astype(np.float32)
    token = session.write(x)
    (descriptor,) = page_descriptors(tmp_path)
    random = np.random.default_rng(2)
    # A descriptor of its own, so that no flag of the store's changes.
    file = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)
    try:
        for _ in range(100):
            at, bit = int(random.integers(x.nbytes)), 1 << int(random.integers(8))
            before = os.pread(file, 1, at)
            os.pwrite(file, bytes([before[0] ^ bit]), at)
            os.fdatasync(file)
            with pytest.raises(RuntimeFailure, match=r"cannot read slot 0 .* what was read is not what was written"):
                session.read(token)
            os.pwrite(file, before, at)
            os.fdatasync(file)
    finally:
        os.close(file)
    assert session.read(token).tobytes() == x.tobytes()
