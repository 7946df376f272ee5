"""What torch's exporters leave out of their files, whose numbers or gradients are others, though the files tell."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

import onnx_ir as ir

from poet_onnx.description.names import STOPS_GRADIENT
from poet_onnx.errors import quoted
from poet_onnx.gradients.paths import OF_SHAPE
from poet_onnx.gradients.torch_arguments import CALL, names_of, others

_ARGUMENTS = r"\.\w+\]\(args = \((?:[^,()]+, )"
_SMOOTHED = re.compile(rf"cross_entropy_loss(?:{_ARGUMENTS}{{5}}|.*label_smoothing: )([\d.e-]+)")
_DROPS = re.compile(rf"scaled_dot_product_attention(?:{_ARGUMENTS}{{4}}|.*dropout_p: )([\d.e-]+)")
_MEANS = re.compile(r"\bscatter_reduce\.\w+\]\(args = \(.*, mean\)")
_TRACKS = re.compile(r"\binstance_norm\.\w+\]\(args = \((?:[^,()]+, ){3}%\w+, %\w+, True\b")
_DIVIDES = re.compile(
    r"\bavg_pool\dd\.\w+\]\((?:args = \(%\w+, (?:\[[^\]]*\], ){3}\w+, \w+, \d|.*divisor_override: \d)"
)
_DETACHED = re.compile(r"detach(?:_\d+)?")
_ADVICE = "poet_onnx.torch.export writes it as torch computes it."
_TRACKED = "the running statistics of instance_norm"
_DIVIDED = "the divisor_override of avg_pool"
_OTHERWISE = {
    _TRACKED: "evaluation has not torch's numbers. Make it with track_running_stats=False.",
    _DIVIDED: "multiply a plain average in its place.",
}
"""What to do about what `poet_onnx.torch.export` refuses."""


def warn_of_forgotten(graph: ir.Graph, trained: Collection[str], warn: Callable[[str], None]) -> None:
    """Warn of what the calls of a file have that its nodes have not.

    Args:
        graph: of the model, as the exporter wrote it.
        trained: names of what is trained.
        warn: called with a sentence about each kind.
    """
    calls = {node.name or "": node.metadata_props.get(CALL, "") for node in graph}
    forgotten = {
        "the label smoothing of cross_entropy": [name for name, call in calls.items() if _is_more(_SMOOTHED, call)],
        "the mean of scatter_reduce": [name for name, call in calls.items() if _MEANS.search(call)],
        "the dropout of attention": [name for name, call in calls.items() if _is_more(_DROPS, call)],
        _TRACKED: [name for name, call in calls.items() if _TRACKS.search(call)],
        _DIVIDED: [name for name, call in calls.items() if _DIVIDES.search(call)],
        "detach, so that gradients flow through it": [*_without_detach(graph, trained), *_of_dora(graph, trained)],
    }
    for what, nodes in forgotten.items():
        if nodes:
            warn(f"torch's exporter left out {what} ({quoted(nodes, 1)}): {_OTHERWISE.get(what, _ADVICE)}")


def _is_more(pattern: re.Pattern[str], call: str) -> bool:
    found = pattern.search(call)
    return found is not None and float(found[1]) > 0


def _without_detach(graph: ir.Graph, trained: Collection[str]) -> list[str]:
    """Return the nodes that read what depends on a trained parameter, where their call has what was detached."""
    reached = {value for name, value in graph.initializers.items() if name in trained}
    found = []
    for node in graph:
        if node.op_type in OF_SHAPE:
            continue
        read = {value.name for value in node.inputs if value is not None}
        detached = {name for name in names_of(node) if _DETACHED.fullmatch(name)}
        if not detached <= read and not reached.isdisjoint(others(node)):  # a file without optimization has the detach
            found.append(node.name or "")
        if not reached.isdisjoint(node.inputs):
            reached.update(node.outputs)
    return found


def _of_dora(graph: ir.Graph, trained: Collection[str]) -> list[str]:
    """Return DoRA's lengths of weights in a file that tells of no calls, as those of the legacy exporter.

    PEFT divides by norms that it detaches, and such a file has nothing of them but the names of what it multiplies by.
    """
    if any(CALL in node.metadata_props or STOPS_GRADIENT in node.metadata_props for node in graph):
        return []
    return [name for name in trained if ".lora_magnitude_vector." in name]
