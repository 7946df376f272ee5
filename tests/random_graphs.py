"""Random graphs of the shape that training has: a forward pass, a loss, and a backward pass that reads both."""

from __future__ import annotations

import random

from poet_onnx.costs import CostTable, NodeCost, TransferCost
from poet_onnx.graph import Node, Phase, Tensor, TrainingGraph


def random_graph(seed: int, layers: int) -> tuple[TrainingGraph, CostTable]:
    """Return a graph with `layers` forward nodes and as many backward ones, and costs for it."""
    rng = random.Random(seed)
    tensors: dict[str, Tensor] = {"x": _tensor("x", 64, resident=True)}
    nodes: list[Node] = []
    forward = ["x"]
    for layer in range(layers):
        reads = [forward[-1]]
        if len(forward) > 2 and rng.random() < 0.3:
            reads.append(rng.choice(forward[1:-1]))
        name = f"v{layer}"
        tensors[name] = _tensor(name, rng.choice([100, 200, 400, 800]))
        nodes.append(_node(f"f{layer}", reads, [name], Phase.FORWARD, recomputable=rng.random() < 0.85))
        forward.append(name)
    tensors["loss"] = _tensor("loss", 4, output=True)
    nodes.append(_node("loss_node", [forward[-1]], ["loss"], Phase.FORWARD, recomputable=False))
    tensors["g"] = _tensor("g", tensors[forward[-1]].size_bytes)
    nodes.append(_node("loss_grad", ["loss"], ["g"], Phase.BACKWARD, recomputable=False))
    gradient = "g"
    for layer in range(layers - 1, -1, -1):
        reads = [gradient]
        reads += [name for name in dict.fromkeys(nodes[layer].inputs) if name != "x" and rng.random() < 0.7]
        if rng.random() < 0.4:
            reads.append(f"v{layer}")
        made = f"g{layer}"
        tensors[made] = _tensor(made, rng.choice([100, 200, 400]))
        nodes.append(_node(f"b{layer}", list(dict.fromkeys(reads)), [made], Phase.BACKWARD, recomputable=False))
        gradient = made
    graph = TrainingGraph("random", tuple(nodes), tensors, ("x",), ("loss",), f"random-{seed}-{layers}")
    return graph, _costs(graph, rng)


def _tensor(name: str, size_bytes: int, *, resident: bool = False, output: bool = False) -> Tensor:
    return Tensor(name, "FLOAT", (size_bytes // 4,), size_bytes, name, resident, output)


def _node(name: str, reads: list[str], writes: list[str], phase: Phase, *, recomputable: bool) -> Node:
    return Node(name, "Op", "", tuple(reads), tuple(writes), {}, phase, recomputable)


def _costs(graph: TrainingGraph, rng: random.Random) -> CostTable:
    nodes = {
        node.name: NodeCost(seconds, seconds * 2.0, rng.choice([0, 0, 50, 300]))
        for node in graph.nodes
        for seconds in [rng.choice([1.0, 2.0, 5.0])]
    }
    values = [value for node in graph.nodes for value in graph.writes(node)]
    moves = {value: graph.tensors[value].size_bytes / 100 for value in values}
    rate = rng.choice([0.2, 1.0, 3.0])
    return CostTable(
        device="random",
        nodes=nodes,
        page_out={value: TransferCost(seconds * 2, rate * seconds * 2) for value, seconds in moves.items()},
        page_in={value: TransferCost(seconds, rate * seconds) for value, seconds in moves.items()},
        asynchronous=rng.random() < 0.5,
    )
