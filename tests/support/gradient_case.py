"""One operator's gradient beside torch's: gradient_cases/*.py list what tests/gradients/test_operators.py runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import torch
from lowering_runs import run_step

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.gradients.differentiate import differentiate

Array = npt.NDArray[Any]

DOUBLE_ERROR, SINGLE_ERROR = 1e-9, 1e-6
"""Largest relative L2 error of a gradient."""


@dataclass(frozen=True)
class Case:
    """What is differentiated.

    Attributes:
        name: of the case.
        nodes: ONNX's text of one node a line, from the inputs to `y`, such as "y = Relu(x)".
        inputs: shapes of the random real inputs by name, or their values; each gets a gradient.
        torch: computes `y` of the inputs and then the constants, in their orders.
        constants: values that have no gradient.
        single: why the numbers are of single precision; "" where the runtime's kernels take double ones.
        opset: of ONNX.
        low, high: between which random inputs lie.
        error: largest relative error, where it is not the usual one.
    """

    name: str
    nodes: str
    inputs: Mapping[str, Sequence[int] | Array]
    torch: Callable[..., torch.Tensor]
    constants: Mapping[str, Array] = field(default_factory=dict)
    single: str = ""
    opset: int = 17
    low: float = -2.0
    high: float = 2.0
    error: float | None = None

    @property
    def dtype(self) -> type[np.floating[Any]]:
        """Return the type of the real numbers."""
        return np.float32 if self.single else np.float64

    def arrays(self) -> dict[str, Array]:
        """Return the inputs."""
        generator = np.random.default_rng(0)
        return {
            name: (
                given if isinstance(given, np.ndarray) else generator.uniform(self.low, self.high, tuple(given))
            ).astype(self.dtype)
            for name, given in self.inputs.items()
        }


def gradients(case: Case) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return the gradients of a case's inputs by name: torch's in double precision, and those of our training graph.

    The loss is a sum of the result with random weights.
    """
    arrays = case.arrays()
    leaves = [torch.tensor(array.astype(np.float64), requires_grad=True) for array in arrays.values()]
    fixed = [torch.tensor(np.asarray(_double(constant))) for constant in case.constants.values()]
    result = case.torch(*leaves, *fixed)
    weights = np.random.default_rng(1).standard_normal(tuple(result.shape)).astype(case.dtype)
    (result * torch.tensor(weights.astype(np.float64))).sum().backward()
    expected = {name: leaf.grad.numpy() for name, leaf in zip(arrays, leaves, strict=True) if leaf.grad is not None}

    model = differentiate(ir.from_proto(forward(case, arrays, weights)), "loss", list(arrays))
    feeds: dict[str, Array] = {**arrays, "lazy_reset_grad": np.ones(1, np.bool_)}
    feeds |= {f"{name}_grad.accumulation.buffer": np.zeros_like(array) for name, array in arrays.items()}
    after = run_step(ir.to_proto(_bare(model)).SerializeToString(), feeds)
    return expected, {name: after[f"{name}_grad"] for name in arrays}


def _double(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def forward(case: Case, arrays: Mapping[str, Array], weights: Array) -> onnx.ModelProto:
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(case.dtype))
    nodes = [onnx.parser.parse_node(line) for line in case.nodes.strip().splitlines()]
    nodes.append(onnx.helper.make_node("Mul", ["y", "weights"], ["weighted"]))
    nodes.append(onnx.helper.make_node("ReduceSum", ["weighted"], ["loss"], keepdims=0))
    constants = {
        name: array.astype(case.dtype) if array.dtype.kind == "f" else array for name, array in case.constants.items()
    }
    graph = onnx.helper.make_graph(
        nodes,
        "case",
        [],
        [onnx.helper.make_tensor_value_info("loss", kind, [])],
        [
            onnx.numpy_helper.from_array(array, name)
            for name, array in {**arrays, **constants, "weights": weights}.items()
        ],
    )
    imports = [onnx.helper.make_opsetid("", case.opset)]
    imports += [onnx.helper.make_opsetid(domain, 1) for domain in ("com.microsoft", POET_DOMAIN)]
    return onnx.helper.make_model(graph, opset_imports=imports, ir_version=8)


def _bare(model: ir.Model) -> ir.Model:
    """Return a model that returns the gradients themselves: accumulators take single precision alone.

    onnxruntime-training ends at opset 21. What is newer has been expanded by operators that mean the same there.
    """
    model.opset_imports[""] = min(21, model.opset_imports[""])
    graph = model.graph
    for node in list(graph):
        if node.op_type == "InPlaceAccumulatorV2":
            position = list(graph.outputs).index(node.outputs[0])
            gradient = node.inputs[1]
            assert gradient is not None
            graph.outputs[position] = gradient
            graph.remove(node, safe=True)
    return model
