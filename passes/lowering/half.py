"""Half precision: ONNX Runtime's CPU keeps and moves float16, but computes with few operators in it.

Where a kernel is missing, the runtime puts casts around a node by itself, which no plan knows of, and some kernels
fail. Here the casts are nodes: values are float16 between nodes, and float32 only while one computes.
"""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import PassResult

from poet_onnx.errors import InputError
from poet_onnx.graph.extract import plain_attributes
from poet_onnx.graph.operators import spec_of
from poet_onnx.graph.shapes import infer
from poet_onnx.passes.lowering.builder import list_nodes
from poet_onnx.passes.structured import StructuredPass

HALF, FLOAT = ir.DataType.FLOAT16, ir.DataType.FLOAT

MOVING = frozenset(
    word
    for line in (
        "Cast Concat ConcatTraining Constant ConstantOfShape Expand Flatten Gather GatherElements Identity PassThrough",
        "Reshape Shape ShrunkenGather Size Slice Split SplitTraining Squeeze Transpose Unsqueeze YieldOp",
    )
    for word in line.split()
)
"""Operators that only move numbers, and that every CPU build of ONNX Runtime runs in float16."""


class ComputeHalfInFloat(StructuredPass):
    """Put casts around every node that computes with float16.

    Rules:
        H1. A node of MOVING stays as it is; any other reads float32 and writes float32, through casts beside it.
        H2. What a node wrote keeps its name and its type; the casts are named after the node.
        H3. What is updated in place cannot be float16: a cast would give the node a copy to write to.

    Requires a normalized model; ensures that no other node reads or writes float16.
    """

    def call(self, model: ir.Model) -> PassResult:
        """Cast where it is needed.

        Raises:
            InputError: naming every operator that updates float16 in place, and its nodes.
        """
        halves = {name for name, found in infer(model).types.items() if found.dtype == HALF}
        nodes = [node for node in model.graph if node.op_type not in MOVING] if halves else []
        refused: dict[str, list[str]] = {}
        for node in nodes:
            if any(_name(node, index) in halves for index in _writes(node)):
                refused.setdefault(node.op_type, []).append(node.name or "")
        if refused:
            raise InputError(
                f"float16 cannot be updated in place on the CPU, as {list_nodes(refused)} would: keep parameters, "
                "gradient buffers and running statistics in float32, and cast to float16 behind them."
            )
        changed = [_cast_around(model.graph, node, halves) for node in nodes]
        return PassResult(model, modified=any(changed))


def _writes(node: ir.Node) -> tuple[int, ...]:
    return spec_of(node.domain, node.op_type, plain_attributes(node)).writes


def _name(node: ir.Node, index: int) -> str | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    return None if value is None else value.name


def _cast_around(graph: ir.Graph, node: ir.Node, halves: set[str]) -> bool:
    read = {value for value in node.inputs if value is not None and value.name in halves}
    for number, value in enumerate(sorted(read, key=lambda value: value.name or "")):
        wide = _cast(value, FLOAT, f"{node.name}/float_{number}")
        graph.insert_before(node, wide)
        for index, given in enumerate(node.inputs):
            if given is value:
                node.replace_input_with(index, wide.outputs[0])
    written = [value for value in node.outputs if value.name in halves and (value.uses() or value.is_graph_output())]
    for number, value in enumerate(written):
        narrow = _cast(value, HALF, f"{node.name}/half_{number}")
        graph.insert_after(node, narrow)
        half = narrow.outputs[0]
        name, half.type, half.shape = value.name, value.type, value.shape
        value.replace_all_uses_with(half, replace_graph_outputs=True)
        narrow.replace_input_with(0, value)
        value.name, half.name = half.name, name
    for value in node.outputs:
        if value.dtype == HALF:
            value.type = ir.TensorType(FLOAT)
    return bool(read or written)


def _cast(value: ir.Value, to: ir.DataType, name: str) -> ir.Node:
    node = ir.Node("", "Cast", [value], [ir.AttrInt64("to", int(to))], num_outputs=1, name=name)
    output = node.outputs[0]
    output.name, output.type, output.shape = f"{name}_output", ir.TensorType(to), value.shape
    return node
