"""Which values of an evaluation graph are outputs of the model itself, and which belong to the loss behind them.

onnxruntime.training.onnxblock (v1.19.2) puts a loss behind a model's outputs, infers the types of all values, of which
a graph's outputs need none, and then lets the loss take the place of the outputs. From that follow the rules:

    O1. What a block makes is named "onnx::<what>::<number>"; what such a node reads of other values is an output.
    O2. A value without a type was an output if its type can be inferred, or was known: what a node makes of it has a
        type, or nobody reads it. This finds outputs that the loss does not read, and those in front of a loss that was
        written without blocks. It says nothing of a graph whose types were removed.
    O3. What the graph returns besides its loss, and no block made, is an output.
    O4. Their order is known if there is one, or if the graph still returns all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from poet_onnx.errors import InputError, quoted
from poet_onnx.gradients.batch_norm import moves_statistics
from poet_onnx.graph.extract.contents import infer_types
from poet_onnx.passes.unread import RemoveUnread

_MADE_BY_BLOCK = re.compile(r"onnx::.+::[0-9]+")
_SHOWN_NAMES = 8
_SMALL_BYTES = 1024

ML_DOMAIN = "ai.onnx.ml"
"""Of operators that take numbers from attributes, and choose: classifiers, trees, labels. None has a gradient."""


def model_outputs(model: ir.Model) -> list[str]:
    """Return the names of the model's own outputs in an evaluation graph, in their order.

    Raises:
        InputError: if the graph does not tell.
    """
    graph = model.graph
    returned = [value for value in graph.outputs[1:] if not _by_block(value)]
    found = dict.fromkeys([*returned, *_read_by_blocks(graph), *_without_type(model)])
    found.pop(graph.outputs[0], None)
    if len(found) == 1 or (found and len(found) == len(returned)):
        return [value.name or "" for value in found]
    if found:
        raise InputError(
            f"The evaluation graph does not tell the order of the model's outputs {_list(found)}: name those to export "
            "in outputs=[...], or give the forward model as model=."
        )
    raise InputError(
        f"The evaluation graph returns '{graph.outputs[0].name}' alone, which the model computes itself, and does not "
        f"tell which of the values before it, such as {_list(_before_labels(graph))}, are outputs: name those to "
        "export in outputs=[...], or give the forward model as model=."
    )


def leave_out_sources(graph: ir.Graph, warn: Callable[[str], None]) -> None:
    """Take what a forward graph returns as it got it, such as an input or a weight, from its outputs.

    Args:
        graph: of the forward model.
        warn: called with a sentence about them.
    """
    sources = [value.name or "" for value in graph.outputs if value.producer() is None]
    if sources:
        graph.outputs[:] = [value for value in graph.outputs if value.producer() is not None]
        warn(
            f"The model returns {quoted(sources, _SHOWN_NAMES)} as it is, an input or a weight: evaluation and exported"
            " models leave it out; let the model return an Identity of it to keep it."
        )


def leave_out_labels(model: ir.Model, needed: Container[str | None], warn: Callable[[str], None]) -> None:
    """Take outputs that operators of ai.onnx.ml make, such as a classifier's label, from a forward model with others.

    Args:
        model: changed in place: what made these outputs alone goes, too.
        needed: names of tensors that stay, for the loss reads them.
        warn: called with a sentence about them.
    """
    graph = model.graph
    chosen = {node for node in graph if node.domain == ML_DOMAIN}
    chosen.update(*(_dependants(value) for node in chosen for value in node.outputs))
    left = [value.name or "" for value in graph.outputs if value.producer() in chosen]
    if left and len(left) < len(graph.outputs):
        kept = [value for value in graph.outputs if value.producer() not in chosen]
        graph.outputs[:] = dict.fromkeys((*kept, *(value for value in _made(graph) if value.name in needed)))
        RemoveUnusedNodesPass()(model)
        graph.outputs[:] = kept
        warn(
            f"Operators of {ML_DOMAIN} make {quoted(left, _SHOWN_NAMES)} of the other outputs: evaluation and exported"
            " models leave it out."
        )


def leave_out_unread(model: ir.Model, loss: str) -> None:
    """Remove the nodes that a loss is not computed of, such as a Softmax of scores that `cross-entropy` reads itself.

    A batch normalization that computes statistics stays, for torch moves them even where nobody reads what it makes. So
    does what reads a large constant that the loss has not: a session has one copy of those that the step and the
    evaluation share. A weight that is transposed or quantized stays with its product, for alone it would be made whole.

    Args:
        model: changed in place; the loss is what it returns then.
        loss: name of a tensor that the model computes.
    """
    graph = model.graph
    graph.outputs[:] = [value for value in _made(graph) if value.name == loss]
    leading = _leading(graph)
    for node in reversed(graph):
        is_read = node in leading or any(value.uses() for value in node.outputs)
        if not is_read and not any(_is_large(value, leading) for value in node.inputs):
            graph.remove(node, safe=True)
    RemoveUnread()(model)


def _leading(graph: ir.Graph) -> set[ir.Node]:
    """Return the nodes that the graph's outputs and the statistics of batches are computed of."""
    leading: set[ir.Node] = set()
    for node in reversed(graph):
        is_read = any(value.is_graph_output() or leading.intersection(value.consumers()) for value in node.outputs)
        if is_read or moves_statistics(node):
            leading.add(node)
    return leading


def _is_large(value: ir.Value | None, leading: set[ir.Node]) -> bool:
    """Return whether a value is a constant of more than a few numbers that no such node reads, or made of one."""
    if value is None or not _is_constant(value):
        return False
    maker = value.producer()
    if maker is not None:
        return any(_is_large(operand, leading) for operand in maker.inputs)
    tensor = value.const_value
    return tensor is not None and tensor.nbytes > _SMALL_BYTES and leading.isdisjoint(value.consumers())


def _is_constant(value: ir.Value | None) -> bool:
    """Return whether a value is a constant, or made of constants."""
    if value is None or value.const_value is not None:
        return True
    maker = value.producer()
    return maker is not None and all(map(_is_constant, maker.inputs))


def _by_block(value: ir.Value) -> bool:
    return _MADE_BY_BLOCK.fullmatch(value.name or "") is not None


def _read_by_blocks(graph: ir.Graph) -> list[ir.Value]:
    """Return what O1 finds."""
    blocks = [node for node in graph if any(map(_by_block, node.outputs))]
    read = [value for node in blocks for value in node.inputs if value is not None]
    return [value for value in read if value.producer() is not None and not _by_block(value)]


def _without_type(model: ir.Model) -> list[ir.Value]:
    """Return what O2 finds."""
    inner = [value for value in _made(model.graph) if not value.is_graph_output()]
    if all(value.type is None for value in inner):
        return []
    typed = model.clone()
    infer_types(typed)
    inferable = {value.name for value in _made(typed.graph) if value.type is not None}
    return [value for value in inner if value.type is None and (value.name in inferable or _was_known(value))]


def _made(graph: ir.Graph) -> list[ir.Value]:
    return [value for node in graph for value in node.outputs if value.name]


def _was_known(value: ir.Value) -> bool:
    if not value.uses():
        return value.index() == 0
    return any(made.type is not None for node in value.consumers() for made in node.outputs)


def _before_labels(graph: ir.Graph) -> list[ir.Value]:
    """Return what is read of other values by the nodes behind the labels: the input that the fewest nodes depend on."""
    behind = min((nodes for value in graph.inputs if (nodes := _dependants(value))), key=len, default=set())
    read = dict.fromkeys(value for node in graph if node in behind for value in node.inputs if value is not None)
    return [value for value in read if (maker := value.producer()) is not None and maker not in behind]


def _dependants(value: ir.Value) -> set[ir.Node]:
    found: set[ir.Node] = set()
    pending = [value]
    while pending:
        for node in pending.pop().consumers():
            if node not in found:
                found.add(node)
                pending.extend(node.outputs)
    return found


def _list(values: dict[ir.Value, None] | list[ir.Value]) -> str:
    return quoted((value.name for value in values), _SHOWN_NAMES)
