"""Measures nodes one by one, each alone with inputs of its own: memory holds one node at a time, and never a step.

Each different operator, shape and attribute is measured once. What was measured is noted down at once, so that a
profile that was stopped goes on where it was, and may be used for other models. A node that cannot run alone, or has no
room, is fitted: it takes what the device's profile says, as much longer or shorter as measured nodes of its kind did.
"""

from __future__ import annotations

import ctypes
import resource
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, helper

from poet_onnx.costing.measured import NodeMeasurement, OperatorMeasurement
from poet_onnx.costing.workspace import has_workspace_rule, workspace_bytes
from poet_onnx.graph import Node, TrainingGraph
from poet_onnx.profiler.caches import Caches
from poet_onnx.profiler.journal import Journal
from poet_onnx.profiler.single import SingleNode
from poet_onnx.profiler.timing import keep_heap
from poet_onnx.runtime import session_options
from poet_onnx.runtime.installed import import_onnxruntime
from poet_onnx.runtime.memory_left import memory_left

_MOST_TRIES = 2
"""An operator at which the process died so often is not tried again."""

_MOST_WARMUP = 60
"""Runs until no page is fresh any more: glibc's heap needs some tens."""

_ROOM_SHARE = 0.8
"""Of the memory that is left, which a node may take."""

_CHAINS = (8, 264)
"""Nodes of two graphs that do next to nothing: what the longer one takes more is the runtime's own."""

_CHAIN_RUNS = 100
_BAR_COLUMNS = 20


@dataclass(frozen=True)
class Alone:
    """How nodes run alone.

    Attributes:
        repetitions: timed runs of each.
        warmup: runs before them.
        threads: threads inside an operator.
        note: called behind each operator, while the processor has been busy.
    """

    repetitions: int
    warmup: int
    threads: int
    note: Callable[[], None]


class RunOverhead(NamedTuple):
    """What the runtime takes beside kernels.

    Attributes:
        node_seconds: for each node.
        run_seconds: for a run of a graph of one node, that node's share included.
    """

    node_seconds: float
    run_seconds: float


def measure_operators(
    singles: Sequence[SingleNode],
    alone: Alone,
    overhead: RunOverhead,
    journal: Journal,
    report: Callable[[str], None],
) -> dict[str, OperatorMeasurement]:
    """Return what nodes took alone, by name; those that could not run are left out.

    Args:
        singles: the nodes; no view is among them.
        alone: how they run.
        overhead: is taken off.
        journal: knows what was measured before, and takes what is measured now.
        report: called with what is being done.
    """
    keys = {single.node.name: single.key().hex() for single in singles}
    wanted = len(dict.fromkeys(keys.values()))
    done = dict.fromkeys(key for key in keys.values() if key in journal.known)
    caches = Caches.of_step(singles)
    keep_heap()  # as in steps: otherwise each run pays for fresh pages
    missing = set[str]()
    for single in singles:
        key = keys[single.node.name]
        if key in journal.known or key in missing:
            continue
        report(f"{_bar(len(done) + len(missing), wanted)} operators, now {single.node.op_type}")
        found = None
        if journal.tries(key) < _MOST_TRIES and _has_room(single, alone.threads):
            journal.begin(key)
            found = _measured(single, alone, caches, overhead.run_seconds)
            alone.note()
            _give_back()
        if found is None:
            missing.add(key)
        else:
            journal.add(key, found)
            done[key] = None
    return {name: journal.known[key] for name, key in keys.items() if key in journal.known}


def with_fitted(
    graph: TrainingGraph,
    nodes: Iterable[Node],
    measured: Mapping[str, OperatorMeasurement],
    modelled_seconds: Mapping[str, float],
    *,
    threads: int,
) -> dict[str, NodeMeasurement]:
    """Return figures of all nodes: what was measured alone, and for the others what fits it.

    Args:
        graph: of the nodes.
        nodes: of the graph.
        measured: what was measured, by name of nodes; the fit is over all of them.
        modelled_seconds: by the device's profile, by name of nodes.
        threads: threads inside an operator.
    """
    ratios = defaultdict(list)
    for name, found in measured.items():
        if modelled_seconds.get(name, 0.0) > 0:
            ratios[found.op_type].append(found.seconds / modelled_seconds[name])
    typical = statistics.median(ratio for each in ratios.values() for ratio in each) if ratios else 1.0
    figures = {}
    for node in nodes:
        made = sum(graph.tensors[name].size_bytes for name in node.outputs if name)
        taken = measured.get(node.name)
        if node.view:
            figures[node.name] = NodeMeasurement(seconds=0.0, workspace_bytes=0, output_bytes=made)
        elif taken is not None:
            figures[node.name] = NodeMeasurement(
                seconds=taken.seconds, workspace_bytes=taken.workspace_bytes, output_bytes=made
            )
        else:
            ratio = statistics.median(ratios[node.op_type]) if ratios.get(node.op_type) else typical
            figures[node.name] = NodeMeasurement(
                seconds=modelled_seconds[node.name] * ratio,
                workspace_bytes=workspace_bytes(graph, node, threads=threads),
                output_bytes=made,
                workspace_estimated=not has_workspace_rule(node),
                fitted=True,
            )
    return figures


def run_overhead(alone: Alone) -> RunOverhead:
    """Return what the runtime takes beside kernels, by chains of nodes that do next to nothing."""
    short, long = (_chain_seconds(nodes, alone) for nodes in _CHAINS)
    node_seconds = max(0.0, (long - short) / (_CHAINS[1] - _CHAINS[0]))
    return RunOverhead(node_seconds, max(0.0, short - (_CHAINS[0] - 1) * node_seconds))


def _chain_seconds(nodes: int, alone: Alone) -> float:
    onnxruntime = import_onnxruntime()
    names = [f"x{number}" for number in range(nodes + 1)]
    chain = [helper.make_node("Neg", [names[n]], [names[n + 1]], name=f"n{n}") for n in range(nodes)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in (names[0], names[-1])]
    model = helper.make_model(
        helper.make_graph(chain, "chain", ends[:1], ends[1:]), opset_imports=[helper.make_opsetid("", 15)], ir_version=8
    )
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), session_options(threads=alone.threads), providers=["CPUExecutionProvider"]
    )
    feeds = {names[0]: np.ones(1, np.float32)}
    taken = [_run_seconds(session, feeds, alone.threads) for _ in range(_CHAIN_RUNS)]
    return statistics.median(taken[_CHAIN_RUNS // 2 :])


def _run_seconds(session: Any, feeds: Mapping[str, npt.NDArray[np.generic]], threads: int) -> float:
    """Return what a run takes: with one thread, which never waits, the processor's time, as of whole steps."""
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    for output in session.get_outputs():
        binding.bind_output(output.name)
    clock = time.thread_time if threads == 1 else time.perf_counter
    start = clock()
    session.run_with_iobinding(binding)
    return clock() - start


def _measured(single: SingleNode, alone: Alone, caches: Caches, base_seconds: float) -> OperatorMeasurement | None:
    """Run a node alone; None if it fails, or makes outputs of other sizes."""
    feeds = single.feeds()
    try:
        session = single.session(alone.threads)
        counted = single.count(session, feeds)
        if counted is None:
            return None
        for number in range(_MOST_WARMUP):
            faults = _page_faults()
            _run_seconds(session, feeds, alone.threads)
            if number >= alone.warmup and _page_faults() == faults:
                break  # the heap has what it needs, as in the middle of training
        taken = []
        for _ in range(alone.repetitions):
            caches.empty()
            taken.append(_run_seconds(session, feeds, alone.threads))
    except Exception:  # noqa: BLE001 -- whatever ONNX Runtime did not like, this node is fitted
        return None
    return OperatorMeasurement(
        op_type=single.node.op_type,
        seconds=max(0.0, statistics.median(taken) - base_seconds),
        workspace_bytes=counted,
        output_bytes=single.output_bytes,
    )


def _page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _has_room(single: SingleNode, threads: int) -> bool:
    tensors = (*single.node.inputs, *single.node.outputs)
    sizes = [single.graph.tensors[name].size_bytes for name in dict.fromkeys(tensors) if name]
    needed = sum(sizes) + workspace_bytes(single.graph, single.node, threads=threads)
    return needed <= _ROOM_SHARE * memory_left().size_bytes


def _give_back() -> None:
    """Give back what the node took: the next one is of other sizes."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _bar(done: int, wanted: int) -> str:
    full = _BAR_COLUMNS * done // max(wanted, 1)
    return f"[{'#' * full}{'.' * (_BAR_COLUMNS - full)}] {done} of {wanted}"
