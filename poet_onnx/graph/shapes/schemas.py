"""What ONNX says of operators in the versions that a model imports."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import onnx
import onnx_ir as ir

from poet_onnx.description.names import POET_DOMAIN
from poet_onnx.errors import InputError
from poet_onnx.graph.operators import ONNX_DOMAINS
from poet_onnx.graph.shapes.declared import declared_type, describe


class Schemas:
    """ONNX's schemas of a model's operators.

    Args:
        opsets: versions that the model imports, by domain.
    """

    def __init__(self, opsets: Mapping[str, int]) -> None:
        self._opsets = dict(opsets)
        self._found: dict[tuple[str, str], onnx.defs.OpSchema | None] = {}

    def find(self, node: ir.Node) -> onnx.defs.OpSchema | None:
        """Return the schema of a node's operator; None if ONNX has none, or the model imports no version of it."""
        key = node.domain, node.op_type
        if key not in self._found:
            self._found[key] = None
            domain, version = self._import(node)
            if version is not None:
                with contextlib.suppress(onnx.defs.SchemaError):
                    self._found[key] = onnx.defs.get_schema(node.op_type, version, domain)
        return self._found[key]

    def version(self, node: ir.Node) -> int:
        """Return the version in which a node's operator became what it is; 0 if ONNX has none."""
        schema = self.find(node)
        return 0 if schema is None else schema.since_version

    def of(self, node: ir.Node, dims: Mapping[str, int]) -> onnx.defs.OpSchema | None:
        """Return the schema of a node's operator, or None for one of ONNX Runtime that only the model describes.

        Raises:
            InputError: if neither ONNX nor the model describes it.
        """
        if node.domain == POET_DOMAIN:
            raise InputError(
                f"The model was already rewritten by poet-onnx (it has {describe(node)}): give the original model."
            )
        domain, version = self._import(node)
        if version is None:
            raise InputError(f"The model imports no version of domain '{node.domain}', which {describe(node)} needs.")
        schema = self.find(node)
        if schema is None and not (
            node.op_type and all(declared_type(value, dims) for value in node.outputs if value.name)
        ):
            where = f"domain '{node.domain}'" if domain else f"ONNX opset {version}"
            raise InputError(
                f"The operator of {describe(node)} is unknown in {where}, and the model does not declare what it makes:"
                f" {_advice(domain, node.op_type)}."
            )
        return schema

    def _import(self, node: ir.Node) -> tuple[str, int | None]:
        domain = "" if node.domain in ONNX_DOMAINS else node.domain
        return domain, self._opsets.get(node.domain, self._opsets.get(domain))


def _advice(domain: str, op_type: str) -> str:
    """Return what to do about an operator that is unknown."""
    if domain:
        return "export it with the shapes of all values"
    if onnx.defs.has(op_type):
        return "export it with a newer opset"
    return "ONNX has none of that name: write it by others where the network is defined, and export that"
