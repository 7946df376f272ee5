"""The random numbers of a training step: which of them follow from the number of the run, and can be gone on with.

ONNX Runtime's kernels keep the state of their generators, and nobody outside the session can set it. That of Dropout
is a number that grows by one with every run and seeds a generator, so that some elements are dropped in every run
(ops/kernels/dropout.cpp). Those of RandomNormal, RandomUniform and those `Like` a tensor go on with one generator: only
who drew all numbers before knows the next one.

`CountedDropout`, `CountedNormal` and `CountedUniform` of domain `poet` stand for them, in what is planned and in what
it is compared with. They get the number of runs as an input, so that a session goes on from any run. Their numbers are
others of the same distribution.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from poet_onnx.description.names import POET_DOMAIN, POET_VERSION, RUNS
from poet_onnx.errors import InputError
from poet_onnx.graph import Role
from poet_onnx.graph.extract import constant_array, plain_attributes
from poet_onnx.graph.extract.roles import say_role
from poet_onnx.graph.operators import ONNX_DOMAINS, spec_of
from poet_onnx.graph.shapes.declared import describe
from poet_onnx.passes.node_builder import replace_nodes, tensor_initializer

_COUNTED_DROPOUT = "CountedDropout"
_COUNTED = {
    "RandomNormal": ("CountedNormal", {"mean": 0.0, "scale": 1.0}),
    "RandomNormalLike": ("CountedNormal", {"mean": 0.0, "scale": 1.0}),
    "RandomUniform": ("CountedUniform", {"low": 0.0, "high": 1.0}),
    "RandomUniformLike": ("CountedUniform", {"low": 0.0, "high": 1.0}),
}
"""What stands for operators that draw numbers, and their attributes with ONNX's defaults."""

_ALL_COUNTED = {_COUNTED_DROPOUT, *(operator for operator, _ in _COUNTED.values())}
_DEFAULT_RATIO = 0.5
_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)


def count_runs(graph: ir.Graph) -> None:
    """Let what draws in each run draw from the number of runs, which becomes an input.

    Args:
        graph: of a model whose seeds are pinned, and whose types are known.

    Raises:
        InputError: if a dropout has a ratio that none can have.
    """
    for node in graph:
        _check_ratio(node)
    dropping = [node for node in graph if _is_countable(node)]
    drawing = [node for node in graph if _is_drawn(node)]
    if not dropping and not drawing:
        return
    runs = ir.Value(name=RUNS, type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([1]))
    say_role(runs, Role.RUNS)
    graph.inputs.append(runs)
    graph.opset_imports[POET_DOMAIN] = POET_VERSION
    for node in dropping:
        made, mask = node.outputs[0], node.outputs[1] if len(node.outputs) > 1 else None
        inputs = [node.inputs[0], _float_ratio(graph, node), runs]
        new = ir.Node(POET_DOMAIN, _COUNTED_DROPOUT, inputs, [_seed(node)], num_outputs=2, name=node.name)
        kept = new.outputs[1]  # the kernel makes it in any case
        kept.name, kept.type, kept.shape = f"{made.name}/mask", ir.TensorType(ir.DataType.BOOL), made.shape
        replace_nodes(graph, [node], [new], [made] if mask is None or not mask.name else [made, mask])
    for node in drawing:
        made, (operator, defaults) = node.outputs[0], _COUNTED[node.op_type]
        assert made.shape is not None
        numbers = [ir.AttrFloat32(name, node.attributes.get_float(name, number)) for name, number in defaults.items()]
        attributes = [_seed(node), ir.AttrInt64s("shape", made.shape.numpy()), *numbers]
        new = ir.Node(POET_DOMAIN, operator, [runs], attributes, name=node.name)
        replace_nodes(graph, [node], [new], [made])


def _seed(node: ir.Node) -> ir.Attr:
    """Return the seed as a whole number; ONNX's operators but Dropout have a real one."""
    seed = node.attributes.get("seed")
    return ir.AttrInt64("seed", 0 if seed is None else int(seed.value))


def _is_drawn(node: ir.Node) -> bool:
    """Return whether a node draws single numbers of a known shape in each run."""
    if node.domain not in ONNX_DOMAINS or node.op_type not in _COUNTED:
        return False
    made = node.outputs[0]
    return made.dtype == ir.DataType.FLOAT and made.shape is not None and made.shape.is_static()


def seeds(model: ir.Model) -> dict[str, int]:
    """Return the seed of every node that draws from the number of runs, by the name of its first output."""
    counted = (node for node in model.graph if node.domain == POET_DOMAIN and node.op_type in _ALL_COUNTED)
    return {node.outputs[0].name or "": node.attributes.get_int("seed", 0) for node in counted}


def unresumable(model: ir.Model) -> tuple[str, ...]:
    """Return the operators that draw numbers which do not follow from the number of runs, each once."""
    return tuple(sorted({node.op_type for node in _drawing(model.graph)}))


def _drawing(graph: ir.Graph) -> Iterator[ir.Node]:
    for node in graph:
        if spec_of(node.domain, node.op_type, plain_attributes(node)).random and not _keeps_all(node):
            yield node


def _is_countable(node: ir.Node) -> bool:
    """Return whether a node is a dropout that draws in each run, by a ratio that is known."""
    if not _is_dropout(node) or _keeps_all(node) or node.inputs[0] is None or node.inputs[0].dtype not in _TYPES:
        return False
    ratio = _ratio(node)
    return ratio is not None and 0 < ratio < 1 and bool(_constant(node, 2))


def _keeps_all(node: ir.Node) -> bool:
    """Return whether a node is a dropout that never draws."""
    if not _is_dropout(node):
        return False
    training = _constant(node, 2)
    is_off = len(node.inputs) < 3 or node.inputs[2] is None or (training is not None and not training)
    return is_off or _ratio(node) == 0


def _check_ratio(node: ir.Node) -> None:
    ratio = _ratio(node) if _is_dropout(node) and not _keeps_all(node) else None
    if ratio is not None and not 0 <= np.float32(ratio) < 1:
        raise InputError(
            f"The {describe(node)} has the ratio {ratio:g}, but it must be at least 0 and, in single precision, less "
            "than 1."
        )


def _is_dropout(node: ir.Node) -> bool:
    return node.op_type == "Dropout" and node.domain in ONNX_DOMAINS


def _constant(node: ir.Node, index: int) -> bool | float | None:
    """Return an input of one element whose value is known."""
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None or value.const_value is None or value.is_graph_input():
        return None
    array = constant_array(value.name or "", value.const_value)
    return array.reshape(-1)[0].item() if array.size == 1 else None


def _ratio(node: ir.Node) -> float | None:
    """Return a dropout's ratio, None where it is not known."""
    if len(node.inputs) < 2 or node.inputs[1] is None:
        return _DEFAULT_RATIO
    ratio = _constant(node, 1)
    return None if ratio is None else float(ratio)


def _float_ratio(graph: ir.Graph, node: ir.Node) -> ir.Value:
    """Return a dropout's ratio as a constant of float32."""
    given = node.inputs[1] if len(node.inputs) > 1 else None
    if given is not None and given.dtype == ir.DataType.FLOAT:
        return given
    return tensor_initializer(graph, ir.tensor(np.float32(_ratio(node)), name=f"{node.name}/ratio"))
