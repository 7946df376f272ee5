"""Which batch normalizations of a forward model train: as they were exported, or as the user says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import onnx_ir as ir

from poet_onnx.choices import ALL, AUTO, NONE
from poet_onnx.errors import InputError, quoted
from poet_onnx.gradients.evidence import is_drawn, unmoved
from poet_onnx.gradients.module_names import module_of
from poet_onnx.gradients.torch_arguments import CALL, names_of
from poet_onnx.graph.extract import plain_attributes
from poet_onnx.graph.operators import ONNX_DOMAINS
from poet_onnx.passes.frozen_batch_norm import named

FIRST_WITH_MODE = 14
"""The opset in which a batch normalization got its attribute `training_mode`."""


_TRAINS = "_native_batch_norm_legit_functional"
"""What torch makes of a batch normalization that trains; the dynamo exporter writes it as for inference."""

_MEAN = 3
"""Which input is the running mean."""

_OF_ANOTHER_CALL = "getitem"
"""How torch's dynamo exporter names the statistics that an earlier call in the step has moved."""


def set_modes(graph: ir.Graph, frozen: str, warn: Callable[[str], None]) -> None:
    """Let each batch normalization train, or keep to its running statistics; changes the graph.

    Args:
        graph: of the forward model.
        frozen: "auto" for the modes in which they were exported, "all", "none", or patterns with commas between them,
            of names of the frozen nodes, their parameters or their statistics.
        warn: called with a sentence about those that were exported for inference.

    Raises:
        InputError: a pattern without a match, or one that trains with a momentum of 0 or in an opset that has no such
            mode, or that is called several times in a step.
    """
    nodes = [node for node in graph if node.op_type == "BatchNormalization" and node.domain in ONNX_DOMAINS]
    free = [node for node in nodes if not _computes_statistics(node)]
    if frozen == AUTO:
        kept = [node for node in nodes if not exported_to_train(node)]
    else:
        kept = nodes if frozen == ALL else [] if frozen == NONE else named(nodes, frozen, "batch normalization")
    for node in free:
        _set_mode(node, trains=node not in kept)
    _check_opset(graph, nodes)
    _check_momentum(nodes)
    _check_calls([node for node in nodes if _trains(node)])
    if frozen == AUTO:
        _warn_of([node for node in free if not _trains(node)], warn)


def exported_to_train(node: ir.Node) -> bool:
    """Return whether a batch normalization trained in the module that torch exported."""
    return _trains(node) or _TRAINS in f"{node.name} {node.metadata_props.get(CALL, '')}"


def _check_opset(graph: ir.Graph, nodes: list[ir.Node]) -> None:
    version = graph.opset_imports.get("", FIRST_WITH_MODE)
    training = [node for node in nodes if _trains(node) or len(node.outputs) > 1]
    if training and version < FIRST_WITH_MODE:
        raise InputError(
            f"Batch normalization '{training[0].name}' is to train, which the model's opset {version} cannot say:"
            f" export the model with opset {FIRST_WITH_MODE} or later."
        )


def _check_momentum(nodes: list[ir.Node]) -> None:
    for node in nodes:
        if _trains(node) and plain_attributes(node).get("momentum", 0.9) == 0:
            raise InputError(
                f"Batch normalization '{node.name}' has momentum 0: its running statistics would be the last batch's."
                " torch's exporters write so not only momentum=1.0, but also momentum=None, the mean over all batches:"
                " set a momentum below 1, such as 0.1, or keep the statistics with --frozen-batch-norm."
            )


def _check_calls(nodes: list[ir.Node]) -> None:
    """Refuse a batch normalization that trains and is called several times, as in a siamese network.

    torch moves its statistics at each call, in the order of the calls, which nodes that move them in place do not keep.
    """
    known = [(node, name) for node in nodes if (name := _running_mean(node))]
    calls = Counter(name for _, name in known)
    for node, name in known:
        if calls[name] > 1 or name.startswith(_OF_ANOTHER_CALL):
            raise InputError(
                f"The batch normalization '{module_of(node) or node.name}' is called several times in a step, but its"
                " running statistics can move once: call it once, with all samples (torch.cat), or set it to eval mode."
            )


def _running_mean(node: ir.Node) -> str:
    """Return the name of the running mean that a node's module has; empty where exporters may have merged equal ones.

    torch's dynamo exporter merges them, but tells what the call is given, and the legacy one keeps a copy for each.
    """
    if _TRAINS in node.metadata_props.get(CALL, ""):
        return names_of(node)[-2]
    value = node.inputs[_MEAN]
    is_one = value is not None and (module_of(node) or is_drawn(unmoved(value)))
    return value.name or "" if value is not None and is_one else ""


def _computes_statistics(node: ir.Node) -> bool:
    """Return whether the model computes the statistics, as of torch's layers with track_running_stats=False."""
    makers = [unmoved(value).producer() for value in node.inputs[_MEAN:] if value is not None]
    return not _trains(node) and any(maker is not None and maker.op_type != "Constant" for maker in makers)


def moves_statistics(node: ir.Node) -> bool:
    """Return whether a node is a batch normalization that trains: each batch moves its running statistics."""
    return node.op_type == "BatchNormalization" and _trains(node)


def _trains(node: ir.Node) -> bool:
    return bool(plain_attributes(node).get("training_mode", 0))


def _warn_of(frozen: list[ir.Node], warn: Callable[[str], None]) -> None:
    if frozen:
        names = (node.name or node.outputs[0].name for node in frozen)
        warn(
            f"Batch normalization {quoted(names, 1)} was exported for inference and keeps to its running statistics:"
            " let all train with --frozen-batch-norm none, or say that it is so with all."
        )


def _set_mode(node: ir.Node, *, trains: bool) -> None:
    if trains == _trains(node):
        return
    for other in node.outputs[1:]:
        if other.uses() or other.is_graph_output():
            raise InputError(f"'{other.name}', a statistic of batch normalization '{node.name}', is read by the model.")
    node.attributes["training_mode"] = ir.AttrInt64("training_mode", int(trains))
    node.resize_outputs(3 if trains else 1)
    for output, ending in zip(node.outputs[1:], ("_running_mean", "_running_var"), strict=False):
        output.name = f"{node.outputs[0].name}{ending}"
