"""The random numbers of a training step, and how to go on with them after a restart.

ONNX Runtime's CPU kernels of the Dropout family keep one number: it starts as the node's `seed` and grows by one with
every run that draws, which seeds a generator from it (RandomGenerator in onnxruntime/core/framework/random_generator.h
and onnxruntime/core/providers/cpu/nn/dropout_op.h of github.com/microsoft/onnxruntime, v1.19.2). So a session whose
seeds are larger by the number of past runs goes on exactly where those runs ended.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from poet_onnx.errors import InputError
from poet_onnx.extract.build import plain_attributes
from poet_onnx.operators import traits

_COUNTING = frozenset(("Dropout", "BitmaskDropout", "BiasDropout", "BitmaskBiasDropout"))


def seeds(model: ir.Model) -> dict[str, int]:
    """Return the seed of every node whose random numbers can be resumed, by the name of its first output.

    Args:
        model: one whose seeds are pinned.
    """
    return {node.outputs[0].name or "": int(node.attributes.get_int("seed", 0)) for node in _counting(model)}


def advance(model: ir.Model, runs: int) -> None:
    """Make a model draw what it would draw after a number of runs; changes the seeds."""
    for node in _counting(model):
        node.attributes["seed"] = ir.AttrInt64("seed", node.attributes.get_int("seed", 0) + runs)


def check_resumable(model: ir.Model) -> None:
    """Check that the random numbers of a model can be resumed.

    Raises:
        InputError: if a node's generator keeps more than a count of runs.
    """
    others = sorted({node.op_type for node in _drawing(model)} - {node.op_type for node in _counting(model)})
    if others:
        raise InputError(
            f"Training with {', '.join(others)} cannot be resumed exactly, as ONNX Runtime does not tell the state of "
            "their generators: draw these numbers outside and feed them as inputs."
        )


def _drawing(model: ir.Model) -> Iterator[ir.Node]:
    for node in model.graph:
        if traits(node.domain, node.op_type, plain_attributes(node)).random:
            yield node


def _counting(model: ir.Model) -> Iterator[ir.Node]:
    return (node for node in _drawing(model) if node.op_type in _COUNTING)
