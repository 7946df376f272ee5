"""A plain forward pass out of a model for generation: no cache, whole sequences, static shapes.

Builders write what a runtime fuses: GroupQueryAttention reads and grows a cache of keys and values, and a mask of
padding says how long each sequence is. In training a sequence is there as a whole, and is padded on the right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult
from onnx_ir.passes.common import RemoveUnusedNodesPass

from poet_onnx.errors import InputError
from poet_onnx.graph.operators import MICROSOFT_DOMAIN, ONNX_DOMAINS
from poet_onnx.graph.shapes import Array
from poet_onnx.passes.generation import attention, norms
from poet_onnx.passes.generation.branches import choose_branches
from poet_onnx.passes.generation.expansion import Constants, Expansion
from poet_onnx.passes.generation.projections import give_torch_names, part_projections, store_tables
from poet_onnx.passes.node_builder import initializer

_GROUPED, _MULTI_HEAD, _SIMPLIFIED = "GroupQueryAttention", "MultiHeadAttention", "SimplifiedLayerNormalization"
_RULES: Mapping[str, Callable[[Expansion], None]] = {
    _GROUPED: attention.group_query_attention,
    _MULTI_HEAD: attention.multi_head_attention,
    "RotaryEmbedding": attention.rotary_embedding,
    _SIMPLIFIED: norms.simplified,
    "SkipSimplifiedLayerNormalization": norms.skip_simplified,
    "SkipLayerNormalization": norms.skip,
}
_CACHES = {_GROUPED: (3, 4), _MULTI_HEAD: (6, 7)}
"""Inputs that are a cache."""

_CACHE, _MASK, _POSITIONS = "past_key_values", "attention_mask", "position_ids"
_KEPT = ("num_logits_to_keep", "logits_to_keep")
"""How names of inputs begin that a training step does not have: the last ones say of how many tokens scores are made,
0 of all (`logits_to_keep` of transformers)."""


def is_for_generation(graph: ir.Graph) -> bool:
    """Return whether a graph attends to a cache of keys and values."""
    return bool(_caches(graph)) or any(node.op_type == _GROUPED and _rule(node) is not None for node in graph)


def _rule(node: ir.Node) -> Callable[[Expansion], None] | None:
    homes = (MICROSOFT_DOMAIN, *(ONNX_DOMAINS if node.op_type == _SIMPLIFIED else ()))
    return _RULES.get(node.op_type) if node.domain in homes else None


class ChooseBranches(InPlacePass):
    """Let a model for generation have the tables of its sequences' length alone. Requires static shapes of tokens."""

    def call(self, model: ir.Model) -> PassResult:
        """Replace each If that is known.

        Raises:
            InputError: if it is not said how long sequences are.
        """
        _, tokens = _sequences(model.graph, _caches(model.graph))
        choose_branches(model.graph, _MASK, tokens)
        return PassResult(model, modified=True)


class ForwardOnly(InPlacePass):
    """Make a plain forward pass of a model for generation. Requires a graph without functions, of opset 18 or later."""

    def __init__(self, targets: Sequence[str] = ()) -> None:
        """Set the patterns of names of weights that are to have adapters."""
        super().__init__()
        self._targets = targets

    def call(self, model: ir.Model) -> PassResult:
        """Write plain nodes.

        Raises:
            InputError: naming a node, or an input, that cannot be trained.
        """
        graph = model.graph
        caches = _caches(graph)
        batch, tokens = _sequences(graph, caches)
        constants = Constants(graph, tokens)
        for cache in caches:
            _check_cache(cache)
        present = {value for node in graph if node.op_type in _CACHES for value in node.outputs[1:]}
        graph.outputs[:] = [
            value for value in graph.outputs if value not in present and not (value.name or "").startswith("present")
        ]
        for node in list(graph):
            if node.op_type == _GROUPED and node.domain == MICROSOFT_DOMAIN:
                _split(graph, node)
        part_projections(graph, self._targets)
        store_tables(graph)
        give_torch_names(graph)
        for node in list(graph):
            rule = _rule(node)
            if rule is not None:
                rule(Expansion(constants, node))
        RemoveUnusedNodesPass()(model)
        _forget_inputs(graph, constants, caches, batch)
        RemoveUnusedNodesPass()(model)
        return PassResult(model, modified=True)


def _caches(graph: ir.Graph) -> list[ir.Value]:
    """Return inputs of the graph that are caches."""
    read = {
        value
        for node in graph
        for index in _CACHES.get(node.op_type, ())
        if node.domain == MICROSOFT_DOMAIN and index < len(node.inputs) and (value := node.inputs[index]) is not None
    }
    return [value for value in graph.inputs if value in read or (value.name or "").startswith(_CACHE)]


def _check_cache(cache: ir.Value) -> None:
    if cache.dtype != ir.DataType.FLOAT:
        said = "of no known type" if cache.dtype is None else f"of {cache.dtype.name.lower()}"
        raise InputError(
            f"The cache '{cache.name}' is {said}, but activations of float32 alone can be trained: build the model for"
            " the CPU (-p int4 -e cpu, or fp32), without a quantized cache."
        )


def _sequences(graph: ir.Graph, caches: Sequence[ir.Value]) -> tuple[int, int]:
    """Return how many sequences a batch has, and how many tokens each."""
    for value in graph.inputs:
        is_other = value in caches or (value.name or "").startswith((_MASK, _POSITIONS))
        if is_other or value.shape is None or len(value.shape) < 2:
            continue
        for index, dim in enumerate(value.shape[:2]):
            if not isinstance(dim, int):
                raise InputError(
                    f"Dimension {index} of the graph input '{value.name}' is not fixed: give the size of "
                    f"'{dim.value}', such as --dim {dim.value}=8."
                )
        batch, tokens = value.shape[:2]
        assert isinstance(batch, int)
        assert isinstance(tokens, int)
        return batch, tokens
    raise InputError("The model for generation has no input [batch, tokens]: build it with its embedding, or without.")


def _split(graph: ir.Graph, node: ir.Node) -> None:
    """Let a GroupQueryAttention of packed queries, keys and values read three values."""
    if len(node.inputs) < 3 or node.inputs[1] is not None or node.inputs[2] is not None:
        return
    packed, name = node.inputs[0], node.name or ""
    heads, fewer = node.attributes.get_int("num_heads", 0), node.attributes.get_int("kv_num_heads", 0)
    writer = Expansion(Constants(graph, 1), node)
    columns = writer.columns(0)
    if min(heads, fewer) < 1 or columns % (heads + 2 * fewer) or packed is None:
        raise writer.refusal(f"its {columns} packed numbers are not those of {heads} + 2 x {fewer} heads")
    width = columns // (heads + 2 * fewer)
    sizes = [heads * width, fewer * width, fewer * width]
    given = initializer(graph, f"{name}/sizes", np.array(sizes, np.int64))
    split = ir.Node("", "Split", [packed, given], [ir.AttrInt64("axis", -1)], num_outputs=3, name=f"{name}/Split")
    for index, (value, size) in enumerate(zip(split.outputs, sizes, strict=True)):
        value.name, value.type = f"{name}/part_{index}", packed.type
        value.shape = None if packed.shape is None else ir.Shape([*packed.shape[:-1], size])
        node.replace_input_with(index, value)
    graph.insert_before(node, split)


def _forget_inputs(graph: ir.Graph, constants: Constants, caches: Sequence[ir.Value], batch: int) -> None:
    """Remove inputs that say what is cached, padding or where tokens are; what still reads them reads constants."""
    for value in list(graph.inputs):
        name = value.name or ""
        if value in caches:
            for node, index in list(value.uses()):
                _read_no_cache(constants, node, index, batch)
        elif name.startswith((_MASK, _POSITIONS, *_KEPT)):
            value.replace_all_uses_with(constants.value(_known(value, batch, constants.tokens)))
        else:
            continue
        graph.inputs.remove(value)


def _known(value: ir.Value, batch: int, tokens: int) -> Array:
    """Return what an input is in a step of whole sequences."""
    name, dtype = value.name or "", (value.dtype or ir.DataType.INT64).numpy()
    if name.startswith(_KEPT):
        return np.zeros([_fixed(size, 1) for size in value.shape or ()], dtype)
    row = np.ones(tokens) if name.startswith(_MASK) else np.arange(tokens)
    return np.tile(row.astype(dtype), (_fixed(value.shape[0], batch) if value.shape else batch, 1))


def _fixed(size: int | ir.SymbolicDim, otherwise: int) -> int:
    return size if isinstance(size, int) else otherwise


def _read_no_cache(constants: Constants, node: ir.Node, index: int, batch: int) -> None:
    """Let a node read what a cache is before the first token: nothing."""
    value = node.inputs[index]
    if node.op_type == "Concat" and node.domain in ONNX_DOMAINS and len(node.inputs) > 1:
        kept = [each for each in node.inputs if each is not value]
        if len(kept) == 1 and kept[0] is not None:
            node.outputs[0].replace_all_uses_with(kept[0], replace_graph_outputs=True)
            return
        node.resize_inputs(len(kept))
        for place, each in enumerate(kept):
            node.replace_input_with(place, each)
        return
    shape = None if value is None else value.shape
    if node.op_type != "Shape" or node.domain not in ONNX_DOMAINS or shape is None or len(shape) != 4:
        raise InputError(
            f"'{node.name}' ({node.op_type}) reads the cache '{value.name if value else ''}', which is not known: give"
            " the model as torch exports it, without a cache."
        )
    sizes = [_fixed(shape[0], batch), _fixed(shape[1], 1), 0, _fixed(shape[3], 1)]
    wanted = slice(node.attributes.get_int("start", 0), node.attributes.get_int("end", len(sizes)))
    node.outputs[0].replace_all_uses_with(constants.value(np.array(sizes[wanted], np.int64)))
