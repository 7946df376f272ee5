"""Random damage to a model's structure, for tests that nothing strange gets through."""

from __future__ import annotations

import random
from collections.abc import Callable

import onnx
from onnx import TensorProto, helper

NUMBERS = (0, 1, -1, 2, 3, 7, -(2**31), 2**31, 2**62)
NAMES = ("", "nobody", "x\x00y", "a\nb")
KINDS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING, 0, 99)


def _node(graph: onnx.GraphProto, rng: random.Random) -> onnx.NodeProto:
    return rng.choice(graph.node)


def _tensor(graph: onnx.GraphProto, rng: random.Random) -> str:
    names = [name for node in graph.node for name in (*node.input, *node.output)]
    return str(rng.choice(names + [value.name for value in graph.input] + list(NAMES)))


def _drop_node(graph: onnx.GraphProto, rng: random.Random) -> None:
    del graph.node[rng.randrange(len(graph.node))]


def _repeat_node(graph: onnx.GraphProto, rng: random.Random) -> None:
    graph.node.append(_node(graph, rng))


def _move_node(graph: onnx.GraphProto, rng: random.Random) -> None:
    first, second = _node(graph, rng), _node(graph, rng)
    kept = onnx.NodeProto()
    kept.CopyFrom(first)
    first.CopyFrom(second)
    second.CopyFrom(kept)


def _change_operator(graph: onnx.GraphProto, rng: random.Random) -> None:
    node, other = _node(graph, rng), _node(graph, rng)
    node.op_type = rng.choice((other.op_type, "Frobnicate", "", "Sum", "Einsum", "Loop"))
    node.domain = rng.choice((node.domain, other.domain, "elsewhere", "poet", "ai.onnx"))


def _change_input(graph: onnx.GraphProto, rng: random.Random) -> None:
    node = _node(graph, rng)
    if node.input:
        node.input[rng.randrange(len(node.input))] = _tensor(graph, rng)


def _count_inputs(graph: onnx.GraphProto, rng: random.Random) -> None:
    node = _node(graph, rng)
    if node.input and rng.random() < 0.5:
        del node.input[rng.randrange(len(node.input)) :]
    else:
        node.input.append(_tensor(graph, rng))


def _change_output(graph: onnx.GraphProto, rng: random.Random) -> None:
    node = _node(graph, rng)
    choice = rng.random()
    if choice < 0.3 and node.output:
        del node.output[rng.randrange(len(node.output)) :]
    elif choice < 0.6 and node.output:
        node.output[rng.randrange(len(node.output))] = _tensor(graph, rng)
    else:
        node.output.append(rng.choice(("", "more", _tensor(graph, rng))))


def _change_attribute(graph: onnx.GraphProto, rng: random.Random) -> None:
    nodes = [node for node in graph.node if node.attribute]
    if not nodes:
        return
    attribute = rng.choice(rng.choice(nodes).attribute)
    if attribute.ints and rng.random() < 0.7:
        attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(NUMBERS)
    elif rng.random() < 0.6:
        value = rng.choice((rng.choice(NUMBERS), rng.choice(NUMBERS), "SAME_UPPER", "text", 0.5, [1, 2], [1.5], [0, 0]))
        attribute.CopyFrom(helper.make_attribute(attribute.name, value))
    else:
        attribute.CopyFrom(helper.make_attribute("axis", rng.choice(NUMBERS)))


def _drop_attribute(graph: onnx.GraphProto, rng: random.Random) -> None:
    node = _node(graph, rng)
    if node.attribute:
        del node.attribute[rng.randrange(len(node.attribute))]


def _change_type(graph: onnx.GraphProto, rng: random.Random) -> None:
    value = rng.choice([*graph.input, *graph.output, *graph.value_info])
    kind = value.type.tensor_type
    if kind.shape.dim and rng.random() < 0.7:
        dim = rng.choice(kind.shape.dim)
        dim.dim_value = rng.choice((*NUMBERS, dim.dim_value + 1, dim.dim_value - 1, dim.dim_value * 2))
    elif rng.random() < 0.5:
        kind.shape.dim.add().dim_value = rng.choice(NUMBERS)
    elif rng.random() < 0.5:
        kind.elem_type = rng.choice(KINDS)
    else:
        value.ClearField("type")


def _change_constant(graph: onnx.GraphProto, rng: random.Random) -> None:
    if not graph.initializer:
        return
    tensor = rng.choice(graph.initializer)
    choice = rng.random()
    if choice < 0.3:
        graph.initializer.remove(tensor)
    elif choice < 0.8 and tensor.data_type == TensorProto.INT64:
        count = max(len(tensor.raw_data) // 8, len(tensor.int64_data), 1)
        values = [rng.choice(NUMBERS) for _ in range(count)]
        tensor.CopyFrom(helper.make_tensor(tensor.name, TensorProto.INT64, list(tensor.dims), values[:count]))
    elif tensor.dims:
        tensor.dims[rng.randrange(len(tensor.dims))] += rng.choice((1, -1))


def _change_name(graph: onnx.GraphProto, rng: random.Random) -> None:
    value = rng.choice([*graph.input, *graph.output, *graph.value_info])
    value.name = _tensor(graph, rng)


def _drop_value(graph: onnx.GraphProto, rng: random.Random) -> None:
    values = rng.choice((graph.input, graph.output, graph.value_info))
    if values:
        del values[rng.randrange(len(values))]


MUTATIONS: tuple[Callable[[onnx.GraphProto, random.Random], None], ...] = (
    _drop_node,
    _repeat_node,
    _move_node,
    _change_operator,
    *(_change_input,) * 3,
    _count_inputs,
    _change_output,
    *(_change_attribute,) * 3,
    _drop_attribute,
    *(_change_type,) * 4,
    _change_constant,
    _change_name,
    _drop_value,
)


def mutate(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """Return a copy of a model with one to three random defects."""
    rng = random.Random(seed)
    damaged = onnx.ModelProto()
    damaged.CopyFrom(model)
    for _ in range(rng.choice((1, 1, 2, 3))):
        rng.choice(MUTATIONS)(damaged.graph, rng)
    if rng.random() < 0.05:
        damaged.opset_import[rng.randrange(len(damaged.opset_import))].version = rng.choice((0, 1, 7, 13, 21, 99))
    return damaged
