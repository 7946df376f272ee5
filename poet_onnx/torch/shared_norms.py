"""A batch normalization that trains is called once in a step: its running statistics can move once."""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir

from poet_onnx.errors import InputError
from poet_onnx.gradients.batch_norm import exported_to_train
from poet_onnx.graph.operators import ONNX_DOMAINS

_MEAN = 3
"""Which input is the running mean."""


def refuse_shared_norms(model: ir.Model) -> None:
    """Refuse a batch normalization that trains and is called several times, as in a siamese network.

    torch moves its statistics at each call, in the order of the calls, which nodes that move them in place do not keep.

    Args:
        model: as traced, with the names of the module.

    Raises:
        InputError: naming the first one.
    """
    nodes = [node for node in model.graph if node.op_type == "BatchNormalization" and node.domain in ONNX_DOMAINS]
    for name, count in Counter(filter(None, map(_statistic, filter(exported_to_train, nodes)))).items():
        if count > 1:
            raise InputError(
                f"The batch normalization '{name.rpartition('.')[0]}' is called {count} times in a step, but its"
                " running statistics can move once: call it once, with all samples (torch.cat), or set it to eval mode."
            )


def _statistic(node: ir.Node) -> str:
    """Return the name of a running mean, of which the dynamo exporter writes a copy for each later call."""
    value = node.inputs[_MEAN]
    while value is not None and (maker := value.producer()) is not None and maker.op_type == "Identity":
        value = maker.inputs[0]
    return "" if value is None or not value.is_initializer() else value.name or ""
