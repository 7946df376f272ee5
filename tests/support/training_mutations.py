"""Damage done to a training graph at random, and what a training session says of it.

python tests/support/training_mutations.py FOLDER FIRST LAST
The folder holds a training graph, its evaluation graph and its checkpoint. For each seed from FIRST to LAST - 1 a line
says whether the session took the damaged graph or refused it. Any other error ends the program, as a crash does, and
the seed is the last number that was printed.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx

from poet_onnx import SGD, AdamW, TrainingSession
from poet_onnx.errors import PoetError

Random = random.Random
TYPES = (*range(24), 99)
SIZES = (-(2**62), -1, 0, 1, 2, 3, 7, 2**31, 2**62)
NUMBERS = (-(2**63), -1, 0, 1, 2, 3, 100, 2**63 - 1)
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"optimizer": AdamW()},
    {"keep_gradients": True},
    {"accumulation_steps": 2, "clip_norm": 1.0},
)


def pick(items: Any, source: Random) -> Any:
    """Return one of some items."""
    return items[source.randrange(len(items))]


def values(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """Return all that has a type."""
    return [*graph.input, *graph.output, *graph.value_info]


def drop(graph: onnx.GraphProto, source: Random) -> None:
    """Drop an input, an output, a node, an initializer or a type."""
    parts = pick((graph.input, graph.output, graph.node, graph.initializer, graph.value_info), source)
    if parts:
        del parts[source.randrange(len(parts))]


def repeat(graph: onnx.GraphProto, source: Random) -> None:
    """Write something twice."""
    parts = pick((graph.input, graph.output, graph.node, graph.initializer), source)
    parts.append(pick(parts, source))


def shorten(graph: onnx.GraphProto, source: Random) -> None:
    """Drop an input or an output of a node, and those behind it."""
    node = pick(graph.node, source)
    names = pick((node.input, node.output), source)
    if names:
        del names[source.randrange(len(names)) :]


def empty(graph: onnx.GraphProto, source: Random) -> None:
    """Leave out an input or an output of a node."""
    node = pick(graph.node, source)
    names = pick((node.input, node.output), source)
    if names:
        names[source.randrange(len(names))] = ""


def rename(graph: onnx.GraphProto, source: Random) -> None:
    """Let a node read or make something else."""
    node = pick(graph.node, source)
    names = pick((node.input, node.output), source)
    other = pick(pick(graph.node, source).output, source)
    known = [other, pick(graph.input, source).name, "nowhere", "a\0b", node.output[0] if node.output else ""]
    if names:
        names[source.randrange(len(names))] = pick(known, source)


def rename_value(graph: onnx.GraphProto, source: Random) -> None:
    """Give an input or an output of the graph another name."""
    value = pick([*graph.input, *graph.output], source)
    value.name = pick(["", "nowhere", pick(graph.input, source).name, pick(graph.node, source).output[0]], source)


def retype(graph: onnx.GraphProto, source: Random) -> None:
    """Give a value another element type, or none."""
    value = pick(values(graph), source)
    if source.random() < 0.1:
        value.ClearField("type")
    elif source.random() < 0.1:
        value.type.sequence_type.elem_type.tensor_type.elem_type = 1
    else:
        value.type.tensor_type.elem_type = pick(TYPES, source)


def reshape(graph: onnx.GraphProto, source: Random) -> None:
    """Give a value another shape, or none."""
    shape = pick(values(graph), source).type.tensor_type.shape
    kind = source.randrange(5)
    if kind == 0:
        shape.Clear()
    elif kind == 1 or not shape.dim:
        shape.dim.add().dim_value = pick(SIZES, source)
    elif kind == 2:
        pick(shape.dim, source).dim_param = "n"
    elif kind == 3:
        pick(shape.dim, source).Clear()
    else:
        pick(shape.dim, source).dim_value = pick(SIZES, source)


def damage_attribute(graph: onnx.GraphProto, source: Random) -> None:
    """Drop an attribute or change its number, or its type."""
    node = pick([node for node in graph.node if node.attribute], source)
    attribute = pick(node.attribute, source)
    kind = source.randrange(4)
    if kind == 0:
        node.attribute.remove(attribute)
    elif kind == 1:
        attribute.type = pick(range(15), source)
    elif kind == 2:
        attribute.i = pick(NUMBERS, source)
    else:
        attribute.ints[:] = [pick(NUMBERS, source) for _ in attribute.ints]


def damage_initializer(graph: onnx.GraphProto, source: Random) -> None:
    """Take an initializer's data, shape, type or name."""
    tensor = pick(graph.initializer, source)
    kind = source.randrange(5)
    if kind == 0:
        tensor.ClearField("raw_data")
    elif kind == 1:
        tensor.dims.append(pick(SIZES, source))
    elif kind == 2:
        tensor.data_type = pick(TYPES, source)
    elif kind == 3:
        tensor.name = pick(["", pick(graph.input, source).name, "nowhere"], source)
    elif tensor.dims:
        tensor.dims[0] = pick(SIZES, source)


def change_operator(graph: onnx.GraphProto, source: Random) -> None:
    """Give a node another operator or domain."""
    node, other = pick(graph.node, source), pick(graph.node, source)
    if source.random() < 0.3:
        node.domain = pick(("", "com.microsoft", "poet", "else.where"), source)
    else:
        kinds = ("InPlaceAccumulatorV2", "Accumulate", "AccumulateRows", "PageIn", "Gate", "Unheard", other.op_type)
        node.op_type = pick(kinds, source)
        node.domain = pick((node.domain, "com.microsoft", "poet"), source)


def move(graph: onnx.GraphProto, source: Random) -> None:
    """Let two nodes change places."""
    first, second = source.randrange(len(graph.node)), source.randrange(len(graph.node))
    kept = onnx.NodeProto()
    kept.CopyFrom(graph.node[first])
    graph.node[first].CopyFrom(graph.node[second])
    graph.node[second].CopyFrom(kept)


MUTATIONS: tuple[Callable[[onnx.GraphProto, Random], None], ...] = (
    drop,
    repeat,
    shorten,
    empty,
    rename,
    rename_value,
    retype,
    reshape,
    damage_attribute,
    damage_initializer,
    change_operator,
    move,
)


def damaged(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """Return a model with one to three damages."""
    source, copy = random.Random(seed), onnx.ModelProto()
    copy.CopyFrom(model)
    for _ in range(source.choice((1, 1, 1, 2, 3))):
        pick(MUTATIONS, source)(copy.graph, source)
    if source.random() < 0.05:
        texts = ("{}", "[1]", '{"ids": [[5, 1, null]]}', '{"ids": [[0, 1, null, [[9, 1, 2, 3]]]]}')
        copy.metadata_props.add(key="poet.input_ranges", value=pick(texts, source))
    return copy


def begin(folder: Path, seed: int) -> bool:
    """Begin a session of which a graph is damaged, and return whether poet-onnx took it."""
    files = {name: folder / f"{name}.onnx" for name in ("training_model", "eval_model")}
    name = "eval_model" if seed % 5 == 0 else "training_model"
    model = damaged(onnx.load(files[name]), seed)
    files[name] = folder / f"damaged-{seed}.onnx"
    files[name].write_bytes(model.SerializeToString())
    options = {"eval_model": files["eval_model"], "optimizer": SGD(0.1), **OPTIONS[seed % len(OPTIONS)]}
    try:
        session = TrainingSession(files["training_model"], folder / "checkpoint", **options)
        session.export_inference_model(folder / "exported.onnx")
    except PoetError as error:
        assert "\n" not in str(error)
        return False
    finally:
        files[name].unlink()
    return True


def main(folder: Path, first: int, last: int) -> None:
    """Say what came of some seeds, one after another."""
    for seed in range(first, last):
        sys.stdout.write(f"{seed} ")
        sys.stdout.flush()
        sys.stdout.write("taken\n" if begin(folder, seed) else "refused\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
