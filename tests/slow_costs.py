"""Measured costs that are known beforehand: what the model says, so many times."""

from __future__ import annotations

from poet_onnx.measured import MeasuredCosts, NodeMeasurement
from poet_onnx.rewrite import RewriteResult


def costs_in_proportion(result: RewriteResult, device: str, times: float) -> MeasuredCosts:
    """Return measured costs of a rewrite's graph on a device: the modelled ones, so many times as slow."""
    return MeasuredCosts(
        fingerprint=result.graph.fingerprint,
        device=device,
        machine="another pace than the model's",
        runtime="onnxruntime-training 1.19.2",
        threads=1,
        repetitions=1,
        step_seconds=1.0,
        node_overhead_seconds=0.0,
        nodes={
            name: NodeMeasurement(seconds=times * cost.seconds, workspace_bytes=cost.workspace_bytes, output_bytes=0)
            for name, cost in result.costs.nodes.items()
        },
    )
