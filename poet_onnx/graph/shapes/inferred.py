"""What is found of a graph's tensors, and what of it still holds once passes have changed the graph.

A graph keeps in its `meta` what was found last, and so do its copies. Most passes change few nodes. So a node that
looks as it did then, and whose inputs have the types and values that they had, is not asked again.

Example: of a -> Relu -> b -> Exp -> c -> Neg -> d, a pass makes a -> Relu -> b -> Tanh -> c -> Neg -> d. Tanh alone is
asked: c has the type that it had.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import onnx_ir as ir

from poet_onnx.graph.operators.shape_context import Array, TensorType

_META_KEY = "poet_onnx.inferred"

Look: TypeAlias = tuple[object, ...]
"""All of a node that its outputs depend on, besides the types and values of its inputs."""


@dataclass
class Inferred:
    """What is known of a model's tensors.

    Attributes:
        types: by tensor name.
        values: of small constants, by tensor name.
        asked: nodes that were asked for the types of their outputs; those of all others are known from before.
        dims: sizes of named dimensions that it holds for.
        looks: of nodes, by the name of their first output.
        answers: of ONNX's own inference, by all that was asked.
    """

    types: dict[str, TensorType] = field(default_factory=dict)
    values: dict[str, Array] = field(default_factory=dict)
    asked: int = 0
    dims: dict[str, int] = field(default_factory=dict)
    looks: dict[str, Look] = field(default_factory=dict)
    answers: dict[tuple[Any, ...], list[TensorType | None]] = field(default_factory=dict)

    def keep(self, graph: ir.Graph) -> None:
        """Let the graph and its copies keep it."""
        graph.meta[_META_KEY] = self


class Earlier:
    """What was found of a graph, or of the one that it is a copy of, before passes changed it.

    Args:
        graph: as it is now.
        now: what is found of it.
    """

    def __init__(self, graph: ir.Graph, now: Inferred) -> None:
        kept = graph.meta.get(_META_KEY)
        self._before = kept if isinstance(kept, Inferred) and kept.dims == now.dims else Inferred()
        self._now = now
        self._same: set[str] = set()
        now.answers = self._before.answers

    def compare(self, name: str) -> None:
        """Note whether a tensor has the type and the value that it had."""
        before, now = self._before, self._now
        if before.types.get(name) == now.types[name] and _are_same(before.values.get(name), now.values.get(name)):
            self._same.add(name)

    def knows(self, node: ir.Node, look: Look) -> bool:
        """Return whether a node looks as it did, and its inputs are what they were; what it makes then is, too."""
        before, now = self._before, self._now
        names = [value.name for value in node.outputs if value.name]
        if not names or before.looks.get(names[0]) != look:
            return False
        if any(value is not None and value.name and value.name not in self._same for value in node.inputs):
            return False
        for name in names:
            now.types[name] = before.types[name]
            if name in before.values:
                now.values[name] = before.values[name]
        self._same.update(names)
        now.looks[names[0]] = look
        return True


def look_of(node: ir.Node, version: int) -> Look:
    """Return how a node of an operator's version looks; of tensors among its attributes, only one is like itself."""
    inputs = tuple([None if value is None else value.name for value in node.inputs])
    outputs = tuple([value.name for value in node.outputs])
    return node.domain, node.op_type, version, inputs, outputs, tuple(node.attributes.values())


def _are_same(old: Array | None, new: Array | None) -> bool:
    if old is None or new is None:
        return old is new
    return old is new or (old.dtype == new.dtype and old.shape == new.shape and old.tobytes() == new.tobytes())
