"""Counts exactly what every kernel allocates beside its outputs, by running each distinct node alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx import helper

from poet_onnx.costing.workspace import has_workspace_rule, workspace_bytes
from poet_onnx.graph import Node, Tensor, TrainingGraph
from poet_onnx.runtime import count_allocations, session_options

_CONSTANT_BYTES = 64 << 10
"""Initializers up to this size keep their values when a node runs alone: axes, shapes, ratios."""


def count_workspace(
    model: ir.Model, graph: TrainingGraph, nodes: Iterable[Node], *, threads: int = 1
) -> dict[str, CountedWorkspace]:
    """Return the workspace of nodes by name; 0 for views.

    Nodes of the same operator, attributes, types and shapes are run once. A node that cannot run alone, because its
    inputs' values matter and are not constant, gets the rule of `workspace_bytes`.

    Args:
        model: the normalized model.
        graph: extracted from it.
        nodes: of the graph.
        threads: threads inside an operator.
    """
    sources = {node.name: node for node in model.graph}
    constants = {
        name: value.const_value.numpy()
        for name, value in model.graph.initializers.items()
        if value.const_value is not None and value.const_value.nbytes <= _CONSTANT_BYTES
    }
    opsets = [helper.make_opsetid(domain, version or 1) for domain, version in model.opset_imports.items()]
    found: dict[bytes, CountedWorkspace] = {}
    result: dict[str, CountedWorkspace] = {}
    for node in nodes:
        if node.view:
            result[node.name] = CountedWorkspace(0)
            continue
        proto = ir.serde.serialize_node(sources[node.name])
        single = _Single(graph, node, proto, constants, opsets, model.ir_version or 8)
        key = single.key()
        if key not in found:
            found[key] = single.counted_or_known(threads)
        result[node.name] = found[key]
    return result


@dataclass(frozen=True, slots=True)
class CountedWorkspace:
    """The workspace of a node; estimated if it could not be counted and no rule gives it."""

    size_bytes: int
    estimated: bool = False


@dataclass(frozen=True)
class _Single:
    graph: TrainingGraph
    node: Node
    proto: onnx.NodeProto
    constants: dict[str, npt.NDArray[np.generic]]
    opsets: list[onnx.OperatorSetIdProto]
    ir_version: int

    def key(self) -> bytes:
        """Return what the workspace depends on."""
        digest = hashlib.sha256()
        nameless = onnx.NodeProto(op_type=self.proto.op_type, domain=self.proto.domain)
        nameless.attribute.extend(sorted(self.proto.attribute, key=lambda attribute: str(attribute.name)))
        digest.update(nameless.SerializeToString(deterministic=True))
        for name in (*self.node.inputs, "->", *self.node.outputs):
            tensor = self.graph.tensors.get(name)
            digest.update(repr((tensor.dtype, tensor.shape) if tensor else name).encode())
            digest.update(repr(self.node.inputs.index(name) if name in self.node.inputs else -1).encode())
            if name in self.constants and name in self.node.inputs:
                digest.update(self.constants[name].tobytes())
        return digest.digest()

    def counted_or_known(self, threads: int) -> CountedWorkspace:
        """Return what was counted, otherwise what a rule or an estimate says."""
        counted = self.count(threads)
        if counted is not None:
            return CountedWorkspace(counted)
        known_bytes = workspace_bytes(self.graph, self.node, threads=threads)
        return CountedWorkspace(known_bytes, estimated=not has_workspace_rule(self.node))

    def count(self, threads: int) -> int | None:
        """Run the node alone and return its workspace; None if it fails or makes outputs of other sizes."""
        import onnxruntime

        options = session_options(threads=threads)
        options.log_severity_level = 4
        feeds = {
            tensor.name: _some_values(tensor) for tensor in self._distinct_inputs() if tensor.name not in self.constants
        }
        try:
            session = onnxruntime.InferenceSession(
                self._model().SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
            session.run(None, feeds)
            with count_allocations() as counter:
                results = session.run(None, feeds)
                peak = counter.transient_peak_bytes
        except Exception:  # noqa: BLE001 -- whatever ONNX Runtime did not like, the rule remains
            return None
        made = sum(np.asarray(result).nbytes for result in results)
        expected = sum(self.graph.tensors[name].size_bytes for name in self.node.outputs if name)
        return peak - made if made == expected and peak >= made else None

    def _distinct_inputs(self) -> list[Tensor]:
        return [self.graph.tensors[name] for name in dict.fromkeys(self.node.inputs) if name]

    def _model(self) -> onnx.ModelProto:
        inputs = [_value_info(t) for t in self._distinct_inputs() if t.name not in self.constants]
        outputs = [_value_info(self.graph.tensors[name]) for name in self.node.outputs if name]
        initializers = [
            onnx.numpy_helper.from_array(self.constants[tensor.name], tensor.name)
            for tensor in self._distinct_inputs()
            if tensor.name in self.constants
        ]
        graph = helper.make_graph([self.proto], "single", inputs, outputs, initializers)
        return helper.make_model(graph, opset_imports=self.opsets, ir_version=self.ir_version)


def _value_info(tensor: Tensor) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(tensor.name, onnx.TensorProto.DataType.Value(tensor.dtype), tensor.shape)


def _some_values(tensor: Tensor) -> npt.NDArray[np.generic]:
    """Return ones where they are numbers with a fraction, zeros elsewhere: an index of 0 is in range everywhere."""
    kind = helper.tensor_dtype_to_np_dtype(onnx.TensorProto.DataType.Value(tensor.dtype))
    return np.zeros(tensor.shape, kind) if kind.kind in "iub" else np.ones(tensor.shape, kind)
