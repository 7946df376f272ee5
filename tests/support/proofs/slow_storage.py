"""Small graphs on which time decides: transfers as slow as several nodes, a few large values, round numbers."""

from __future__ import annotations

import random

from poet_onnx.costing.costs import CostTable, NodeCost, TransferCost
from poet_onnx.graph import Node, Phase, Residency, Tensor, TrainingGraph
from poet_onnx.plan.problem import ScheduleProblem

LARGE_BYTES = (4000, 8000, 8000, 12_000)
SMALL_BYTES = (400, 1000, 2000)
NODE_SECONDS = (1.0, 1.0, 2.0, 3.0)
TRANSFER_SECONDS = (0.5, 1.0, 2.0, 3.0, 4.0, 6.0)
"""Multiples of each other, so that transfers end just when nodes do: there an error by one shows."""

CROWDED_SECONDS = (1.0, 2.0, 2.0, 3.0)


def slow_problem(seed: int) -> tuple[ScheduleProblem, tuple[str, ...]]:
    """Return a random problem without limits, its storage asynchronous, and its order.

    It has 6 to 10 nodes in a chain. Two or three of them make large values, which later nodes read once or twice more;
    these values alone may leave RAM, and some of the nodes that make them may run again. In every second graph they are
    made one after another, must leave together for a node that needs much workspace, and come back together.
    """
    rng = random.Random(seed)
    count = rng.randint(6, 10)
    if seed % 2:
        large = list(range(rng.choice([2, 2, 3])))
        widest = rng.randint(len(large), count - 2)
        readers = [rng.sample(range(widest + 1, count), 1) for _ in large]
    else:
        large = sorted(rng.sample(range(count - 3), rng.choice([2, 2, 3])))
        widest = -1
        readers = [
            rng.sample(range(number + 2, count), min(count - number - 2, rng.choice([1, 1, 2]))) for number in large
        ]
    reads = [["x"], *([f"v{number}"] for number in range(count - 1))]
    for number, read_by in zip(large, readers, strict=True):
        for reader in read_by:
            reads[reader].append(f"v{number}")
        if rng.random() < (0.7 if widest > 0 else 0.3):
            reads[number + 1][0] = "x"
    tensors = {"x": Tensor("x", "FLOAT", (16,), 64, "x", Residency.RESIDENT)}
    nodes = []
    for number in range(count):
        name, size = f"v{number}", rng.choice(LARGE_BYTES if number in large else SMALL_BYTES)
        residency = Residency.OUTPUT if number == count - 1 else Residency.TRANSIENT
        tensors[name] = Tensor(name, "FLOAT", (size // 4,), size, name, residency)
        again = number in large and rng.random() < 0.5
        inputs = tuple(dict.fromkeys(reads[number]))
        nodes.append(Node(f"n{number}", "Op", "", inputs, (name,), {}, Phase.FORWARD, again))
    graph = TrainingGraph("slow", tuple(nodes), tensors, ("x",), (f"v{count - 1}",), f"slow-{seed}")
    return ScheduleProblem(graph, _costs(graph, large, widest, rng)), tuple(node.name for node in nodes)


def _costs(graph: TrainingGraph, large: list[int], widest: int, rng: random.Random) -> CostTable:
    # What leaves together is late by what the channel does for others: neither its own time nor all time says so.
    seconds = TRANSFER_SECONDS if widest < 0 else CROWDED_SECONDS
    out, back = (
        {f"v{number}": TransferCost(rng.choice(seconds), rng.choice([0.1, 0.4, 1.0])) for number in large}
        for _ in range(2)
    )
    prices = {}
    for number, node in enumerate(graph.nodes):
        workspace = rng.choice([16_000, 24_000]) if number == widest else rng.choice([0, 0, 0, 3000])
        prices[node.name] = NodeCost(
            1.0 if widest > 0 else rng.choice(NODE_SECONDS), rng.choice([0.5, 1.0, 2.0]), workspace
        )
    return CostTable("slow", prices, out, back, asynchronous=True)
