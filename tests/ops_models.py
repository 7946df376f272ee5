"""Small models with the operators of domain `poet`, for the tests of the operators and of the runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx
from onnx import helper

FLOAT = onnx.TensorProto.FLOAT


def poet_node(op_type: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: object) -> onnx.NodeProto:
    """Make a node of domain `poet`; a sequence becomes a list of integers, an empty one too."""
    lists = {name: value for name, value in attributes.items() if isinstance(value, (list, tuple))}
    numbers = {name: value for name, value in attributes.items() if name not in lists}
    node = helper.make_node(op_type, inputs, outputs, name=f"{op_type}:{outputs[0]}", domain="poet", **numbers)
    for name, values in lists.items():
        node.attribute.append(helper.make_attribute(name, list(values), attr_type=onnx.AttributeProto.INTS))
    return node


def paging_nodes(
    mode: str, source: str, result: str, *, dtype: int, shape: Sequence[int], slot: int = 0, trigger: str | None = None
) -> list[onnx.NodeProto]:
    """Page `source` out and in again as `result`, with synchronous nodes (mode `sync`) or halves (mode `async`)."""
    more = [] if trigger is None else [trigger]
    declared = {"slot": slot, "dtype": dtype, "shape": shape}
    if mode == "sync":
        return [
            poet_node("PageOut", [source], [f"{result}_token"], slot=slot),
            poet_node("PageIn", [f"{result}_token", *more], [result], **declared),
        ]
    return [
        poet_node("PageOutStart", [source], [f"{result}_started"], slot=slot),
        poet_node("PageOutEnd", [f"{result}_started", source], [f"{result}_token"]),
        poet_node("PageInStart", [f"{result}_token", *more], [f"{result}_raw", f"{result}_ticket"], **declared),
        poet_node("PageInEnd", [f"{result}_raw", f"{result}_ticket", *more], [result]),
    ]


def make_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[tuple[str, int, Sequence[int | str] | None]],
    outputs: Sequence[tuple[str, int, Sequence[int | str] | None]],
    initializers: Sequence[onnx.TensorProto] = (),
) -> bytes:
    """Serialise a model of these nodes, in this order and without value_info."""
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info(*value) for value in inputs],
        [helper.make_tensor_value_info(*value) for value in outputs],
        initializer=list(initializers),
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("poet", 1)]
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=imports, ir_version=10)
    return model.SerializeToString()


def round_trip_model(mode: str, shape: Sequence[int]) -> bytes:
    """Compute y = -page_in(page_out(-x)): ONNX Runtime owns every buffer, as it does in a training step."""
    nodes = [
        helper.make_node("Neg", ["x"], ["copy"]),
        *paging_nodes(mode, "copy", "back", dtype=FLOAT, shape=shape),
        helper.make_node("Neg", ["back"], ["y"]),
    ]
    return make_model(nodes, [("x", FLOAT, shape)], [("y", FLOAT, shape)])


def page_descriptors(directory: Path) -> list[int]:
    """Return this process's descriptors of unlinked files that were opened in a directory."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
        if target.startswith(f"{directory}/") and target.endswith("(deleted)"):
            found.append(int(entry.name))
    return found
