"""A node of a graph on its own, with inputs of its sizes: what it does can be counted and measured alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx import helper

from poet_onnx.graph import Node, Tensor, TrainingGraph
from poet_onnx.runtime import count_allocations, session_options
from poet_onnx.runtime.installed import import_onnxruntime

_CONSTANT_BYTES = 64 << 10
"""Initializers up to this size keep their values when a node runs alone: axes, shapes, ratios."""


@dataclass(frozen=True)
class SingleNode:
    """A node that can be run alone.

    Attributes:
        graph: that it is of.
        node: there.
        proto: the same in ONNX's words.
        constants: small initializers of the graph, by name.
        opsets, ir_version: of the model.
    """

    graph: TrainingGraph
    node: Node
    proto: onnx.NodeProto
    constants: Mapping[str, npt.NDArray[np.generic]]
    opsets: list[onnx.OperatorSetIdProto]
    ir_version: int

    def key(self) -> bytes:
        """Return what tells nodes apart: operator, attributes, types, shapes, constants, and which inputs are one."""
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

    def feeds(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return values for its inputs that are no constants."""
        return {tensor.name: _some_values(tensor) for tensor in self._inputs() if tensor.name not in self.constants}

    def session(self, threads: int) -> Any:
        """Return a session of it; what ONNX Runtime does not like is raised as it comes."""
        onnxruntime = import_onnxruntime()
        options = session_options(threads=threads)
        options.log_severity_level = 4
        return onnxruntime.InferenceSession(
            self._model().SerializeToString(), options, providers=["CPUExecutionProvider"]
        )

    def count(self, session: Any, feeds: Mapping[str, npt.NDArray[np.generic]]) -> int | None:
        """Run it twice, and return the bytes of its workspace; None where it makes outputs of other sizes.

        What ONNX Runtime does not like is raised as it comes.
        """
        session.run(None, feeds)
        with count_allocations() as counter:
            results = session.run(None, feeds)
            peak_bytes = counter.transient_peak_bytes
        made_bytes = sum(np.asarray(result).nbytes for result in results)
        return peak_bytes - made_bytes if made_bytes == self.output_bytes and peak_bytes >= made_bytes else None

    @property
    def output_bytes(self) -> int:
        """Return what its outputs take."""
        return sum(self.graph.tensors[name].size_bytes for name in self.node.outputs if name)

    def _inputs(self) -> list[Tensor]:
        return [self.graph.tensors[name] for name in dict.fromkeys(self.node.inputs) if name]

    def _model(self) -> onnx.ModelProto:
        inputs = [_value_info(t) for t in self._inputs() if t.name not in self.constants]
        outputs = [_value_info(self.graph.tensors[name]) for name in self.node.outputs if name]
        initializers = [
            onnx.numpy_helper.from_array(self.constants[tensor.name], tensor.name)
            for tensor in self._inputs()
            if tensor.name in self.constants
        ]
        graph = helper.make_graph([self.proto], "single", inputs, outputs, initializers)
        return helper.make_model(graph, opset_imports=self.opsets, ir_version=self.ir_version)


def single_nodes(model: ir.Model, graph: TrainingGraph, nodes: Iterable[Node]) -> Iterator[SingleNode]:
    """Yield nodes of a normalized model that can be run alone, one by one; views do not run."""
    sources = {node.name: node for node in model.graph}
    constants = {
        name: value.const_value.numpy()
        for name, value in model.graph.initializers.items()
        if value.const_value is not None and value.const_value.nbytes <= _CONSTANT_BYTES
    }
    opsets = [helper.make_opsetid(domain, version or 1) for domain, version in model.opset_imports.items()]
    for node in nodes:
        if not node.view:
            proto = ir.serde.serialize_node(sources[node.name])
            yield SingleNode(graph, node, proto, constants, opsets, model.ir_version or 8)


def _value_info(tensor: Tensor) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(tensor.name, onnx.TensorProto.DataType.Value(tensor.dtype), tensor.shape)


def _some_values(tensor: Tensor) -> npt.NDArray[np.generic]:
    """Return ones where they are numbers with a fraction, zeros elsewhere: an index of 0 is in range everywhere."""
    kind = helper.tensor_dtype_to_np_dtype(onnx.TensorProto.DataType.Value(tensor.dtype))
    return np.zeros(tensor.shape, kind) if kind.kind in "iub" else np.ones(tensor.shape, kind)
