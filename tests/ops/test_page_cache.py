"""The back end "uncached" leaves the page cache to others, whatever the order in which pages are read."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from ops_models import FLOAT, make_model, page_descriptors, poet_node

from poet_onnx.runtime import PagingOptions, session_options

SLOTS = 24
FLOATS = 80 << 10
SLOT_BYTES = 4 * FLOATS


def cached_bytes(descriptor: int) -> int:
    """Return how much of a file is in the page cache (mincore(2))."""
    length = os.fstat(descriptor).st_size
    libc = ctypes.CDLL(None, use_errno=True)
    with mmap.mmap(descriptor, length) as mapped:
        view = (ctypes.c_char * length).from_buffer(mapped)
        there = (ctypes.c_ubyte * (-(-length // mmap.PAGESIZE)))()
        assert libc.mincore(ctypes.c_void_p(ctypes.addressof(view)), ctypes.c_size_t(length), there) == 0
        del view
    return sum(page & 1 for page in there) * mmap.PAGESIZE


def all_out_then_in(order: Sequence[int]) -> bytes:
    """Return a model that pages a block out to every slot and then each of them in, in an order; y is their sum."""
    nodes = [helper.make_node("Neg", ["x"], ["block"])]
    nodes += [poet_node("PageOut", ["block"], [f"token{slot}"], slot=slot) for slot in range(SLOTS)]
    total = "x"
    for slot in order:
        nodes.append(
            poet_node("PageIn", [f"token{slot}", total], [f"in{slot}"], slot=slot, dtype=FLOAT, shape=[FLOATS])
        )
        nodes.append(helper.make_node("Sub", [total, f"in{slot}"], [f"sum{slot}"]))
        total = f"sum{slot}"
    nodes.append(helper.make_node("Identity", [total], ["y"]))
    ends = [("x", TensorProto.FLOAT, [FLOATS])], [("y", TensorProto.FLOAT, [FLOATS])]
    return make_model(nodes, *ends)


@pytest.mark.parametrize("order", [range(SLOTS), range(SLOTS - 1, -1, -1)], ids=["ascending", "descending"])
def test_an_uncached_page_file_is_not_in_the_page_cache(tmp_path: Path, order: Sequence[int]) -> None:
    probe = os.open(tmp_path / "probe", os.O_RDWR | os.O_CREAT, 0o600)
    os.write(probe, bytes(SLOT_BYTES))
    os.fsync(probe)
    os.posix_fadvise(probe, 0, 0, os.POSIX_FADV_DONTNEED)
    if cached_bytes(probe):
        pytest.skip("the temporary directory's file system drops nothing from the page cache")
    os.close(probe)
    x = np.random.default_rng(0).integers(-9, 9, FLOATS).astype(np.float32)
    options = session_options(page_dir=tmp_path, paging=PagingOptions(backend="uncached"))
    session = onnxruntime.InferenceSession(all_out_then_in(order), options)
    (descriptor,) = page_descriptors(tmp_path)
    for _ in range(2):
        (y,) = session.run(None, {"x": x})
        assert y.tobytes() == ((1 + SLOTS) * x).tobytes()
        # The last page is dropped when the next one comes.
        assert cached_bytes(descriptor) <= SLOT_BYTES
