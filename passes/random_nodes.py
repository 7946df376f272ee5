"""The random numbers of a training step: which of them can be gone on with after a restart.

ONNX Runtime's CPU kernels of the Dropout family keep one number: it starts as the node's `seed` and grows by one with
every run that draws, which seeds a generator from it (RandomGenerator in onnxruntime/core/framework/random_generator.h
and onnxruntime/core/providers/cpu/nn/dropout_op.h of github.com/microsoft/onnxruntime, v1.19.2). So a session whose
seeds are larger by the number of past runs goes on exactly where those runs ended.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from poet_onnx.graph.extract import plain_attributes
from poet_onnx.graph.operators import spec_of

_COUNTING = frozenset(("Dropout", "BitmaskDropout", "BiasDropout", "BitmaskBiasDropout"))


def seeds(model: ir.Model) -> dict[str, int]:
    """Return the seed of every node whose random numbers can be resumed, by the name of its first output.

    Args:
        model: one whose seeds are pinned.
    """
    counting = (node for node in _drawing(model) if node.op_type in _COUNTING)
    return {node.outputs[0].name or "": int(node.attributes.get_int("seed", 0)) for node in counting}


def unresumable(model: ir.Model) -> tuple[str, ...]:
    """Return the operators whose generator keeps more than a count of runs, each once."""
    return tuple(sorted({node.op_type for node in _drawing(model)} - _COUNTING))


def _drawing(model: ir.Model) -> Iterator[ir.Node]:
    for node in model.graph:
        if spec_of(node.domain, node.op_type, plain_attributes(node)).random:
            yield node
