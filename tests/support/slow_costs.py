"""Measured costs that are known beforehand: what the model says, so many times."""

from __future__ import annotations

from poet_onnx.costing.measured import MeasuredCosts, NodeMeasurement
from poet_onnx.rewriting.rewrite import RewriteResult


def costs_in_proportion(result: RewriteResult, device: str, times: float, *, target: str = "training") -> MeasuredCosts:
    """Return measured costs of a rewrite's graph on a device: the modelled ones, so many times as slow."""
    tensors = result.graph.tensors
    nodes = {
        node.name: NodeMeasurement(
            seconds=times * result.costs.nodes[node.name].seconds,
            workspace_bytes=result.costs.nodes[node.name].workspace_bytes,
            output_bytes=sum(tensors[name].size_bytes for name in node.outputs if name),
        )
        for node in result.graph.nodes
    }
    return MeasuredCosts(
        fingerprint=result.graph.fingerprint,
        device=device,
        target=target,
        machine="another pace than the model's",
        runtime="onnxruntime-training 1.19.2",
        threads=1,
        repetitions=1,
        step_seconds=sum(node.seconds for node in nodes.values()),
        node_overhead_seconds=0.0,
        nodes=nodes,
    )
