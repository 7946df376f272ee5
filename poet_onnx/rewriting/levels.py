"""Which parameters stay in RAM where not all of them can: those whose bytes save most energy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from poet_onnx.costing.store_traffic import stored_bytes, trained_bytes
from poet_onnx.description.names import handle_name
from poet_onnx.graph.operators import StorageWork
from poet_onnx.graph.operators.stored import whole_blocks
from poet_onnx.rewriting.baseline import Baseline

MOST_LEVELS = 8
"""Ways to keep some in RAM, of about equal steps, as each takes planning."""


@dataclass(frozen=True)
class Level:
    """A part of what may live in a store.

    Attributes:
        stored: names of what does; the rest is in RAM.
        base_joules: what a step takes that runs every node once; no plan takes less.
    """

    stored: frozenset[str]
    base_joules: float


def levels(whole: Baseline) -> list[Level]:
    """Return parts of what lives in a store, first those with which a step takes the least.

    Args:
        whole: a graph variant with all of it in the store.
    """
    names = whole.variant.stored or ()
    if not names:
        return []
    sizes, costs = stored_bytes(whole.graph), whole.costs
    watts = costs.idle_watts + (0.0 if costs.channel is None else costs.channel.watts)
    joules = {name: -watts * seconds for name, seconds in _commit_seconds(whole, map(handle_name, names)).items()}
    for node in whole.graph.nodes:
        for name in node.inputs:
            if name in joules:
                cost = costs.nodes[node.name]
                joules[name] += cost.storage_joules + costs.idle_watts * cost.storage_seconds

    def saved_per_byte(name: str) -> float:
        return joules[handle_name(name)] / max(1, sizes.get(handle_name(name), 0))

    order = sorted(names, key=lambda name: (-saved_per_byte(name), name))  # the first ones stay in RAM first
    found: dict[frozenset[str], float] = {}
    for part in range(1, MOST_LEVELS + 1):
        left_bytes = sum(sizes.values()) * part // (MOST_LEVELS + 1)
        kept = []
        for name in order:
            if sizes.get(handle_name(name), 0) <= left_bytes:
                kept.append(name)
                left_bytes -= sizes.get(handle_name(name), 0)
        stored = frozenset(names).difference(kept)
        if kept and stored:
            found[stored] = whole.problem.base_joules - sum(joules[handle_name(name)] for name in kept)
    return sorted((Level(*each) for each in found.items()), key=lambda level: level.base_joules)


def _commit_seconds(whole: Baseline, names: Iterable[str]) -> dict[str, float]:
    """Return how long commits write, by name of a handle, what a step updates in the store once it is in RAM."""
    trained, channel = trained_bytes(whole.graph), whole.costs.channel
    works = {name: StorageWork(0, whole_blocks(trained.get(name, 0)), int(name in trained)) for name in names}
    return {name: 0.0 if channel is None else channel.transfer_seconds(work) for name, work in works.items()}
