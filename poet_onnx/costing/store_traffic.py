"""What lives in a store on disk, and what a step writes there besides its updates."""

from __future__ import annotations

import math
from collections import Counter

from poet_onnx.costing.flops import storage_work
from poet_onnx.graph import Role, TrainingGraph
from poet_onnx.graph.operators.stored import PAGE_BYTES

_ELEMENT_BYTES, _BLOCK_BYTES = 4, 4096
_COMMIT_BYTES, _COMMIT_BYTES_PER_PAGE = 16 << 10, 16
"""Of a commit: what is said in it and the blocks that it begins and ends in; and a checksum with a place for each page
(ops/parameters/parameter_file.cpp)."""

_COMMITTED = (Role.PARAMETER, Role.MOMENT, Role.STATISTIC)


def stored_bytes(graph: TrainingGraph) -> dict[str, int]:
    """Return how large what lives in the store is, with what the optimizer keeps for it, by the name of its handle."""
    written, read = Counter[str](), dict[str, int]()
    for node in graph.nodes:
        work = storage_work(graph, node)
        for name in node.inputs if work is not None else ():
            if work is not None and name and graph.tensors[name].role is Role.HANDLE:
                written[name] += work.written_bytes
                table = node.attributes.get("table")
                table_bytes = _ELEMENT_BYTES * math.prod(map(int, table)) if isinstance(table, tuple) else 0
                read[name] = max(read.get(name, 0), table_bytes or work.read_bytes)
    return {name: written[name] or size_bytes for name, size_bytes in read.items()}


def store_written_bytes(graph: TrainingGraph) -> int:
    """Return what a step and the commit behind it write to the store; 0 where there is none."""
    stored = stored_bytes(graph)
    if not stored:
        return 0
    works = [work for node in graph.nodes if (work := storage_work(graph, node)) is not None]
    small = [tensor.size_bytes for tensor in graph.tensors.values() if tensor.resident and tensor.role in _COMMITTED]
    pages = len(small) + sum(-(-size_bytes // PAGE_BYTES) for size_bytes in stored.values())
    blocks = sum(-(-size_bytes // _BLOCK_BYTES) for size_bytes in small)
    commit_bytes = blocks * _BLOCK_BYTES + _COMMIT_BYTES + pages * _COMMIT_BYTES_PER_PAGE
    return sum(work.written_bytes for work in works) + commit_bytes
