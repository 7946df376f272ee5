"""What operators do: one declaration for each, `spec_of` to find it, and files by family to write it in."""

from __future__ import annotations

from poet_onnx.graph.operators.registry import SPECS, spec_of
from poet_onnx.graph.operators.spec import (
    BUFFER,
    KNOWN_DOMAINS,
    MICROSOFT_DOMAIN,
    ONNX_DOMAINS,
    Call,
    OpSpec,
    Schema,
    StorageWork,
    Work,
)

__all__ = [
    "BUFFER",
    "KNOWN_DOMAINS",
    "MICROSOFT_DOMAIN",
    "ONNX_DOMAINS",
    "SPECS",
    "Call",
    "OpSpec",
    "Schema",
    "StorageWork",
    "Work",
    "spec_of",
]
