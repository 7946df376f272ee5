"""Casts that ONNX Runtime drops from whatever it loads, at every level of optimization."""

from __future__ import annotations

import onnx_ir as ir
from onnx_ir.passes import PassResult

from poet_onnx.graph.operators import ONNX_DOMAINS
from poet_onnx.graph.shapes import TensorType, infer
from poet_onnx.passes.structured import StructuredPass

NUMBERS = {
    ir.DataType.BOOL: (0, 1, 0),
    **{ir.DataType[f"UINT{bits}"]: (0, bits, 0) for bits in (8, 16, 32, 64)},
    **{ir.DataType[f"INT{bits}"]: (1, bits - 1, 0) for bits in (8, 16, 32, 64)},
    ir.DataType.FLOAT16: (1, 11, 5),
    ir.DataType.BFLOAT16: (1, 8, 8),
    ir.DataType.FLOAT: (1, 24, 8),
    ir.DataType.DOUBLE: (1, 53, 11),
}
"""Bits of the sign, of the digits and of the exponent, of each type that the rule knows."""


class MergeCasts(StructuredPass):
    """Drop casts to the type that a value has, and the first of two casts, by ONNX Runtime's own rule.

    It is that of `RemoveDuplicateCastTransformer` (measured with 1.19.2 and 1.31.1), which no option turns off: a plan
    that holds such a cast is not what runs.
    """

    def call(self, model: ir.Model) -> PassResult:
        """Drop them; what the runtime computes keeps its bits."""
        graph = model.graph
        casts = [node for node in graph if _is_cast(node)]
        if not casts:
            return PassResult(model, modified=False)
        types = infer(model).types
        dropped = [node for node in casts if _drops(node, types)]
        for node in dropped:
            graph.remove(node, safe=True)
        return PassResult(model, modified=bool(dropped))


def _is_cast(node: ir.Node) -> bool:
    return node.op_type == "Cast" and node.domain in ONNX_DOMAINS


def _drops(node: ir.Node, types: dict[str, TensorType]) -> bool:
    """Let readers of a cast read what it reads, where the runtime would; return whether nobody reads it any more."""
    (source, *_), (output, *_) = node.inputs, node.outputs
    if source is None:
        return False
    before, after = _dtype(source, types), _dtype(output, types)
    if before is not after:
        readers = [reader for reader, _ in output.uses()]
        casts = [reader for reader in readers if _is_cast(reader)]
        targets = [_dtype(reader.outputs[0], types) for reader in casts]
        if not all(_merges(before, after, target) for target in targets):
            return False
        alone = len(casts) == len(readers) and not output.is_graph_output()
        for reader, target in zip(casts, targets, strict=True):
            back = target is before and not reader.outputs[0].is_graph_output()
            if alone or back:
                reader.replace_input_with(0, source)
    elif not output.is_graph_output():
        output.replace_all_uses_with(source)
    return not output.uses() and not output.is_graph_output()


def _merges(before: ir.DataType, between: ir.DataType, after: ir.DataType) -> bool:
    """Return whether the runtime takes two casts for one: the first loses nothing, or nothing that the second keeps."""
    if not {before, between, after} <= NUMBERS.keys():
        return False
    return _holds(between, before) or (_holds(between, after) and after not in (between, ir.DataType.BOOL))


def _holds(dtype: ir.DataType, other: ir.DataType) -> bool:
    """Return whether a type has all numbers of another one."""
    return all(own >= theirs for own, theirs in zip(NUMBERS[dtype], NUMBERS[other], strict=True))


def _dtype(value: ir.Value, types: dict[str, TensorType]) -> ir.DataType:
    return ir.DataType(types[value.name or ""].dtype)
