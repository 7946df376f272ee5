"""Every system call and allocation of the operator library fails in turn, in steps of real models.

tests/ops/test_injection.py runs this file in a process of its own, with the library that has the hooks for it: a
process can have one operator library alone. The environment variable POET_FAULTY_OPS names its folder.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import arena_models
import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from ops_models import page_descriptors, round_trip_model

import poet_onnx.ops
from poet_onnx import rewrite
from poet_onnx.costing.device import load_device
from poet_onnx.runtime import PagingOptions, arena_statistics, count_allocations, count_arena, session_options
from poet_onnx.runtime.feeds import random_feeds
from poet_onnx.runtime.options import BACKENDS

poet_onnx.ops.__path__.insert(0, os.environ["POET_FAULTY_OPS"])  # before anything loads the library

FAULTS = {  # ops/faults/faults.h, and words of the error that must come; None: the step must succeed
    "interrupted": (1, None),
    "short": (2, None),
    "EIO": (3, f"errno {errno.EIO}"),
    "ENOSPC": (4, f"errno {errno.ENOSPC}"),
    "EDQUOT": (5, f"errno {errno.EDQUOT}"),
    "end of file": (6, "unexpected end of file"),
    "unsupported": (8, f"errno {errno.EOPNOTSUPP}"),
    # The library has no memory of its own left, or none for a tensor: ONNX Runtime gets that through the library.
    "out of memory": (7, "out of memory|bad_alloc"),
}
NO_MAPPING = 9  # ops/faults/faults.h
NEVER = 1 << 60
RuntimeFailure = Exception  # ONNX Runtime's exceptions have no common base but this one


@dataclass
class Step:
    """A session of a rewritten training graph with inputs, and what one step makes of them."""

    session: onnxruntime.InferenceSession
    feeds: dict[str, np.ndarray]
    updated: frozenset[str]
    page_outs: int
    expected: list[bytes]

    def run(self) -> list[bytes]:
        """Run a step on fresh gradient buffers; return the bytes of outputs and buffers."""
        feeds = {name: array.copy() if name in self.updated else array for name, array in self.feeds.items()}
        outputs = self.session.run(None, feeds)
        return [output.tobytes() for output in outputs] + [feeds[name].tobytes() for name in sorted(self.updated)]


def make_step(path: Path, directory: Path, budget: str, asynchronous: bool, split: bool) -> Step:
    """Rewrite a model with paging alone and open a session of it."""
    device = load_device("tx2")
    assert device.storage is not None
    device = device.model_copy(update={"storage": device.storage.model_copy(update={"asynchronous": asynchronous})})
    result = rewrite(path, device=device, activation_budget=budget, recompute=False, split=split, gap=0.5)
    halves = sum(node.op_type == "PageOutStart" for node in result.model.graph)
    whole = sum(node.op_type == "PageOut" for node in result.model.graph)
    assert halves + whole >= 18
    assert (halves > whole) if asynchronous else halves == 0
    session = onnxruntime.InferenceSession(
        ir.to_proto(result.model).SerializeToString(), session_options(page_dir=directory)
    )
    (descriptor,) = page_descriptors(directory)
    plan_bytes = {
        node.attributes["plan_bytes"].as_int() for node in result.model.graph if "plan_bytes" in node.attributes
    }
    assert {os.fstat(descriptor).st_size} == plan_bytes  # reserved, as the runtime knows the size of every tensor
    inputs = {value.name for value in session.get_inputs()}
    updated = frozenset(name for node in result.graph.nodes for name in node.updates if name in inputs)
    feeds = {name: array for name, array in random_feeds(result.graph, 0).items() if name in inputs}
    step = Step(session, feeds, updated, halves + whole, [])
    step.expected = step.run()
    return step


@pytest.fixture
def library() -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(poet_onnx.ops.library_path()))
    loaded.poet_arm_fault.argtypes = [ctypes.c_int, ctypes.c_uint64]
    loaded.poet_arm_fault.restype = None
    loaded.poet_disarm_fault.argtypes = []
    loaded.poet_disarm_fault.restype = ctypes.c_uint64
    return loaded


def inject(library: ctypes.CDLL, step: Step, name: str, most: int) -> int:
    """Fail each call of a step in turn, or every n-th where there are more than `most`; return how many failed."""
    kind, message = FAULTS[name]
    library.poet_arm_fault(kind, NEVER)
    assert step.run() == step.expected
    calls = library.poet_disarm_fault()
    chosen = range(0, calls, -(-calls // most))
    reached = 0
    for nth in chosen:
        library.poet_arm_fault(kind, nth)
        try:
            outcome = step.run()
        except RuntimeFailure as error:
            assert message is not None, f"{name} at call {nth}: {error}"
            assert re.search(message, str(error)), f"{name} at call {nth}: {error}"
        else:
            assert outcome == step.expected, f"wrong bits after {name} at call {nth}"
        reached += library.poet_disarm_fault() > nth
        assert step.run() == step.expected, f"wrong bits in the step after {name} at call {nth}"
    # How many calls a step makes beside transfers under way varies a little.
    assert reached >= 0.9 * len(chosen)
    return len(chosen)


def held() -> tuple[int, int]:
    """Return how many threads and descriptors this process has."""
    return tuple(len(list(Path("/proc/self", kind).iterdir())) for kind in ("task", "fd"))


@pytest.mark.parametrize(
    "case",
    [
        ("bert-2", "12%", False, True, 8),
        ("bert-2", "12%", False, True, 30),
        ("bert-2", "12%", True, True, 60),
        ("resnet18", "75%", True, False, 8),
    ],
    ids=["bert-2-sync-some", "bert-2-sync-more", "bert-2-async", "resnet18-async"],
)
def test_every_call_of_a_step_may_fail(model_path: Callable[..., Path], tmp_path: Path, library, case) -> None:
    """At most some calls of each kind, spread over the step."""
    name, budget, asynchronous, split, most = case
    step = make_step(model_path(name), tmp_path, budget, asynchronous, split)
    before = held()
    with count_allocations() as memory:
        injected = {fault: inject(library, step, fault, most) for fault in FAULTS}
        with count_arena() as counted:
            step.run()
        assert counted.statistics.unplanned == 0  # whatever failed before
        assert memory.current_bytes <= memory.level_bytes
    assert held() == before
    # At least one call for every page-out and one for the page-in of each, of every kind of call.
    assert all(count >= min(2 * step.page_outs, most * 2 // 3) for count in injected.values()), injected
    assert sum(injected.values()) >= 4 * most


@pytest.mark.parametrize("cipher", [None, "aes-256-gcm"])
@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_every_request_of_a_page_in_pieces_may_fail(tmp_path: Path, library, backend: str, cipher: str | None) -> None:
    """Pages of several pieces, the last of them less than a block of the file."""
    # Five of the staging memory's four places, and five of the largest pieces, which direct I/O alone has.
    for floats in (66_000, 1_100_001 if backend == "direct" and cipher is None else 300_001):
        options = session_options(page_dir=tmp_path, paging=PagingOptions(backend=backend, cipher=cipher))
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(round_trip_model("async", (floats,)), options)
        x = np.random.default_rng(3).standard_normal(floats).astype(np.float32)
        step = Step(session, {"x": x}, frozenset(), 1, [])
        step.expected = step.run()
        assert step.expected == [x.tobytes()]
        for fault in ("interrupted", "short", "EIO", "ENOSPC", "end of file"):
            assert inject(library, step, fault, 100) >= 4


def test_a_mapping_that_fails_is_told_in_the_sentence_of_missing_memory(tmp_path: Path, library) -> None:
    arena_models.make_session(arena_models.model(None), tmp_path)
    before = arena_statistics().region_bytes  # of sessions of other tests that live on
    library.poet_arm_fault(NO_MAPPING, 0)
    needed = rf"needs a region of {arena_models.REGION_BYTES} bytes, but the system has \d+ bytes"
    with pytest.raises(RuntimeFailure, match=needed):
        arena_models.make_session(arena_models.model(arena_models.PLANNED), tmp_path)
    library.poet_disarm_fault()
    assert arena_statistics().region_bytes == before
    session = arena_models.make_session(arena_models.model(arena_models.PLANNED), tmp_path)
    session.run(None, arena_models.feeds())
