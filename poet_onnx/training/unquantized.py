"""Let a forward graph have plain nodes where its nodes read weights of few bits panel by panel.

A LinearQuantized (poet_onnx/graph/operators/quantized.py) becomes a product again, with floats that a DequantizeLinear
makes of the same bytes, and a GatherQuantized a Gather of their rows.
"""

from __future__ import annotations

from collections.abc import Iterator

from poet_onnx.description.metadata import POET_DOMAIN, handle_name
from poet_onnx.files.element_types import NUMBERS
from poet_onnx.files.onnx_messages import INPUT, tensor_type
from poet_onnx.files.protobuf import text_field
from poet_onnx.training.forward_calls import ForwardCall, new_node
from poet_onnx.training.forward_graph import ForwardGraph, Node
from poet_onnx.training.unstored import HANDLES

_PRODUCT, _ROWS = "LinearQuantized", "GatherQuantized"
_CODES = 1
_KINDS = {(4, 0): 21, (4, 1): 22, (8, 0): 2, (8, 1): 3}
"""Element types of codes by their bits and whether they are signed, as TensorProto.DataType numbers them."""

_BYTE = 8


def read_whole(forward: ForwardGraph) -> None:
    """Change a graph that reads weights panel by panel; nothing changes in another one."""
    seen: dict[str, str] = {}
    nodes: list[Node] = []
    for node in forward.nodes:
        call = ForwardCall.of(forward, node) if POET_DOMAIN in node.domains else None
        if call is not None and call.operator in (_PRODUCT, _ROWS):
            nodes += _plain(forward, call, [seen.get(name, name) for name in call.inputs])
            continue
        if call is not None and call.inputs and call.operator not in HANDLES:  # a plan's, which returns what it reads
            seen[call.output] = seen.get(call.inputs[0], call.inputs[0])
        nodes.append(node)
    forward.nodes[:] = nodes


def _plain(forward: ForwardGraph, call: ForwardCall, inputs: list[str]) -> Iterator[Node]:
    """Yield what is to stand in the place of a node."""
    rows, columns = call.attributes["matrix"]
    bits, block = call.number("bits"), min(call.number("block"), columns)
    kind, blocks = _KINDS[bits, call.number("signed")], -(-columns // block)
    last = _CODES + 2 + call.number("zeroed")
    as_stored: list[tuple[int, tuple[int, ...]]] = [
        (NUMBERS["uint8"], (rows * columns * bits // _BYTE,)),
        (NUMBERS["float32"], (rows, blocks)),
        (NUMBERS["uint8"], (-(-rows * blocks * bits // _BYTE),)),
    ]
    parts = [_tensor(forward, name, *said) for name, said in zip(inputs[_CODES:last], as_stored, strict=False)]
    forward.seen[parts[0]] = kind, (rows, columns)
    if call.number("zeroed"):
        forward.seen[parts[2]] = kind, (rows, blocks)
    floats, turned = f"{call.output}/floats", f"{call.output}/turned"
    quantized = {"axis": 1, "block_size": block}
    yield new_node(forward, "DequantizeLinear", f"{call.name}/floats", (parts, floats), quantized)
    if call.operator == _ROWS:
        yield new_node(forward, "Gather", call.name, ([floats, inputs[0]], call.output))
    elif call.number("biased"):
        read = [inputs[0], floats, inputs[last]]
        yield new_node(forward, "Gemm", call.name, (read, call.output), {"transB": call.number("transposed")})
    else:
        if call.number("transposed"):
            yield new_node(forward, "Transpose", f"{call.name}/turned", ([floats], turned))
        read = [inputs[0], turned if call.number("transposed") else floats]
        yield new_node(forward, "MatMul", call.name, (read, call.output))


def _tensor(forward: ForwardGraph, name: str, kind: int, shape: tuple[int, ...]) -> str:
    """Return the name of a tensor, which is an input of the graph where a handle stands for it."""
    prefix = handle_name("")
    if name not in forward.inputs or not name.startswith(prefix):
        return name
    own = name[len(prefix) :]
    forward.inputs[own] = forward.add(INPUT, text_field(1, own) + tensor_type(kind, shape))
    return own
