"""Low-rank adapters beside the frozen weights of a forward model, with the numbers that PEFT begins with."""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from poet_onnx.adapters.lora import ADAPTERS_KEY, CONVOLUTION, EMBEDDING, Adapter, Adapters, Lora
from poet_onnx.adapters.patterns import pattern_for
from poet_onnx.description.names import STOPS_GRADIENT
from poet_onnx.errors import InputError, quoted
from poet_onnx.gradients.adapter_targets import Reader, Weight, find_shared, find_weights
from poet_onnx.gradients.parameters import matches
from poet_onnx.passes.node_builder import initializer

_GEOMETRY = ("strides", "pads", "auto_pad")


def add_adapters(model: ir.Model, lora: Lora, *, trained: Collection[str], freeze: Sequence[str]) -> Adapters:
    """Put adapters beside the weights that are named; their numbers are initializers, as PEFT begins with them.

    Args:
        model: a forward model; changed in place, its metadata too.
        lora: what is asked for.
        trained: names of what is trained itself.
        freeze: patterns of names of weights that get none.

    Raises:
        InputError: if a pattern names no weight, or a weight cannot have such an adapter.
    """
    weights = find_weights(model.graph)
    chosen = [weight for weight in _matching(weights, lora.patterns) if not _matches(weight, freeze)]
    if not chosen:
        raise InputError(f"All weights that {quoted(lora.patterns)} names are frozen: no adapter is left to train.")
    _check(chosen, lora, trained)
    _check_patterns([weight.module or weight.name for weight in chosen], lora)
    written = {weight.name for weight in chosen}
    shared = tuple(find_shared(model.graph, [weight for weight in weights if weight.name not in written]))
    adapters = Adapters(lora, tuple(_Writer(model.graph, lora, weight).write() for weight in chosen), shared)
    model.metadata_props[ADAPTERS_KEY] = adapters.to_json()
    return adapters


def _matches(weight: Weight, patterns: Sequence[str]) -> bool:
    return any(matches(name, patterns) for name in weight.names)


def _matching(weights: Sequence[Weight], patterns: Sequence[str]) -> list[Weight]:
    """Return the weights that patterns name; each pattern must name one."""
    for pattern in patterns:
        if not any(_matches(weight, [pattern]) for weight in weights):
            known = quoted([weight.names[-1] for weight in weights]) or "none"
            raise InputError(
                f"No weight of a MatMul, Gemm, Conv or Gather is named '{pattern}', which lora targets; the model has "
                f"{known}."
            )
    return [weight for weight in weights if _matches(weight, patterns)]


def _check(weights: Iterable[Weight], lora: Lora, trained: Collection[str]) -> None:
    """Check that weights can have adapters; all that cannot are named at once."""
    found: dict[str, list[str]] = {}
    for weight in weights:
        problem = _problem(weight, lora, trained)
        if problem:
            found.setdefault(problem, []).append(weight.names[-1])
    if found:
        listed = "; ".join(f"{quoted(names)} ({problem})" for problem, names in sorted(found.items()))
        raise InputError(f"These weights cannot have adapters: {listed}. Name other targets, or freeze these.")


def _check_patterns(names: Sequence[str], lora: Lora) -> None:
    """Check that each pattern of ranks and alphas tells that of a module."""
    for key, patterns in (("rank_pattern", lora.rank_pattern), ("alpha_pattern", lora.alpha_pattern)):
        for pattern in patterns:
            if not any(pattern_for({pattern: 1}, name, 0) for name in names):
                raise InputError(f"No module with an adapter matches '{pattern}' of {key}: there are {quoted(names)}.")


def _problem(weight: Weight, lora: Lora, trained: Collection[str]) -> str:
    """Return why a weight cannot have an adapter; empty if it can."""
    smallest, rank = min(_sizes(weight)), lora.rank_of(weight.module or weight.name)
    is_convolution = len(weight.shape) > 2
    if weight.value.dtype != ir.DataType.FLOAT and not weight.is_quantized:
        problem = f"numbers of type {weight.value.dtype}, where only float32 can be trained"
    elif weight.name in trained:
        problem = "trained themselves"
    elif weight.others:
        problem = f"also read by {weight.others[0].op_type} '{weight.others[0].name}', which an adapter does not reach"
    elif smallest < rank:
        problem = f"of rank {smallest} at most, below {rank}"
    elif is_convolution and rank % weight.groups:
        problem = f"convolutions of {weight.groups} groups, of which a rank of {rank} is no multiple"
    elif is_convolution and any(set(_dilations(reader.node)) - {1} for reader in weight.readers):
        problem = "dilated convolutions, for which PEFT has none"
    else:
        problem = ""
    return problem


def _dilations(node: ir.Node) -> Sequence[int]:
    return node.attributes.get_ints("dilations", ()) or ()


def _sizes(weight: Weight) -> tuple[int, int]:
    """Return the sizes of a weight as a matrix."""
    return weight.shape[0], math.prod(weight.shape[1:]) * (weight.groups if len(weight.shape) > 2 else 1)


@dataclass
class _Writer:
    """Writes the adapter of one weight."""

    graph: ir.Graph
    lora: Lora
    weight: Weight

    def write(self) -> Adapter:
        """Write A and B, and beside each node that reads the weight what it adds."""
        weight = self.weight
        self.main = weight.readers[0]
        adapter = Adapter(
            module=weight.module,
            weight=weight.name,
            kind=self.main.kind,
            transposed=self.main.transposed,
            tied=weight.tied,
            alike=weight.alike,
            groups=weight.groups if self.main.kind == CONVOLUTION else 1,
            sums=tuple(_summed(reader).outputs[0].name or "" for reader in weight.readers),
        )
        self.scale = self.lora.scale_of(adapter.name)
        first, second = _first_values(adapter, weight.shape, self.lora)
        self.first = initializer(self.graph, adapter.first, first)
        self.second = initializer(self.graph, adapter.second, second)
        for reader in weight.readers:
            self._write_beside(reader)
        return adapter

    def _write_beside(self, reader: Reader) -> None:
        node, kind, summed = reader.node, reader.kind, _summed(reader)
        builder = _AdapterBuilder(self.graph, summed)
        place = 1 if kind == EMBEDDING else 0
        source = node.inputs[place]
        assert source is not None
        first, second = self.first, self.second
        if reader.transposed != self.main.transposed:  # the other way round: (A B)' = B' A'
            first, second = builder.op("Transpose", second, perm=[1, 0]), builder.op("Transpose", first, perm=[1, 0])
        if kind != EMBEDDING and self.lora.dropout:
            source = builder.op(
                "Dropout", source, self._shared("dropout", self.lora.dropout), self._shared("train", True)
            )
        if node.op_type == "Gemm" and node.attributes.get_int("transA", 0) == 1:
            source = builder.op("Transpose", source, perm=[1, 0])
        scale = self.scale * (node.attributes.get_float("alpha", 1.0) if node.op_type == "Gemm" else 1.0)
        geometry = {name: node.attributes[name] for name in _GEOMETRY if name in node.attributes}
        if kind == CONVOLUTION:
            low = builder.op("Conv", source, first, **geometry)
        elif kind == EMBEDDING:
            low = builder.op("Gather", first, source)
            if summed is not node:  # as in PEFT, A's row of the padding stands still, and B learns from it
                padding = summed.inputs[0]
                assert padding is not None
                still = builder.op("Identity", low)
                still.producer().metadata_props[STOPS_GRADIENT] = "1"  # type: ignore[union-attr]
                low = builder.op("Where", padding, still, low)
        else:
            low = builder.op("MatMul", source, first)
        if scale != 1.0:
            low = builder.op("Mul", low, self._shared("scale", scale))
        if kind == CONVOLUTION:
            high = builder.op("Conv", low, second, group=self.weight.groups)
        else:
            high = builder.op("MatMul", low, second)
        builder.add(high)

    def _shared(self, what: str, value: float | bool) -> ir.Value:
        """Return a constant that all adapters share."""
        name = f"lora/{what}/{value}"
        known = self.graph.initializers.get(name)
        if known is not None:
            return known
        return initializer(self.graph, name, np.array(value, np.bool_ if isinstance(value, bool) else np.float32))


def _summed(reader: Reader) -> ir.Node:
    """Return the node behind which an adapter adds: the reader, or what keeps gradients of the padding from its table.

    `poet_onnx.torch.export` writes the latter, for torch's `padding_idx`.
    """
    found = reader.node.outputs[0]
    for node, index in found.uses() if reader.kind == EMBEDDING else ():
        if node.op_type == "Where" and index == 2 and _is_stopped(node.inputs[1], found):
            return node
    return reader.node


def _is_stopped(value: ir.Value | None, source: ir.Value) -> bool:
    """Return whether a value is another one, through which no gradient flows."""
    stops = False
    while value is not source:
        node = None if value is None else value.producer()
        if node is None or node.op_type != "Identity":
            return False
        stops = stops or STOPS_GRADIENT in node.metadata_props
        value = node.inputs[0]
    return stops


class _AdapterBuilder:
    """Writes nodes behind a node, one after the other."""

    def __init__(self, graph: ir.Graph, node: ir.Node) -> None:
        self._graph, self._node, self._last, self._written = graph, node, node, 0

    def op(self, op_type: str, *inputs: ir.Value, **attributes: Any) -> ir.Value:
        """Write a node and return its output."""
        name = f"{self._node.name}/lora/{op_type}_{self._written}"
        self._written += 1
        kept = [
            value if isinstance(value, ir.Attr) else ir.convenience.convert_attribute(key, value)
            for key, value in attributes.items()
        ]
        node = ir.Node("", op_type, inputs, kept, num_outputs=1, name=name)
        node.outputs[0].name = f"{name}_output"
        self._graph.insert_after(self._last, node)
        self._last = node
        return node.outputs[0]

    def add(self, value: ir.Value) -> None:
        """Add a value to the node's output; the sum takes its name and its readers."""
        base = self._node.outputs[0]
        total = self.op("Add", base, value)
        for reader, index in tuple(base.uses()):
            if reader is not total.producer():
                reader.replace_input_with(index, total)
        for index, output in enumerate(self._graph.outputs):
            if output is base:
                self._graph.outputs[index] = total
        name = base.name
        base.name = f"{self._node.name}/lora/base"
        total.name, total.type, total.shape = name, base.type, base.shape


def _first_values(
    adapter: Adapter, shape: Sequence[int], lora: Lora
) -> tuple[np.ndarray[Any, np.dtype[np.float32]], np.ndarray[Any, np.dtype[np.float32]]]:
    """Return the A and B that PEFT begins with, whose product is 0.

    A has the numbers of torch's `kaiming_uniform_(a=sqrt(5))`, uniform up to the reciprocal root of what enters; of an
    embedding A is 0, and B has normal ones. They depend on the seed and the adapter's name alone.
    """
    draw = np.random.RandomState([lora.seed, zlib.crc32(adapter.first.encode())])  # its numbers never change
    rank = lora.rank_of(adapter.name)
    if adapter.kind == CONVOLUTION:
        first_shape: tuple[int, ...] = (rank, shape[1] * adapter.groups, *shape[2:])
        second_shape: tuple[int, ...] = (shape[0], rank // adapter.groups, *(1,) * (len(shape) - 2))
        entering = math.prod(first_shape[1:])
    else:
        entering, leaving = reversed(shape) if adapter.transposed else shape
        first_shape, second_shape = (entering, rank), (rank, leaving)
    if adapter.kind == EMBEDDING:
        return np.zeros(first_shape, np.float32), draw.standard_normal(second_shape).astype(np.float32)
    limit = 1 / math.sqrt(entering)
    return draw.uniform(-limit, limit, first_shape).astype(np.float32), np.zeros(second_shape, np.float32)
