"""What a case of a lowered operator is: a small graph, what it is fed, and what it should give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx import helper

MICROSOFT = "com.microsoft"
Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Case:
    """A graph around one operator.

    Attributes:
        name: unique.
        nodes: of the graph.
        feeds: graph inputs.
        outputs: graph outputs and their shapes, empty where ONNX Runtime can tell; the shape goes into the model.
        constants: initializers.
        opset: of ONNX's operators.
        oracle: computes the outputs, where ONNX Runtime 1.19.2 has no kernel or one that is wrong or crashes.
    """

    name: str
    nodes: tuple[onnx.NodeProto, ...]
    feeds: dict[str, Array]
    outputs: dict[str, tuple[int, ...] | None]
    constants: dict[str, Array] = field(default_factory=dict)
    opset: int = 15
    oracle: Callable[[], dict[str, Array]] | None = None

    def model(self) -> ir.Model:
        """Return the model."""
        infos = [_info(name, array.dtype, array.shape) for name, array in self.feeds.items()]
        ends = [
            helper.make_empty_tensor_value_info(name) if shape is None else _info(name, np.dtype(np.float32), shape)
            for name, shape in self.outputs.items()
        ]
        constants = [onnx.numpy_helper.from_array(array, name) for name, array in self.constants.items()]
        graph = helper.make_graph(self.nodes, "case", infos, ends, constants)
        imports = [helper.make_opsetid("", self.opset), helper.make_opsetid(MICROSOFT, 1)]
        return ir.from_proto(helper.make_model(graph, opset_imports=imports, ir_version=9))


def _info(name: str, dtype: np.dtype[Any], shape: Sequence[int]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), shape)


def node(op_type: str, inputs: str, outputs: str, *, domain: str = MICROSOFT, **attributes: Any) -> onnx.NodeProto:
    """Return a node; names are words, "-" is an absent one."""
    names = [["" if word == "-" else word for word in text.split()] for text in (inputs, outputs)]
    return helper.make_node(op_type, *names, f"{op_type}_node", domain=domain, **attributes)


class Random:
    """Random arrays, each case from a generator of its own."""

    def __init__(self, seed: int) -> None:
        self.generator = np.random.default_rng(seed)

    def floats(self, *shape: int, scale: float = 1.0) -> Array:
        """Return normally distributed floats."""
        return (self.generator.standard_normal(shape) * scale).astype(np.float32)

    def ints(self, high: int, *shape: int) -> Array:
        """Return whole numbers below a limit."""
        return self.generator.integers(0, high, shape)
