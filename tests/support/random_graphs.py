"""Random graphs of the shape that training has: a forward pass, a loss, and a backward pass that reads both.

`random_graph` makes chains with a few skips. `random_dag` makes branches, skips across the whole net, concatenations
and wide fan-out, with all that a training graph may have besides: nodes with several outputs, buffers taken over in
place, state updated on the way, recomputable backward nodes, views and graph outputs in the middle.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from poet_onnx.costing.costs import CostTable, NodeCost, TransferCost
from poet_onnx.graph import Node, Phase, Residency, Tensor, TrainingGraph


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


def random_attention(seed: int, blocks: int) -> tuple[TrainingGraph, CostTable]:
    """Return a graph of `blocks` blocks as attention has them, nine nodes each, and costs for it.

    A node makes two or three values at a time, whose readers, forward and backward, lie apart: some are worth fetching
    where another is worth making again.
    """
    dag = _Dag(random.Random(seed), "chain", plain=True)
    for block in range(blocks):
        dag.attention(block)
    dag.loss()
    for block in reversed(range(blocks)):
        dag.attention_backward(block)
    graph = TrainingGraph("attention", tuple(dag.nodes), dag.tensors, ("x",), ("loss",), f"attention-{seed}-{blocks}")
    return graph, _dag_costs(graph, dag.rng)


SHAPES = ("branches", "unet", "dense", "fan", "chain")


def random_dag(seed: int, nodes: int, *, plain: bool = False) -> tuple[TrainingGraph, CostTable]:
    """Return a graph of at most `nodes` nodes (at least 4) in a shape that the seed chooses, and costs for it.

    Args:
        seed: of everything.
        nodes: most of them, views aside; half or more of the graph is its backward pass.
        plain: without buffers taken over in place, updates, views and scratch, which exhaustive search does not know.
    """
    dag = _Dag(random.Random(seed), SHAPES[seed % len(SHAPES)], plain)
    dag.forward(max(1, (nodes - 2) * 2 // 5))
    dag.loss()
    dag.backward(nodes)
    inputs = tuple(name for name, tensor in dag.tensors.items() if tensor.resident and tensor.buffer_owner == name)
    outputs = tuple(name for name, tensor in dag.tensors.items() if tensor.is_output)
    graph = TrainingGraph("dag", tuple(dag.nodes), dag.tensors, inputs, outputs, f"dag-{seed}-{nodes}-{plain}")
    return graph, _dag_costs(graph, dag.rng)


def enlarged(graph: TrainingGraph, costs: CostTable, factor: int = 1000) -> tuple[TrainingGraph, CostTable]:
    """Return a graph and its costs with tensors and workspace that much larger, so that tokens decide nothing."""
    tensors = {name: replace(t, size_bytes=t.size_bytes * factor) for name, t in graph.tensors.items()}
    nodes = {name: replace(cost, workspace_bytes=cost.workspace_bytes * factor) for name, cost in costs.nodes.items()}
    return replace(graph, tensors=tensors), replace(costs, nodes=nodes)


@dataclass
class _Dag:
    """A graph as it grows.

    Attributes:
        saved: of each forward node, what its backward node may read: inputs and outputs.
        gradients: of each forward value, the gradients that add up to its own.
        readers: of each weight, the nodes that read it.
    """

    rng: random.Random
    shape: str
    plain: bool
    tensors: dict[str, Tensor] = field(default_factory=lambda: {"x": _tensor("x", 64, resident=True)})
    nodes: list[Node] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    gradients: dict[str, list[str]] = field(default_factory=dict)
    readers: dict[str, list[str]] = field(default_factory=dict)

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def add(self, name: str, reads: Sequence[str], writes: Sequence[str], phase: Phase, **flags: Any) -> None:
        node = _node(name, list(dict.fromkeys(reads)), list(writes), phase, recomputable=False)
        self.nodes.append(replace(node, **flags))
        for read in node.inputs:
            self.readers.setdefault(read, []).append(name)

    def value(self, name: str, size_bytes: int, *, output: bool = False) -> str:
        self.tensors[name] = _tensor(name, size_bytes, output=output)
        return name

    def resident(self, name: str, buffer_owner: str | None = None) -> str:
        self.tensors[name] = Tensor(name, "FLOAT", (8,), 32, buffer_owner or name, Residency.RESIDENT)
        return name

    def forward(self, layers: int) -> None:
        for layer in range(layers):
            reads = self._forward_reads(layer, layers)
            weight = [self.resident(f"w{layer}")] if self.chance(0.4) else []
            inplace: tuple[tuple[int, int], ...] = ()
            size = self.rng.choice([100, 200, 400, 800])
            if not self.plain and self.chance(0.3) and reads[0] in self.values:
                size, inplace = self.tensors[reads[0]].size_bytes, ((0, 0),)
            writes = [self.value(f"v{layer}", size, output=layer > 0 and self.chance(0.05))]
            self.values.append(writes[0])
            if self.chance(0.25):
                writes.append(self.value(f"s{layer}", self.rng.choice([20, 100, 300])))
                if self.chance(0.4):
                    self.values.append(writes[1])
            updates: tuple[str, ...] = ()
            if not self.plain and self.chance(0.15):
                updates = (self.resident(f"r{layer}"),)
            again = self.chance(0.85)
            read = [*reads, *weight, *updates]
            self.add(f"f{layer}", read, writes, Phase.FORWARD, recomputable=again, inplace=inplace, updates=updates)
            if not self.plain and self.chance(0.1):
                view = f"view{layer}"
                self.tensors[view] = Tensor(view, "FLOAT", (size // 4,), size, writes[0])
                self.add(f"reshape{layer}", [writes[0]], [view], Phase.FORWARD, view=True, recomputable=True)

    def _forward_reads(self, layer: int, layers: int) -> list[str]:
        """Return what a forward node reads, first what it is made of."""
        values = self.values
        if not values:
            return ["x"]
        reads = [values[-1]]
        if self.shape == "branches" and self.chance(0.6):
            reads = self.rng.sample(values[-4:], min(len(values[-4:]), self.rng.choice([1, 2, 2])))
        elif self.shape == "unet" and layer * 2 > layers:
            reads.append(values[min(len(values) - 1, layers - 1 - layer)])
        elif self.shape == "dense":
            reads += [value for value in values[-5:-1] if self.chance(0.8)]
        elif self.shape == "fan":
            reads = [values[0] if self.chance(0.6) else values[-1]]
        elif self.chance(0.2):
            reads.append(self.rng.choice(values))
        return list(dict.fromkeys(reads))

    def attention(self, block: int) -> None:
        """Add a block's forward nodes: a wide value, its parts, the product of two, that with the last, the sum."""
        size, source = self.rng.choice([100, 200, 400]), self.values[-1] if self.values else "x"
        wide = self.value(f"wide{block}", 3 * size)
        parts = [self.value(f"part{block}_{part}", size) for part in range(self.rng.choice([2, 3, 3]))]
        scores = self.value(f"scores{block}", self.rng.choice([100, 200, 400]))
        mixed, joined = self.value(f"mixed{block}", size), self.value(f"joined{block}", size)
        again = [self.chance(0.9) for _ in range(5)]
        self.add(f"widen{block}", [source], [wide], Phase.FORWARD, recomputable=again[0])
        self.add(f"split{block}", [wide], parts, Phase.FORWARD, recomputable=again[1])
        self.add(f"score{block}", parts[:2], [scores], Phase.FORWARD, recomputable=again[2])
        self.add(f"mix{block}", [scores, parts[-1]], [mixed], Phase.FORWARD, recomputable=again[3])
        self.add(f"join{block}", [mixed, source], [joined], Phase.FORWARD, recomputable=again[4])
        self.values.append(joined)

    def attention_backward(self, block: int) -> None:
        """Add a block's backward nodes: of the sum's weight, then each reads other parts."""
        parts = [name for name in self.tensors if name.startswith(f"part{block}_")]
        last = block + 1 == len(self.values)
        gradient = f"g_{self.values[block]}" if last else f"dx{block + 1}"
        size = self.tensors[parts[0]].size_bytes
        weight, mixed, tail, scores, whole, source = (
            self.value(f"d{name}{block}", size) for name in ("w", "mixed", "tail", "scores", "parts", "x")
        )
        for number, (reads, made) in enumerate(
            [
                ([gradient, f"mixed{block}"], weight),
                ([gradient, parts[-1]], mixed),
                ([gradient, f"scores{block}"], tail),
                ([mixed, f"scores{block}"], scores),
                ([scores, *parts[:2]], whole),
                ([whole, tail, gradient], source),
            ]
        ):
            self.add(f"back{block}_{number}", reads, [made], Phase.BACKWARD, recomputable=self.chance(0.3))

    def loss(self) -> None:
        """Add the loss of all that no other node reads, and its gradients."""
        ends = [value for value in self.values if value not in self.readers] or self.values[-1:]
        self.add("loss_node", ends, [self.value("loss", 4, output=True)], Phase.FORWARD)
        made = []
        for value in ends:
            made.append(self.value(f"g_{value}", self.tensors[value].size_bytes))
            self.gradients[value] = [made[-1]]
        self.add("loss_grad", ["loss"], made, Phase.BACKWARD)

    def backward(self, most: int) -> None:
        forward = [node for node in self.nodes if node.phase is Phase.FORWARD and node.name.startswith("f")]
        spare = most - 2 - 2 * len(forward)
        for node in reversed(forward):
            gradients = [name for value in node.outputs for name in self.gradients.get(value, ())]
            if not gradients:
                continue
            layer = node.name[1:]
            saved = [name for name in (*node.inputs, *node.outputs) if self.chance(0.6) and name not in node.updates]
            saved = [f"view{layer}" if f"view{layer}" in self.tensors and s == f"v{layer}" else s for s in saved]
            sources = [name for name in node.inputs if not self.tensors[name].resident]
            self._gradients_of(layer, gradients, saved, sources)
            if f"w{layer}" in node.inputs and spare > 0:
                spare -= 1 + self._weight(layer, gradients, list(node.inputs[:1]), update=spare > 1)

    def _gradients_of(self, layer: str, gradients: list[str], saved: list[str], sources: list[str]) -> None:
        """Add the backward node of a layer; its inputs may share one gradient, as those of a sum do."""
        shared = self.chance(0.3)
        made = []
        for index, source in enumerate(sources or ["x"]):
            if index == 0 or not shared:
                made.append(f"d{layer}_{index}")
                self.value(made[-1], self.tensors[source].size_bytes if self.chance(0.7) else 200)
            self.gradients.setdefault(source, []).append(made[-1])
        inplace: tuple[tuple[int, int], ...] = ()
        if not self.plain and self.tensors[gradients[0]].size_bytes == self.tensors[made[0]].size_bytes:
            inplace = ((0, 0),)
        reads = [*gradients, *saved]
        self.add(f"b{layer}", reads, made, Phase.BACKWARD, recomputable=self.chance(0.35), inplace=inplace)

    def _weight(self, layer: str, gradients: list[str], saved: list[str], *, update: bool) -> int:
        """Add a weight's gradient, a graph output or followed by its update; return 1 if it is."""
        update = update and not self.plain and self.chance(0.5)
        made = self.value(f"dw{layer}", self.rng.choice([32, 200]), output=not update)
        again = update and self.chance(0.2)
        self.add(f"wgrad{layer}", [*gradients, *saved], [made], Phase.BACKWARD, recomputable=again)
        if update:
            weight = f"w{layer}"
            new, after = self.resident(f"new{layer}", weight), tuple(self.readers[weight])
            self.add(f"update{layer}", [made, weight], [new], Phase.UPDATE, updates=(weight,), after=after)
        return int(update)


def _dag_costs(graph: TrainingGraph, rng: random.Random) -> CostTable:
    """Return costs in which energy and time do not keep step, and storage between very slow and very fast."""
    nodes = {
        node.name: NodeCost(0.0, 0.0, 0)
        if node.view
        else NodeCost(rng.choice([0.5, 1.0, 2.0, 5.0]), rng.choice([1.0, 3.0, 4.0, 10.0]), rng.choice([0, 0, 50, 300]))
        for node in graph.nodes
    }
    values = [value for node in graph.nodes for value in graph.transient_writes(node)]
    latency, rate, watts = rng.choice([0.0, 0.1, 0.5]), rng.choice([50.0, 200.0, 1000.0]), rng.choice([0.2, 1.0, 3.0])
    seconds = {value: latency + graph.tensors[value].size_bytes / rate for value in values}
    return CostTable(
        device="random",
        nodes=nodes,
        page_out={value: TransferCost(2 * taken, 2 * watts * taken) for value, taken in seconds.items()},
        page_in={value: TransferCost(taken, watts * taken) for value, taken in seconds.items()},
        asynchronous=rng.random() < 0.6,
        idle_watts=rng.choice([0.0, 0.0, 0.7]),
    )


def _tensor(name: str, size_bytes: int, *, resident: bool = False, output: bool = False) -> Tensor:
    residency = Residency.RESIDENT if resident else Residency.OUTPUT if output else Residency.TRANSIENT
    return Tensor(name, "FLOAT", (size_bytes // 4,), size_bytes, name, residency)


def _node(name: str, reads: list[str], writes: list[str], phase: Phase, *, recomputable: bool) -> Node:
    return Node(name, "Op", "", tuple(reads), tuple(writes), {}, phase, recomputable)


def _costs(graph: TrainingGraph, rng: random.Random) -> CostTable:
    nodes = {
        node.name: NodeCost(seconds, seconds * 2.0, rng.choice([0, 0, 50, 300]))
        for node in graph.nodes
        for seconds in [rng.choice([1.0, 2.0, 5.0])]
    }
    values = [value for node in graph.nodes for value in graph.transient_writes(node)]
    moves = {value: graph.tensors[value].size_bytes / 100 for value in values}
    rate = rng.choice([0.2, 1.0, 3.0])
    return CostTable(
        device="random",
        nodes=nodes,
        page_out={value: TransferCost(seconds * 2, rate * seconds * 2) for value, seconds in moves.items()},
        page_in={value: TransferCost(seconds, rate * seconds) for value, seconds in moves.items()},
        asynchronous=rng.random() < 0.5,
    )
