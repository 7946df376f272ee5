"""What to write in torch in the place of an operator that cannot be trained; docs/exporters.md has the code."""

from __future__ import annotations

from collections.abc import Iterable

SECTION = "What to write instead"
"""Heading of the code in docs/exporters.md."""

_ROUNDING = "fake quantization as rounding whose error is detached"
_INSTEAD = {
    "Loop": "nn.EmbeddingBag as nn.Embedding and a mean or sum over the words",
    "ScatterElements": "the largest of scattered rows with index_add of those that are the largest",
    "STFT": "stft as a convolution with cosines and sines",
    "NonZero": "x[mask] with torch.where over all places, routing with every expert for all rows, times a weight that"
    " is 0 where it was not chosen",
    "QuantizeLinear": _ROUNDING,
    "DequantizeLinear": _ROUNDING,
}


def in_torch(operators: Iterable[str]) -> str:
    """Return a sentence on what to write in torch instead, with a space before it; empty where nothing is known.

    Args:
        operators: names, behind which a reason may stand, such as "ScatterElements (its reduction is max)".
    """
    names = {each.split(" ")[0] for each in operators}
    known = dict.fromkeys(words for name, words in _INSTEAD.items() if name in names)
    return f" In torch write {'; '.join(known)}: docs/exporters.md, '{SECTION}', has the code." if known else ""
