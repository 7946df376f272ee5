"""Power is lost while a parameter store is written, and each of its system calls fails once.

tests/training/test_store_file.py runs this file in a process of its own, with the library that has the hooks for it: a
process can have one operator library alone. The environment variable POET_FAULTY_OPS names its folder.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from stored_tensors import check_is_at, made, train

import poet_onnx.ops
from poet_onnx.errors import InputError
from poet_onnx.runtime.library import operator_library
from poet_onnx.training.store_file import ACCESS, StoreFile, has_store, open_store

poet_onnx.ops.__path__.insert(0, os.environ["POET_FAULTY_OPS"])  # before anything loads the library

STEPS = 4
SUBSETS = 10_000
"""So many subsets of what was not durable yet are tried, each after some write."""
BLOCK_BYTES = 4096
"""A disk writes a block of this size whole, or not at all."""
INTERRUPTED, SHORT, IO_ERROR, DISK_FULL, NEVER = 1, 2, 3, 4, 1 << 60
"""ops/faults/faults.h"""

Write = tuple[int, bytes]
"""Offset and bytes of a write; a sync has no bytes."""
SYNC: Write = (0, b"")


@pytest.fixture(scope="module", params=ACCESS[1:])
def log(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> list[Write]:
    """Return what is written while a store is made and trained, and opened again half-way."""
    path = tmp_path_factory.mktemp("logged")
    library = operator_library()
    library.poet_log_writes(os.fsencode(path / "log"))
    store = made(path, request.param)
    for step in range(1, STEPS + 1):
        if step == STEPS // 2:
            store.close()
            store = open_store(path, access=request.param)
        train(store, step + 100)
        train(store, step)
        store.commit({"step": step})
    store.close()
    library.poet_log_writes(None)
    return list(read_log((path / "log").read_bytes()))


def read_log(data: bytes) -> Iterator[Write]:
    """Yield what ops/faults logged."""
    at = 0
    while at < len(data):
        offset, size = struct.unpack_from("<QQ", data, at)
        at += 16
        if size == (1 << 64) - 1:
            yield SYNC
        else:
            yield offset, data[at : at + size]
            at += size


def blocks(writes: list[Write]) -> list[Write]:
    """Return writes as the disk makes them, block by block."""
    return [
        (offset + start, data[start : start + BLOCK_BYTES])
        for offset, data in writes
        for start in range(0, len(data), BLOCK_BYTES)
    ]


def lost_power(folder: Path, size: int, durable: bytearray, more: list[Write]) -> StoreFile:
    """Open what a disk holds after power was lost: what was durable, and some of what was not."""
    image = bytearray(durable)
    for offset, data in more:
        image[offset : offset + len(data)] = data
    (folder / "parameters.poet").write_bytes(image)
    assert len(image) == size
    return open_store(folder)


def broken_promise(folder: Path, log: list[Write], *, syncs: bool) -> str:
    """Return what is wrong after power was lost at some point; nothing where every point is safe.

    Args:
        folder: for a store.
        log: of writes.
        syncs: whether syncs do what they promise.
    """
    random = np.random.default_rng(7)
    size = max(offset + len(data) for offset, data in log)
    size += -size % BLOCK_BYTES
    points = [point for point in range(1, len(log) + 1) if sum(entry is SYNC for entry in log[:point]) >= 2]
    chosen = [*points, *random.choice(points, SUBSETS)]
    for number, point in enumerate(chosen):
        prefix = log[:point]
        durable, pending = bytearray(size), []
        acknowledged = 0
        for entry in prefix:
            if entry is SYNC:
                acknowledged += 1
                if syncs:
                    for offset, data in pending:
                        durable[offset : offset + len(data)] = data
                    pending = []
            else:
                pending.append(entry)
        some = pending
        if number >= len(points):
            each = blocks(pending)
            some = [write for write in each if random.random() < 0.5] if random.random() < 0.8 else []
        # A commit syncs twice; opening syncs once.
        reopened = 2 * (STEPS // 2)
        steps = (acknowledged if acknowledged <= reopened else acknowledged - 1) // 2 - 1
        try:
            store = lost_power(folder, size, durable, some)
        except InputError as error:
            return f"point {point}: {error}"
        try:
            step = store.committed()["step"]
            if step not in (steps, steps + 1):
                return f"point {point}: step {step}, not {steps} or the next one"
            check_is_at(store, step)
        except (InputError, AssertionError) as error:
            return f"point {point}: {error}"
        finally:
            store.close()
    return ""


def test_power_may_be_lost_at_any_point(tmp_path: Path, log: list[Write]) -> None:
    assert log.count(SYNC) == 2 * (STEPS + 1) + 1
    assert broken_promise(tmp_path, log, syncs=True) == ""


def test_without_its_syncs_a_store_would_not_survive(tmp_path: Path, log: list[Write]) -> None:
    assert "point" in broken_promise(tmp_path, log, syncs=False)


def run_with_fault(path: Path, kind: int, calls_before: int, access: str) -> tuple[bool, int]:
    """Make a step on a store, of which a system call fails; return whether it succeeded, and how many calls it took."""
    library = operator_library()
    library.poet_disarm_fault.restype = ctypes.c_uint64
    store = None
    library.poet_arm_fault(kind, calls_before)
    try:
        store = open_store(path, access=access)
        check_is_at(store, 0)
        train(store, 1)
        store.commit({"step": 1})
        is_done = True
    except InputError:
        is_done = False
    finally:
        calls = int(library.poet_disarm_fault())
        if store is not None:
            store.close()
    return is_done, calls


@pytest.mark.parametrize("access", ACCESS[1:])
@pytest.mark.parametrize("kind", [INTERRUPTED, SHORT, IO_ERROR, DISK_FULL])
def test_each_system_call_of_a_step_fails_once(tmp_path: Path, kind: int, access: str) -> None:
    operator_library().poet_arm_fault.argtypes = [ctypes.c_int, ctypes.c_uint64]
    made(tmp_path).close()
    before = (tmp_path / "parameters.poet").read_bytes()
    _, calls = run_with_fault(tmp_path, kind, NEVER, access)
    assert calls > 20
    for number in range(calls):
        (tmp_path / "parameters.poet").write_bytes(before)
        is_done, _ = run_with_fault(tmp_path, kind, number, access)
        assert is_done or kind not in (INTERRUPTED, SHORT), number
        store = open_store(tmp_path)
        step = store.committed()["step"]
        assert step in ((1,) if is_done else (0, 1)), number
        check_is_at(store, step)
        store.close()


@pytest.mark.parametrize("kind", [IO_ERROR, DISK_FULL])
def test_each_system_call_fails_once_while_a_store_is_made(tmp_path: Path, kind: int) -> None:
    library = operator_library()
    library.poet_arm_fault.argtypes = [ctypes.c_int, ctypes.c_uint64]
    library.poet_disarm_fault.restype = ctypes.c_uint64
    library.poet_arm_fault(kind, NEVER)
    made(tmp_path / "whole").close()
    calls = int(library.poet_disarm_fault())
    assert calls > 8
    for number in range(calls):
        folder = tmp_path / str(number)
        library.poet_arm_fault(kind, number)
        try:
            made(folder).close()
        except InputError:
            pass
        finally:
            library.poet_disarm_fault()
        if not has_store(folder):
            made(folder).close()  # what was left does not stop another attempt
        store = open_store(folder)
        check_is_at(store, 0)
        store.close()
