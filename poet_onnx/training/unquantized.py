"""Let a forward graph have plain nodes where its nodes read weights of few bits panel by panel.

A LinearQuantized (poet_onnx/graph/operators/quantized.py) becomes a product again, with floats that a DequantizeLinear
makes of the same bytes, and a GatherQuantized a Gather of their rows. A VocabularyLoss
(poet_onnx/graph/operators/vocabulary.py) becomes the product that makes all scores, and the loss of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from poet_onnx.description.names import POET_DOMAIN, handle_name
from poet_onnx.files.element_types import NUMBERS
from poet_onnx.files.onnx_messages import INPUT, VALUE_INFO, tensor_type
from poet_onnx.files.protobuf import text_field
from poet_onnx.training.forward_calls import ForwardCall, new_node
from poet_onnx.training.forward_graph import ForwardGraph, Node
from poet_onnx.training.unstored import HANDLES

_PRODUCT, _ROWS, _LOSS = "LinearQuantized", "GatherQuantized", "VocabularyLoss"
_FLOAT_BITS = 32
_KINDS = {(4, 0): 21, (4, 1): 22, (8, 0): 2, (8, 1): 3}
"""Element types of codes by their bits and whether they are signed, as TensorProto.DataType numbers them."""

_BYTE = 8


def read_whole(forward: ForwardGraph) -> None:
    """Change a graph that reads weights panel by panel; nothing changes in another one."""
    seen: dict[str, str] = {}
    nodes: list[Node] = []
    for node in forward.nodes:
        call = ForwardCall.of(forward, node) if POET_DOMAIN in node.domains else None
        if call is not None and call.operator in (_PRODUCT, _ROWS, _LOSS):
            inputs = [seen.get(name, name) for name in call.inputs]
            nodes += (_loss if call.operator == _LOSS else _plain)(forward, call, inputs)
            continue
        if call is not None and call.inputs and call.operator not in HANDLES:  # a plan's, which returns what it reads
            seen[call.output] = seen.get(call.inputs[0], call.inputs[0])
        nodes.append(node)
    forward.nodes[:] = nodes


def _plain(forward: ForwardGraph, call: ForwardCall, inputs: list[str]) -> Iterator[Node]:
    """Yield what is to stand in the place of a node that reads codes."""
    matrix = f"{call.output}/floats"
    yield _floats(forward, call, inputs[1:], matrix)
    if call.operator == _ROWS:
        yield new_node(forward, "Gather", call.name, ([matrix, inputs[0]], call.output))
    else:
        bias = inputs[3 + call.number("zeroed") :][: call.number("biased")]
        yield from _product(forward, call, [inputs[0], matrix, *bias], call.output)


def _loss(forward: ForwardGraph, call: ForwardCall, inputs: list[str]) -> Iterator[Node]:
    """Yield what makes scores of all words, under their name, and the loss of them."""
    x, labels, *rest = inputs
    words, width = call.attributes["matrix"]
    if call.number("bits") == _FLOAT_BITS:
        sizes = (words, width) if call.number("transposed") else (width, words)
        matrix, rest = _tensor(forward, rest[0], NUMBERS["float32"], sizes), rest[1:]
    else:
        matrix = f"{call.output}/floats"
        yield _floats(forward, call, rest, matrix)
        rest = rest[2 + call.number("zeroed") :]
    scores, flat = call.texts.get("scores") or f"{call.output}/scores", f"{call.output}/rows"
    shape = forward.shape_of(x)
    if shape is not None:
        said = text_field(1, scores) + tensor_type(NUMBERS["float32"], (*shape[:-1], words))
        forward.types[scores] = forward.add(VALUE_INFO, said)
    biased = call.number("biased")
    free = f"{call.output}/free" if call.number("capped") else scores
    yield from _product(forward, call, [x, matrix, *rest[:biased]], free)
    if call.number("capped"):
        part, bent, cap = f"{call.output}/part", f"{call.output}/bent", rest[biased]
        yield new_node(forward, "Div", f"{call.name}/part", ([free, cap], part))
        yield new_node(forward, "Tanh", f"{call.name}/bent", ([part], bent))
        yield new_node(forward, "Mul", f"{call.name}/capped", ([bent, cap], scores))
    yield new_node(forward, "Flatten", flat, ([scores], flat), {"axis": len(shape or (0, 0)) - 1})
    ignored = {"ignore_index": call.number("ignore_index")} if call.number("ignoring") else {}
    yield new_node(forward, "SoftmaxCrossEntropyLoss", call.name, ([flat, labels], call.output), ignored)


def _floats(forward: ForwardGraph, call: ForwardCall, inputs: list[str], made: str) -> Node:
    """Return the node that makes floats of codes, scales and zeros."""
    rows, columns = call.attributes["matrix"]
    bits, block = call.number("bits"), min(call.number("block"), columns)
    kind, blocks = _KINDS[bits, call.number("signed")], -(-columns // block)
    as_stored: list[tuple[int, tuple[int, ...]]] = [
        (NUMBERS["uint8"], (rows * columns * bits // _BYTE,)),
        (NUMBERS["float32"], (rows, blocks)),
        (NUMBERS["uint8"], (-(-rows * blocks * bits // _BYTE),)),
    ]
    given = inputs[: 2 + call.number("zeroed")]
    parts = [_tensor(forward, name, *said) for name, said in zip(given, as_stored, strict=False)]
    forward.seen[parts[0]] = kind, (rows, columns)
    if call.number("zeroed"):
        forward.seen[parts[2]] = kind, (rows, blocks)
    quantized = {"axis": 1, "block_size": block}
    return new_node(forward, "DequantizeLinear", f"{call.name}/floats", (parts, made), quantized)


def _product(forward: ForwardGraph, call: ForwardCall, operands: list[str], made: str) -> Iterator[Node]:
    """Yield nodes that multiply with a matrix, and add a bias if there is one."""
    x, matrix, *bias = operands
    if bias and call.operator == _PRODUCT:
        yield new_node(forward, "Gemm", call.name, (operands, made), {"transB": call.number("transposed")})
        return
    turned, product = f"{call.output}/turned", f"{call.output}/product" if bias else made
    if call.number("transposed"):
        yield new_node(forward, "Transpose", f"{call.name}/turned", ([matrix], turned))
    read = [x, turned if call.number("transposed") else matrix]
    yield new_node(forward, "MatMul", f"{call.name}/scores" if call.operator == _LOSS else call.name, (read, product))
    if bias:
        yield new_node(forward, "Add", f"{call.name}/biased", ([product, *bias], made))


def _tensor(forward: ForwardGraph, name: str, kind: int, shape: tuple[int, ...]) -> str:
    """Return the name of a tensor, which is an input of the graph where a handle stands for it."""
    prefix = handle_name("")
    if name not in forward.inputs or not name.startswith(prefix):
        return name
    own = name[len(prefix) :]
    forward.inputs[own] = forward.add(INPUT, text_field(1, own) + tensor_type(kind, shape))
    return own
