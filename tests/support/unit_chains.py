"""Chains of unit cost as the papers on recompute have them: every node takes a second, every value a thousand bytes."""

from __future__ import annotations

from poet_onnx.costing.costs import CostTable, NodeCost, TransferCost
from poet_onnx.graph import Node, Phase, Residency, Tensor, TrainingGraph
from poet_onnx.plan.problem import ScheduleProblem

UNIT_BYTES = 1000
"""Size of every value."""


def unit_chain(layers: int, *, taped: bool = False, transfer_seconds: float = 1.0) -> ScheduleProblem:
    """Return a chain of layers, its loss and its backward pass.

    Args:
        layers: of the chain.
        taped: a layer is a node that makes a tape, which its backward node reads, and one that makes the next state of
            it, as in algorithmic differentiation; the second takes no time. Otherwise a layer is one node, and its
            backward node reads what it reads and makes.
        transfer_seconds: of a value, to storage or back.
    """
    tensors = {"x": Tensor("x", "FLOAT", (250,), UNIT_BYTES, "x", Residency.RESIDENT)}
    nodes: list[Node] = []

    def add(name: str, reads: list[str], made: str, phase: Phase, *, again: bool) -> None:
        residency = Residency.OUTPUT if made == "loss" else Residency.TRANSIENT
        size = 0 if made == "loss" else UNIT_BYTES
        tensors[made] = Tensor(made, "FLOAT", (size // 4,), size, made, residency)
        nodes.append(Node(name, "Op", "", tuple(reads), (made,), {}, phase, again))

    state = "x"
    for layer in range(layers):
        if taped:
            add(f"f{layer}", [state], f"t{layer}", Phase.FORWARD, again=True)
        add(f"a{layer}", [f"t{layer}" if taped else state], f"v{layer}", Phase.FORWARD, again=True)
        state = f"v{layer}"
    add("loss_node", [state], "loss", Phase.FORWARD, again=False)
    add("loss_grad", ["loss"], f"g{layers}", Phase.BACKWARD, again=False)
    for layer in reversed(range(layers)):
        kept = [f"t{layer}"] if taped else [f"v{layer - 1}" if layer else "x", f"v{layer}"]
        add(f"b{layer}", [f"g{layer + 1}", *kept], f"g{layer}", Phase.BACKWARD, again=False)
    graph = TrainingGraph("chain", tuple(nodes), tensors, ("x",), ("loss",), f"chain-{layers}-{taped}")
    free = {"loss_node", "loss_grad", *(node.name for node in nodes if taped and node.name.startswith("a"))}
    seconds = {node.name: 0.0 if node.name in free else 1.0 for node in nodes}
    transfer = TransferCost(transfer_seconds, transfer_seconds)
    moves = {name: transfer for name in tensors if name != "x"}
    costs = {name: NodeCost(time, time, 0) for name, time in seconds.items()}
    return ScheduleProblem(graph, CostTable("unit", costs, moves, moves, asynchronous=True))
