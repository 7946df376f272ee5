"""The gradient of a rotary embedding."""

from __future__ import annotations

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.gradients.builder import GradientBuilder
from poet_onnx.gradients.registry import gradient_of
from poet_onnx.graph.operators.rotary import ROTATE


@gradient_of(ROTATE, domain=POET_DOMAIN, stops=(1, 2))
def rotate(builder: GradientBuilder) -> None:
    """Rotate the other way round; angles are constant."""
    how = {**builder.attributes, "inverse": 1 - builder.attributes["inverse"]}
    tables = builder.input(1), builder.input(2)
    builder.send(0, builder.op(ROTATE, builder.gradient(), *tables, domain=POET_DOMAIN, **how))
