"""Fits a device's rates to what the nodes of a step took."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from poet_onnx.costing.board import DIGITS, Rates
from poet_onnx.costing.device import ComputeProfile
from poet_onnx.costing.flops import count_work
from poet_onnx.graph import TrainingGraph

_SCALES = (1 / 64, 1 / 16, 1 / 4, 1.0, 4.0, 16.0, 64.0)
"""Of the profile's rates, from which the search begins: it finds the best near its beginning."""

_FACTORS = (2.0 ** np.arange(-8, 8.25, 0.25), 1.01 ** np.arange(-18, 19), 1.0005 ** np.arange(-20, 21))
"""By which one rate is changed while the others stay: coarse ones first."""

_MOST_TIMES = 100.0
"""No rate is more times better than the profile's: it is that nodes are too small to tell."""

_MOST_ROUNDS = 60
_LEAST_SHARE = 0.01
"""Of the nodes' time: a rate for which they wait less is not found out, where another one does as well."""

_AS_WELL = 0.005
"""Of the nodes' time, by which they may miss it more."""

_MEMORY, _OVERHEAD = 2, 3
"""Places of paces and work: flop of products, other flop, bytes moved, and 1 for each node."""

_USUAL_MEMORY = 8e9
"""Where a profile does not say how fast memory is."""

_LEAST_OVERHEAD = 1e-7

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class TimedNodes:
    """What a step took with a number of threads.

    Attributes:
        seconds: of the step.
        overhead_seconds: of each node beside its kernel, views included.
        kernel_seconds: by name of nodes; with the overheads they make the step.
        active_watts: above rest during the steps; None where no meter saw any.
    """

    seconds: float
    overhead_seconds: float
    kernel_seconds: Mapping[str, float]
    active_watts: float | None = None


def fit_rates(graph: TrainingGraph, timed: TimedNodes, near: ComputeProfile) -> Rates:
    """Return the rates with which the nodes of a step take about what they took, and all of them exactly that.

    The sum of what nodes miss is made small, not of its squares: a few kernels that are slower than their work says
    change little. The search begins near the rates of one thread, of which those that no node waits for stay.
    """
    nodes = [node for node in graph.nodes if not node.view]
    counted = [count_work(graph, node) for node in nodes]
    work = np.array([(each.matmul_flops, each.elementwise_flops, each.moved_bytes, 1.0) for each in counted])
    # A profile charges views nothing: what they take is shared by the others.
    of_nodes = sum(timed.kernel_seconds[node.name] for node in nodes)
    overhead = max(_LEAST_OVERHEAD, (timed.seconds - of_nodes) / len(nodes))
    took = np.array([timed.kernel_seconds[node.name] for node in nodes]) + overhead
    took *= timed.seconds / took.sum()
    memory = near.memory_bytes_per_second or _USUAL_MEMORY
    near_paces = np.array(
        [1 / near.matmul_flops_per_second, 1 / near.elementwise_flops_per_second, 1 / memory, overhead]
    )
    descend = partial(_descended, work, took, near_paces / _MOST_TIMES)
    starts = [near_paces * (scale, scale, scale, 1.0) for scale in _SCALES]
    paces = min(map(descend, starts), key=partial(_missed, work, took))
    is_kept = _kept(work, took, paces, near_paces)
    paces = _scaled(work, took, np.where(is_kept, near_paces, paces), ~is_kept)
    shares = np.where(is_kept, 0.0, _shares(work, paces))
    return Rates(
        matmul_flops_per_second=_rounded(1 / paces[0]),
        elementwise_flops_per_second=_rounded(1 / paces[1]),
        memory_bytes_per_second=_rounded(1 / paces[_MEMORY]),
        node_overhead_seconds=_rounded(paces[_OVERHEAD]),
        matmul_share=float(shares[0]),
        elementwise_share=float(shares[1]),
        memory_share=float(shares[_MEMORY]),
        miss_share=float(_missed(work, took, paces) / took.sum()),
        active_watts=timed.active_watts,
    )


def _rounded(value: float) -> float:
    """Return what a device's file says of a number: a plan for that file has the same graph as the measurement."""
    return float(f"{value:.{DIGITS}g}")


def _seconds(work: Array, paces: Array) -> Array:
    """Return what nodes take, for paces in the last axis of an array: seconds for each operation, byte and node."""
    arithmetic = paces[..., :_MEMORY] @ work[:, :_MEMORY].T
    return (
        np.maximum(arithmetic, paces[..., _MEMORY, np.newaxis] * work[:, _MEMORY]) + paces[..., _OVERHEAD, np.newaxis]
    )


def _missed(work: Array, took: Array, paces: Array) -> Array:
    """Return the sum of the seconds by which nodes miss what they took, likewise."""
    return np.asarray(np.abs(_seconds(work, paces) - took).sum(axis=-1))


def _descended(work: Array, took: Array, least: Array, paces: Array) -> Array:
    """Return paces, no less than some, from which no change of one alone lets the nodes miss less."""
    missed = _missed(work, took, paces)
    for factors in _FACTORS:
        for _ in range(_MOST_ROUNDS):
            before = missed
            for which in range(len(paces)):
                tried = np.repeat(paces[np.newaxis], len(factors), axis=0)
                tried[:, which] = np.maximum(tried[:, which] * factors, least[which])
                found = _missed(work, took, tried)
                best = int(found.argmin())
                if found[best] < missed:
                    paces, missed = tried[best], found[best]
            if missed >= before:
                break
    return paces


def _kept(work: Array, took: Array, paces: Array, near: Array) -> npt.NDArray[np.bool_]:
    """Return for which paces those near do as well: hardly a node waits for them."""
    shares, missed, kept = _shares(work, paces), _missed(work, took, paces), np.zeros(len(paces), bool)
    for which in range(_OVERHEAD):
        kept[which] = True
        does_as_well = _missed(work, took, np.where(kept, near, paces)) <= missed + _AS_WELL * took.sum()
        kept[which] = shares[which] < _LEAST_SHARE and does_as_well
    return kept


def _scaled(work: Array, took: Array, paces: Array, may_change: npt.NDArray[np.bool_]) -> Array:
    """Return the paces with which all nodes together take what they took."""
    for _ in range(_MOST_ROUNDS):
        paces = np.where(may_change, paces * took.sum() / _seconds(work, paces).sum(), paces)
    return paces


def _shares(work: Array, paces: Array) -> Array:
    """Return the parts of the nodes' time in which each pace is what they wait for."""
    arithmetic = work[:, :_MEMORY] * paces[:_MEMORY]
    moving = work[:, _MEMORY] * paces[_MEMORY]
    waits = moving >= arithmetic.sum(axis=1)
    parts = np.array([*arithmetic[~waits].sum(axis=0), moving[waits].sum(), len(work) * paces[_OVERHEAD]])
    return np.asarray(parts / parts.sum())
