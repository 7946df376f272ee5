"""Sessions with page files in a child of a fork: refused there, and whole in the parent."""

from __future__ import annotations

import fcntl
import os
import signal
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from ops_models import page_descriptors, round_trip_model
from paging_sessions import MODES, RuntimeFailure, make_session

from poet_onnx.runtime import PagingOptions, describe_store, open_stores, session_options
from poet_onnx.runtime.options import BACKENDS


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("backend", BACKENDS)
def test_child_of_a_fork_is_refused_and_can_start_anew(tmp_path: Path, mode: str, backend: str) -> None:
    """What it drops stays as it is in its parent: the child has the same open file."""
    shape = (1 << 16,)
    model = round_trip_model(mode, shape)
    options = session_options(page_dir=tmp_path, paging=PagingOptions(backend=backend))
    session = onnxruntime.InferenceSession(model, options)
    x = np.ones(shape, np.float32)
    session.run(None, {"x": x})
    (descriptor,) = page_descriptors(tmp_path)
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    assert bool(flags & os.O_DIRECT) == (describe_store(open_stores()[-1]).backend == "direct")
    child = os.fork()
    if child == 0:  # no assertion may leave this branch
        outcome = 1
        try:
            signal.alarm(60)
            try:
                session.run(None, {"x": x})
            except RuntimeFailure as error:
                refused = f"belongs to process {os.getppid()}, which forked this one" in str(error)
                del session
                fresh = make_session(model, tmp_path)
                (y,) = fresh.run(None, {"x": x})
                outcome = 0 if refused and (y == x).all() else 2
        finally:
            os._exit(outcome)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert fcntl.fcntl(descriptor, fcntl.F_GETFL) == flags
    for _ in range(3):
        assert session.run(None, {"x": x})[0].tobytes() == x.tobytes()
