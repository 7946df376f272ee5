"""What lives in a store on disk, and what a step writes there besides its updates."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from poet_onnx.costing.flops import storage_work
from poet_onnx.graph import Role, TrainingGraph
from poet_onnx.graph.operators import StorageWork, quantized, spec_of
from poet_onnx.graph.operators.spec import Call
from poet_onnx.graph.operators.stored import PAGE_BYTES, updated_bytes, whole_blocks

_ELEMENT_BYTES = 4
_COMMIT_BYTES, _COMMIT_BYTES_PER_PAGE = 16 << 10, 16
"""Of a commit: what is said in it and the blocks that it begins and ends in; and a checksum with a place for each page
(ops/parameters/parameter_file.cpp)."""

_COMMIT_WRITES = 2
"""Of a commit: its text with the table of pages, and its head. The disk must have the one before the other."""

AHEAD_BYTES = 12 * PAGE_BYTES
"""Pages that are read ahead; ops/parameters/page_channel.h has this number."""

_MOST_TENSORS = 4
"""That a parameter has in a store at most: itself, two moments and a gradient."""

_FEW_PAGES = 64
"""With fewer a store takes no memory to read ahead; ops/parameters/parameter_file.cpp has this number."""

_KEPT = (Role.PARAMETER, Role.FROZEN, Role.MOMENT, Role.STATISTIC)
_COMMITTED = (Role.PARAMETER, Role.MOMENT, Role.STATISTIC)


def stored_bytes(graph: TrainingGraph) -> dict[str, int]:
    """Return how large what lives in the store is, with what the optimizer keeps for it, by the name of its handle."""
    written, read = Counter[str](), dict[str, int]()
    for node in graph.nodes:
        work = storage_work(graph, node)
        if node.op_type in (quantized.LINEAR, quantized.GATHER):
            parts = quantized.stored_parts(Call.of(graph, node))
            read |= {node.inputs[index]: size_bytes for index, size_bytes in parts.items()}
            continue
        for name in node.inputs if work is not None else ():
            if work is not None and name and graph.tensors[name].role is Role.HANDLE:
                written[name] += updated_bytes(Call.of(graph, node), work)
                table = node.attributes.get("table")
                table_bytes = _ELEMENT_BYTES * math.prod(map(int, table)) if isinstance(table, tuple) else 0
                read[name] = max(read.get(name, 0), table_bytes or work.read_bytes)
    return {name: written[name] or size_bytes for name, size_bytes in read.items()}


def reads_ahead(graph: TrainingGraph) -> bool:
    """Return whether a store for a graph is large enough to be read ahead, but for a single core and the page cache.

    Tensors that stay in RAM count, as the store has a copy of them.
    """
    tensors = stored_bytes(graph).values()
    kept = (tensor.size_bytes for tensor in graph.tensors.values() if tensor.resident and tensor.role in _KEPT)
    large = sum(-(-size_bytes // PAGE_BYTES) for size_bytes in kept if size_bytes >= PAGE_BYTES // 2)
    return bool(tensors) and most_pages(tensors) + large >= _FEW_PAGES


def most_pages(sizes_bytes: Iterable[int]) -> int:
    """Return how many pages a store has at most, whose parameters take so many bytes with what is kept for them."""
    return sum(size_bytes // PAGE_BYTES + _MOST_TENSORS for size_bytes in sizes_bytes)


def trained_bytes(graph: TrainingGraph) -> dict[str, int]:
    """Return how much a commit writes of what is trained, were it in RAM, by the name of its handle."""
    found = Counter[str]()
    for node in graph.nodes:
        work = storage_work(graph, node)
        if work is not None and work.written_bytes:
            moments = node.attributes.get("moments")
            # Where gradients are collected, they are written, too, behind the moments.
            tensors, others = (1 + moments, 1) if isinstance(moments, int) else (1, 0)
            for name in node.inputs:
                if name and graph.tensors[name].role is Role.HANDLE:
                    found[name] += updated_bytes(Call.of(graph, node), work) * tensors // (tensors + others)
    return found


def commit_work(graph: TrainingGraph) -> StorageWork | None:
    """Return what the commit behind a step moves: what changes in RAM, and the table of pages.

    None where there is no store, or nothing is trained.
    """
    stored = stored_bytes(graph)
    specs = (spec_of(node.domain, node.op_type) for node in graph.nodes)
    if not stored or not any(spec.update or spec.always_writes for spec in specs):
        return None
    small = [tensor.size_bytes for tensor in graph.tensors.values() if tensor.resident and tensor.role in _COMMITTED]
    pages = len(small) + sum(-(-size_bytes // PAGE_BYTES) for size_bytes in stored.values())
    written_bytes = sum(map(whole_blocks, small)) + _COMMIT_BYTES + pages * _COMMIT_BYTES_PER_PAGE
    return StorageWork(0, written_bytes, len(small) + _COMMIT_WRITES)


def store_written_bytes(graph: TrainingGraph) -> int:
    """Return what a step and the commit behind it write to the store; 0 where there is none."""
    commit = commit_work(graph)
    works = [work for node in graph.nodes if (work := storage_work(graph, node)) is not None]
    return sum(work.written_bytes for work in works) + (0 if commit is None else commit.written_bytes)
