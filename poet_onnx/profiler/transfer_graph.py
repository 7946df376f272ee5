"""Graphs whose transfers are timed: tensors go to storage and come back, with arithmetic between."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto, helper

from poet_onnx.description.names import POET_DOMAIN, POET_VERSION

PAUSE_ROWS = 192
"""Rows of the matrices whose product takes about as long as a node: the I/O thread has gone to sleep by then."""


class Transfers(Enum):
    """How a graph's transfers run."""

    NONE = "none"  # there are none, only the arithmetic
    WHOLE = "whole"  # by the computing thread
    AWAITED = "awaited"  # by the I/O thread, while the computing thread waits
    HIDDEN = "hidden"  # by the I/O thread, beside a product


def transfer_graph(size_bytes: int, tensors: int, transfers: Transfers) -> ModelProto:
    """Return a graph that pages tensors out and in again one after the other, each after a product of matrices.

    Args:
        size_bytes: of each tensor, a multiple of 4.
        tensors: how many.
        transfers: how each of them goes and comes.
    """
    builder = _Builder(size_bytes, transfers)
    for number in range(tensors):
        builder.add(number)
    return builder.model(tensors)


def transfer_feeds(size_bytes: int) -> dict[str, npt.NDArray[np.float32]]:
    """Return feeds of the graphs for tensors of a size."""
    return {
        "x": np.random.default_rng(0).standard_normal(size_bytes // 4, dtype=np.float32),
        "rows": np.zeros((PAUSE_ROWS, PAUSE_ROWS), np.float32),
    }


class _Builder:
    def __init__(self, size_bytes: int, transfers: Transfers) -> None:
        self._shape = [size_bytes // 4]
        self._transfers = transfers
        self._nodes: list[NodeProto] = []
        self._last = "rows"  # what the next product multiplies

    def add(self, number: int) -> None:
        block, token, back = f"block_{number}", f"token_{number}", f"back_{number}"
        self._nodes.append(helper.make_node("Neg", ["x"], [block]))
        self._pause(f"pause_{number}")
        if self._transfers is Transfers.NONE:
            back = block
            self._pause(f"again_{number}")
            self._pause(f"third_{number}")
        else:
            self._page_out(number, block, token)
            self._page_in(number, token, back)
        self._nodes.append(helper.make_node("Shape", [back], [f"shape_{number}"]))

    def model(self, tensors: int) -> ModelProto:
        info = helper.make_tensor_value_info
        inputs = [info("x", TensorProto.FLOAT, self._shape), info("rows", TensorProto.FLOAT, [PAUSE_ROWS] * 2)]
        shapes = [info(f"shape_{number}", TensorProto.INT64, [1]) for number in range(tensors)]
        last = info(self._last, TensorProto.FLOAT, [PAUSE_ROWS] * 2)
        graph = helper.make_graph(self._nodes, "transfers", inputs, [*shapes, last])
        imports = [helper.make_opsetid("", 15), helper.make_opsetid(POET_DOMAIN, POET_VERSION)]
        model: ModelProto = helper.make_model(graph, opset_imports=imports, ir_version=8)
        return model

    def _page_out(self, number: int, block: str, token: str) -> None:
        if self._transfers is Transfers.WHOLE:
            self._page("PageOut", [block, self._last], [token], slot=number)
            self._pause_behind(token, f"again_{number}")
            return
        leaving = f"leaving_{number}"
        self._page("PageOutStart", [block, self._last], [leaving], slot=number)
        if self._transfers is Transfers.HIDDEN:
            self._pause_behind(leaving, f"again_{number}")
            self._page("PageOutEnd", [leaving, block, self._last], [token])
        else:
            self._page("PageOutEnd", [leaving, block], [token])
            self._pause_behind(token, f"again_{number}")

    def _page_in(self, number: int, token: str, back: str) -> None:
        attributes: dict[str, Any] = {"slot": number, "dtype": TensorProto.FLOAT, "shape": self._shape}
        if self._transfers is Transfers.WHOLE:
            self._page("PageIn", [token, self._last], [back], **attributes)
            return
        raw, ticket = f"raw_{number}", f"ticket_{number}"
        self._page("PageInStart", [token, self._last], [raw, ticket], **attributes)
        if self._transfers is Transfers.HIDDEN:
            self._pause_behind(ticket, f"third_{number}")
            self._page("PageInEnd", [raw, ticket, self._last], [back])
        else:
            self._page("PageInEnd", [raw, ticket], [back])

    def _pause(self, name: str) -> None:
        self._nodes.append(helper.make_node("MatMul", [self._last, "rows"], [name]))
        self._last = name

    def _pause_behind(self, trigger: str, name: str) -> None:
        gated = f"gated_{name}"
        self._page("Gate", [self._last, trigger], [gated])
        self._last = gated
        self._pause(name)

    def _page(self, op_type: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> None:
        self._nodes.append(
            helper.make_node(op_type, list(inputs), list(outputs), domain=POET_DOMAIN, name=outputs[0], **attributes)
        )
