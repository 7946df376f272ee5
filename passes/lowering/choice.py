"""Which of an operator's expansions to take: the quickest on a device, or the one that needs the least memory.

Both are read off the expansion's own nodes: time from the cost model, bytes from a walk over what is alive. For that
all expansions of all kinds of nodes stand side by side in one graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from poet_onnx.costing.costs import CostTable, cost_table
from poet_onnx.costing.device import DeviceProfile
from poet_onnx.graph import Node, TrainingGraph
from poet_onnx.graph.extract import extract
from poet_onnx.graph.shapes import Inferred, infer
from poet_onnx.passes.lowering.builder import LoweringBuilder
from poet_onnx.passes.lowering.lower import LowerTraining, choices, is_training_only


def choose_expansions(model: ir.Model, device: DeviceProfile) -> tuple[str, str]:
    """Return two choices of a letter for each node that has several expansions, as `LowerTraining` takes them.

    The first takes the quickest expansions, among equal ones those of the least peak; the second those of the least
    peak, among equal ones the quickest.

    Args:
        model: normalized, not lowered yet.
        device: what the nodes' times are modelled on.
    """
    return expansions_on(model, [device])[0]


def expansions_on(model: ir.Model, devices: Sequence[DeviceProfile]) -> list[tuple[str, str]]:
    """Return what `choose_expansions` does for each of some devices."""
    inferred = infer(model)
    alike: dict[object, tuple[ir.Node, list[str]]] = {}
    kinds = []
    for node in model.graph:
        if not is_training_only(node):
            continue
        builder = LoweringBuilder(model.graph, node, inferred, kernels=True)
        letters = [name[0] for name in choices(builder)]
        if letters:
            kind = (node.op_type, *map(builder.shape, range(3)), repr(sorted(builder.attributes.items())))
            alike.setdefault(kind, (node, letters))
            kinds.append(kind)
    if not alike:
        return [("", "")] * len(devices)
    candidates = [(kind, node, letter) for kind, (node, letters) in alike.items() for letter in letters]
    together = _side_by_side(model, inferred, [node for _, node, _ in candidates])
    LowerTraining(expansions="".join(letter for *_, letter in candidates))(together)
    graph = extract(together)
    return [_chosen(kinds, candidates, _costs(graph, len(candidates), device)) for device in devices]


def _chosen(
    kinds: Sequence[object], candidates: Sequence[tuple[object, ir.Node, str]], costs: Iterator[tuple[float, int]]
) -> tuple[str, str]:
    """Return the quickest and the thriftiest letter of each kind of node."""
    found: dict[object, dict[str, tuple[float, int]]] = {kind: {} for kind in kinds}
    for (own, _, letter), cost in zip(candidates, costs, strict=True):
        found[own][letter] = cost
    quick = "".join(min(found[kind], key=lambda letter: found[kind][letter]) for kind in kinds)
    thrifty = "".join(min(found[kind], key=lambda letter: found[kind][letter][::-1]) for kind in kinds)
    return quick, thrifty


def _side_by_side(model: ir.Model, inferred: Inferred, nodes: Sequence[ir.Node]) -> ir.Model:
    """Return a step of some convolutions' gradients, numbered, and a loss.

    Each is the half that has the choice, the weight's, with inputs of its own.
    """
    loss = ir.Value(name="loss", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([]))
    given = ir.Value(name="given", type=loss.type, shape=loss.shape)
    inputs, outputs, copies = [given], [loss], [ir.Node("", "Neg", [given], outputs=[loss], name="forward")]
    for number, node in enumerate(nodes):
        types = [inferred.types[(value and value.name) or ""] for value in node.inputs[:3]]
        own = [
            ir.Value(name=f"{number}/input_{index}", type=ir.TensorType(found.dtype), shape=ir.Shape(found.shape))
            for index, found in enumerate(types)
        ]
        gradient = ir.Value(name=f"{number}/gradient", type=own[2].type, shape=own[2].shape)
        halves = [ir.Value(name=""), gradient]
        copies.append(
            ir.Node(node.domain, node.op_type, own, node.attributes.values(), outputs=halves, name=str(number))
        )
        inputs += own
        outputs.append(gradient)
    graph = ir.Graph(inputs, outputs, nodes=copies, opset_imports=dict(model.opset_imports), name="side by side")
    return ir.Model(graph, ir_version=model.ir_version)


def _costs(graph: TrainingGraph, count: int, device: DeviceProfile) -> Iterator[tuple[float, int]]:
    """Yield the seconds and the transient peak of each node's expansion, as if it ran alone."""
    costs = cost_table(graph, device)
    parts: dict[str, list[Node]] = {}
    for node in graph.nodes:
        parts.setdefault(node.name.partition("/")[0], []).append(node)
    for number in range(count):
        nodes = parts[str(number)]
        yield sum(costs.nodes[node.name].seconds for node in nodes), _peak_bytes(graph, nodes, costs)


def _peak_bytes(graph: TrainingGraph, nodes: Sequence[Node], costs: CostTable) -> int:
    """Return the most transient bytes that are alive at once; graph outputs are alive to the end."""
    last = {name: position for position, node in enumerate(nodes) for name in graph.transient_reads(node)}
    alive: dict[str, int] = {}
    peak = 0
    for position, node in enumerate(nodes):
        alive |= {name: graph.tensors[name].size_bytes for name in graph.transient_writes(node)}
        peak = max(peak, sum(alive.values()) + costs.nodes[node.name].workspace_bytes)
        alive = {name: size for name, size in alive.items() if last.get(name, len(nodes)) > position}
    return peak
