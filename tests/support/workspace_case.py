"""Single operators: shapes of random floats, or arrays, and what they make; and models of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from poet_onnx.graph import Node, Phase, Residency, Tensor, TrainingGraph

MS = "com.microsoft"
RNG = np.random.default_rng(7)


class Case(NamedTuple):
    """One operator: inputs are shapes of random floats, arrays, or None; outputs are shapes, or None where absent."""

    op: str
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    attributes: dict[str, Any] = {}  # noqa: RUF012
    domain: str = ""
    opset: int = 15
    threads: int = 1


def ints(*values: int) -> npt.NDArray[np.int64]:
    """Return a list of integers."""
    return np.array(values, np.int64)


def full(dtype: Any, *shape: int) -> npt.NDArray[Any]:
    """Return ones of a type."""
    return np.ones(shape, dtype)


def number(value: float, dtype: Any = np.float32) -> npt.NDArray[Any]:
    """Return a scalar."""
    return np.array(value, dtype)


def single_operator(case: Case) -> tuple[onnx.ModelProto, dict[str, np.ndarray], TrainingGraph]:
    """Return a model of one operator, random feeds for it, and the graph that the rule looks at."""
    feeds, tensors = {}, {}
    for index, value in enumerate(case.inputs):
        if value is not None:
            array = value if isinstance(value, np.ndarray) else RNG.standard_normal(value).astype(np.float32)
            feeds[f"input{index}"] = np.asarray(array)
    outputs = {}
    for index, value in enumerate(case.outputs):
        if value is not None:
            outputs[f"output{index}"] = value if isinstance(value, np.ndarray) else np.zeros(value, np.float32)
    for name, array in (feeds | outputs).items():
        kind = TensorProto.DataType.Name(helper.np_dtype_to_tensor_dtype(array.dtype))
        residency = Residency.RESIDENT if name in feeds else Residency.OUTPUT
        tensors[name] = Tensor(name, kind, array.shape, array.nbytes, name, residency)
    input_names = [f"input{i}" if value is not None else "" for i, value in enumerate(case.inputs)]
    output_names = [f"output{i}" if value is not None else "" for i, value in enumerate(case.outputs)]
    proto = helper.make_node(case.op, input_names, output_names, "node", domain=case.domain, **case.attributes)
    infos = {
        name: helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in (feeds | outputs).items()
    }
    onnx_graph = helper.make_graph([proto], "one", [infos[n] for n in feeds], [infos[n] for n in outputs])
    opsets = [helper.make_opsetid("", case.opset), helper.make_opsetid(MS, 1)]
    model = helper.make_model(onnx_graph, opset_imports=opsets, ir_version=8)
    attributes = {a.name: attribute_value(a) for a in proto.attribute}
    node = Node("node", case.op, case.domain, tuple(input_names), tuple(output_names), attributes, Phase.FORWARD, True)
    graph = TrainingGraph("one", (node,), tensors, tuple(feeds), tuple(outputs), "")
    return model, feeds, graph


def attribute_value(attribute: onnx.AttributeProto) -> Any:
    value = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode()
    return tuple(value) if attribute.type in (onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS) else value
