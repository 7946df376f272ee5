"""Graph passes: onnx_ir passes that normalize a training graph and carry a plan out on it."""

from __future__ import annotations

from poet_onnx.passes.expand import ChainOperands, ExpandDivGrad, ExpandFunctions
from poet_onnx.passes.normalize import (
    FixDims,
    FoldConstants,
    FoldShapes,
    InlineFunctions,
    NameNodes,
    PinSeeds,
    WriteShapes,
    normalize,
)

__all__ = [
    "ChainOperands",
    "ExpandDivGrad",
    "ExpandFunctions",
    "FixDims",
    "FoldConstants",
    "FoldShapes",
    "InlineFunctions",
    "NameNodes",
    "PinSeeds",
    "WriteShapes",
    "normalize",
]
