"""Which frozen weights of a forward model are quantized while its training graph is made.

Rules:
    K1. A matrix of floats that is not trained, and that products and look-ups alone read, has few bits from then on.
    K2. Blocks run along what products sum up; of a table that look-ups alone read, along its rows.
    K3. What is small stays as it is, as does what would not fill bytes with the codes of a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

import onnx_ir as ir

from poet_onnx.adapters.lora import LINEAR
from poet_onnx.errors import InputError, quoted
from poet_onnx.gradients.adapter_targets import Weight, find_weights
from poet_onnx.passes.normalize import Normalization
from poet_onnx.passes.quantized.blocks import LEAST_BLOCK
from poet_onnx.passes.quantized.quantize import Quantizable, QuantizeWeights

WIDTHS = {"4bit": 4, "8bit": 8}
"""Bits of a code, by what users say."""

BLOCK = 32
"""Codes with one scale: what ONNX Runtime's generation builder takes."""

_LEAST_NUMBERS = 1024
_BYTE = 8


_LARGE_BYTES = 1 << 20
"""Of a frozen tensor: so large a one is told of where it keeps its floats."""


def quantize_frozen(model: ir.Model, how: str, trained: Collection[str], warn: Callable[[str], None]) -> None:
    """Quantize the frozen weights of a model; changes it.

    Args:
        model: of opset 21 or later.
        how: one of `WIDTHS`.
        trained: names of what is trained.
        warn: told which large ones keep their floats.

    Raises:
        InputError: if there is no such weight.
    """
    found = (_quantizable(weight) for weight in find_weights(model.graph) if weight.name not in trained)
    weights = tuple(each for each in found if each is not None)
    if not weights:
        raise InputError("No frozen weight is left to quantize: train adapters with --lora, or less with --train.")
    done = {each.value.name for each in weights} | set(trained)
    large = [value for value in model.graph.initializers.values() if value.name not in done and _is_large(value)]
    if large:
        size_bytes = sum(each.const_value.nbytes for each in large if each.const_value is not None)
        warn(
            f"Frozen tensors of {size_bytes:,} bytes keep their floats, as --quantize takes matrices of products and "
            f"look-ups alone: {quoted(each.name for each in large)}."
        )
    Normalization(QuantizeWeights(weights, WIDTHS[how], BLOCK))(model)


def _is_large(value: ir.Value) -> bool:
    tensor = value.const_value
    return tensor is not None and tensor.dtype == ir.DataType.FLOAT and tensor.nbytes >= _LARGE_BYTES


def _quantizable(weight: Weight) -> Quantizable | None:
    """Return a weight if it is to have few bits (K1 to K3)."""
    if weight.value.dtype != ir.DataType.FLOAT or weight.others or len(weight.shape) != 2:
        return None
    products = [reader for reader in weight.readers if reader.kind == LINEAR]
    turns = bool(products) and not products[0].transposed
    columns = weight.shape[0] if turns else weight.shape[1]
    if math.prod(weight.shape) < _LEAST_NUMBERS or columns < LEAST_BLOCK or columns % (_BYTE // 4):
        return None
    return Quantizable(weight.value, turns)
