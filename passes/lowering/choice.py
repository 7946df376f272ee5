"""Which of an operator's expansions to take: the quickest on a device, or the one that needs the least memory.

Both are read off the expansion's own nodes: time from the cost model, bytes from a walk over what is alive.
"""

from __future__ import annotations

import onnx_ir as ir

from poet_onnx.costing.costs import CostTable, cost_table
from poet_onnx.costing.device import DeviceProfile
from poet_onnx.graph import TrainingGraph
from poet_onnx.graph.extract import extract
from poet_onnx.graph.shapes import Inferred, infer
from poet_onnx.passes.lowering.lower import LowerTraining, choices, is_training_only
from poet_onnx.passes.lowering.site import Site
from poet_onnx.passes.normalize import WriteShapes


def choose_expansions(model: ir.Model, device: DeviceProfile) -> tuple[str, str]:
    """Return two choices of a letter for each node that has several expansions, as `LowerTraining` takes them.

    The first takes the quickest expansions, among equal ones those of the least peak; the second those of the least
    peak, among equal ones the quickest.

    Args:
        model: normalized, not lowered yet.
        device: what the nodes' times are modelled on.
    """
    inferred = infer(model)
    known: dict[object, tuple[str, str]] = {}
    chosen = []
    for node in model.graph:
        if not is_training_only(node):
            continue
        site = Site(model.graph, node, inferred, kernels=True)
        names = choices(site)
        if not names:
            continue
        signature = (node.op_type, *map(site.shape, range(3)), repr(sorted(site.attributes.items())))
        if signature not in known:
            costs = {name[0]: _cost(_alone(node, inferred, model), name[0], device) for name in names}
            quickest = min(costs, key=lambda letter: costs[letter])
            known[signature] = quickest, min(costs, key=lambda letter: costs[letter][::-1])
        chosen.append(known[signature])
    quick, thrifty = ("".join(letters[which] for letters in chosen) for which in (0, 1))
    return quick, thrifty


def _alone(node: ir.Node, inferred: Inferred, model: ir.Model) -> ir.Model:
    """Return a step of the half of a convolution's gradient that has the choice, the weight's, and some loss."""
    inputs = []
    for index in range(3):
        source = node.inputs[index]
        assert source is not None
        found = inferred.types[source.name or ""]
        inputs.append(ir.Value(name=f"input_{index}", type=ir.TensorType(found.dtype), shape=ir.Shape(found.shape)))
    outputs = [ir.Value(name=""), ir.Value(name="gradient", type=inputs[2].type, shape=inputs[2].shape)]
    alone = ir.Node(node.domain, node.op_type, inputs, node.attributes.values(), outputs=outputs, name="alone")
    given, loss = (
        ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([])) for name in ("given", "loss")
    )
    nodes = [ir.Node("", "Neg", [given], outputs=[loss], name="forward"), alone]
    imports = dict(model.opset_imports)
    graph = ir.Graph([given, *inputs], [loss, outputs[1]], nodes=nodes, opset_imports=imports, name="alone")
    return ir.Model(graph, ir_version=model.ir_version)


def _cost(model: ir.Model, letter: str, device: DeviceProfile) -> tuple[float, int]:
    """Return the seconds and the transient peak of an expansion."""
    LowerTraining(expansions=letter)(model)
    WriteShapes()(model)
    graph = extract(model)
    costs = cost_table(graph, device)
    return sum(cost.seconds for cost in costs.nodes.values()), _peak_bytes(graph, costs)


def _peak_bytes(graph: TrainingGraph, costs: CostTable) -> int:
    last = {name: position for position, node in enumerate(graph.nodes) for name in graph.transient_reads(node)}
    alive: dict[str, int] = {}
    peak = 0
    for position, node in enumerate(graph.nodes):
        alive |= {name: graph.tensors[name].size_bytes for name in graph.transient_writes(node)}
        peak = max(peak, sum(alive.values()) + costs.nodes[node.name].workspace_bytes)
        alive = {name: size for name, size in alive.items() if last.get(name, len(graph.nodes)) > position}
    return peak
