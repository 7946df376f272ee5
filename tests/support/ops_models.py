"""Small models with the operators of domain `poet`, for the tests of the operators and of the runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper

FLOAT, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


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


def keeping_model(mode: str, shape: Sequence[int], slot: int, declared: Mapping[str, Any]) -> bytes:
    """Page x out if `writes`, or else page the tensor of `token` in, as what `declared` says of it.

    A token names a page of its own session alone: so one session can write in a run and read in later ones.
    """
    same: dict[str, Any] = {"dtype": FLOAT, "shape": shape, "slot": slot}
    half = 1 if mode == "sync" else 2
    outs = paging_nodes(mode, "x", "y", **same)[:half]
    ins = paging_nodes(mode, "x", "y", **{**same, **declared})[half:]
    dtype = declared.get("dtype", FLOAT)
    nothing = helper.make_node("Constant", [], ["y"], value=helper.make_tensor("zero", dtype, [1], [0]))
    ins[0].input[0] = "token"
    kept = helper.make_node("Identity", ["token"], ["y_token"])
    results = [helper.make_tensor_value_info(*each) for each in (("y_token", INT64, None), ("y", dtype, None))]
    write, read = (
        helper.make_graph(nodes, name, [], results)
        for name, nodes in (("write", [*outs, nothing]), ("read", [*ins, kept]))
    )
    choice = helper.make_node("If", ["writes"], ["new_token", "result"], then_branch=write, else_branch=read)
    return make_model(
        [choice],
        [("writes", onnx.TensorProto.BOOL, ()), ("x", FLOAT, shape), ("token", INT64, (1,))],
        [("new_token", INT64, None), ("result", dtype, None)],
    )


class Keeper:
    """A session of `keeping_model`."""

    def __init__(
        self,
        options: onnxruntime.SessionOptions,
        shape: Sequence[int],
        *,
        mode: str = "sync",
        slot: int = 0,
        declared: Mapping[str, Any] | None = None,
    ) -> None:
        model = keeping_model(mode, shape, slot, declared or {})
        self._session = onnxruntime.InferenceSession(model, options)
        self._empty = np.zeros(tuple(shape), np.float32)

    def write(self, x: np.ndarray) -> int:
        """Page a tensor out and return its token."""
        return int(self._session.run(["new_token"], {"writes": np.array(True), "x": x, "token": np.array([0])})[0][0])

    def read(self, token: int) -> np.ndarray:
        """Page the tensor of a token in."""
        feeds = {"writes": np.array(False), "x": self._empty, "token": np.array([token])}
        result: np.ndarray = self._session.run(["result"], feeds)[0]
        return result


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
