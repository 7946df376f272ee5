"""What kernels take from malloc, past the runtime's allocator, is counted: a fresh process runs them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from folders import SUPPORT
from stock_environment import EACH_PYTHON, STOCK_PYTHON
from workspace_case import MS, Case, ints, single_operator

from poet_onnx.costing.workspace import heap_bytes, workspace_bytes

NOISE_BYTES = 1 << 20
"""The kernel counts resident pages of each processor apart, and threads of a pool add theirs: every rule is of more."""

CAREFUL = 2.0
"""By how much a rule may be above what the stock runtime takes; the older training runtime takes nothing in some."""

ROUGH = ("DFT", "TopK", "Unique")
"""Operators of which only a bound is known: it depends on the numbers, the threads, or the length's factors."""

RNG = np.random.default_rng(3)
IMAGE, TABLE, MANY = (4, 16, 64, 64), (512, 512, 2), (65536, 1, 2)


def places(most: int, *shape: int) -> np.ndarray:
    return RNG.integers(0, most, shape)


def numbers(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.int64)


def scattered(op: str, opset: int) -> Case:
    return Case(op, (IMAGE, places(16, *IMAGE), IMAGE), (IMAGE,), {"axis": 1}, opset=opset)


CASES = [
    scattered("ScatterElements", 16),
    scattered("Scatter", 9),
    Case("GatherElements", (IMAGE, places(16, *IMAGE)), (IMAGE,), {"axis": 1}),
    Case("GatherND", (TABLE, places(512, 262144, 2)), ((262144, 2),)),
    Case("ScatterND", (TABLE, places(512, 262144, 2), (262144, 2)), (TABLE,), {"reduction": "add"}, opset=16),
    Case("OneHot", (places(2, 524288), np.array(2), np.array([0, 1], np.float32)), ((524288, 2),)),
    Case("NonZero", (np.ones((256, 1024), np.float32),), (numbers(2, 262144),)),
    Case("TopK", ((4, 262144), ints(262144)), ((4, 262144), numbers(4, 262144))),
    Case("Unique", (np.arange(65536, dtype=np.float32),), ((65536,), *(np.arange(65536),) * 3)),
    Case("MatMul", (MANY, (65536, 2, 1)), ((65536, 1, 1),)),
    Case("FusedMatMul", (MANY, (65536, 2, 1)), ((65536, 1, 1),), {}, MS),
    Case("Hardmax", ((2, 1048576),), ((2, 1048576),), {"axis": 0}, opset=13),
    Case("GridSample", ((1, 1, 64, 64), (1, 256, 256, 2)), ((1, 1, 256, 256),), {"mode": "bilinear"}, opset=16),
    Case("AffineGrid", ((1, 2, 3), ints(1, 3, 256, 256)), ((1, 256, 256, 2),), opset=20),
    Case("AffineGrid", ((1, 3, 4), ints(1, 3, 16, 64, 64)), ((1, 16, 64, 64, 3),), opset=20),
    Case("Resize", ((1, 1, 256, 256), None, None, ints(1, 1, 512, 512)), ((1, 1, 512, 512),), {"mode": "cubic"}),
    Case("Resize", ((1, 1, 256, 256), None, None, ints(1, 1, 512, 512)), ((1, 1, 512, 512),), {"mode": "linear"}),
    Case("DFT", ((1, 262144, 1),), ((1, 262144, 2),), {"axis": 1}, opset=17),
    Case("DFT", ((1, 65537, 1),), ((1, 65537, 2),), {"axis": 1}, opset=17),
    Case("MeanVarianceNormalization", ((8, *IMAGE[1:]),), ((8, *IMAGE[1:]),), {"axes": [0, 2, 3]}),
    Case("MeanVarianceNormalization", ((8, *IMAGE[1:]),), ((8, *IMAGE[1:]),), {"axes": [2, 3]}),
    Case(
        "DepthwiseWeightGradient",
        ((1, 2, 512, 512), (1, 2, 1024, 1024)),
        ((2, 1, 3, 3),),
        {"kernel": [3, 3], "strides": [2, 2], "dilations": [1, 1], "begins": [1, 1]},
        "poet",
    ),
    Case(
        "AccumulateRows",
        ((1000, 2), places(1000, 262144), (262144, 2), np.array([True])),
        (np.array([True]),),
        {},
        "poet",
    ),
    Case(
        "UpdateRowsSgd",
        ((262144, 2), np.array([1, 0.1, 0], np.float32), (1000, 2), places(1000, 262144)),
        (np.array([True]),),
        {},
        "poet",
    ),
    Case(
        "AddRows",
        ((1000, 2), places(1000, 262144), (262144, 2)),
        ((1000, 2),),
        {"first": 0, "rows": 1000},
        "poet",
    ),
    Case("GatherGradient", (places(1000, 262144), (262144, 2)), ((1000, 2),), {"shape": [1000, 2], "axis": 0}, "poet"),
    Case("CrossEntropyGradient", (IMAGE, places(16, 4, 64, 64), (4, 64, 64)), (IMAGE,), {}, "poet"),
]


@pytest.mark.deep
@pytest.mark.parametrize("python", EACH_PYTHON)
def test_what_kernels_take_from_malloc_is_counted(python: str, tmp_path: Path) -> None:
    for number, case in enumerate(CASES):
        model, feeds, _ = single_operator(case)
        onnx.save(model, tmp_path / f"{number}.onnx")
        np.savez(tmp_path / f"{number}.npz", **feeds)
    worker = SUPPORT / "heap_growth.py"
    done = subprocess.run([python, worker, tmp_path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    wrong = []
    for number, found in json.loads(done.stdout).items():
        case = CASES[int(number)]
        _, _, graph = single_operator(case)
        heap, workspace = heap_bytes(graph, graph.nodes[0]), workspace_bytes(graph, graph.nodes[0])
        most = CAREFUL * found + NOISE_BYTES if python == STOCK_PYTHON and case.op not in ROUGH else float("inf")
        if not found - NOISE_BYTES <= heap + workspace <= most:
            wrong.append(f"{case.op} {case.attributes}: {found} bytes; counted {heap} of the heap, {workspace}")
    assert not wrong, "\n".join(wrong)
