"""Finds an operator's declaration."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from typing import Any

from poet_onnx.graph import operators
from poet_onnx.graph.operators.spec import MICROSOFT_DOMAIN, ONNX_DOMAINS, OpSpec


def _declarations() -> Iterator[OpSpec]:
    """Yield those of every file beside this one that has a list SPECS."""
    for module in pkgutil.iter_modules(operators.__path__, f"{operators.__name__}."):
        if module.name != __name__:
            yield from getattr(importlib.import_module(module.name), "SPECS", ())


SPECS: dict[tuple[str, str], OpSpec] = {(spec.domain, spec.name): spec for spec in _declarations()}
"""Every declaration, by domain and name."""

UNDECLARED = OpSpec("")
"""What is assumed of an operator that nobody declared.

Every output has a buffer of its own; running it again gives the same bits, if ONNX describes the operator; it does one
operation for each element of its largest output, and reads and writes its tensors once; its workspace is an estimate,
as large as all of them.
"""


def spec_of(domain: str, op_type: str, attributes: Mapping[str, Any] | None = None) -> OpSpec:
    """Return the declaration of an operator, `UNDECLARED` if there is none.

    Args:
        domain: of the operator.
        op_type: its name.
        attributes: of a node, which may make another operator of it: BatchNormalization keeps its statistics only with
            training_mode=1.
    """
    own = "" if domain in ONNX_DOMAINS else domain
    spec = SPECS.get((own, op_type)) or SPECS.get((own or MICROSOFT_DOMAIN, op_type), UNDECLARED)
    variant = spec.variant(attributes) if spec.variant is not None and attributes is not None else None
    return variant or spec
