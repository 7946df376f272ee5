"""The torch modules that nodes are in, as torch's exporters say it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

import onnx_ir as ir

ANONYMOUS = ("onnx::", "val_")
"""How torch's exporters name what they compute beforehand, such as a weight that they transposed."""

SCOPES_KEY = "pkg.torch.onnx.name_scopes"
"""A node's metadata name here the modules that it is in, from the outermost on, and the node itself."""


def module_of(node: ir.Node) -> str:
    """Return the name of the torch module that a node is in; empty if no exporter says it."""
    scopes = node.metadata_props.get(SCOPES_KEY)
    if scopes is not None:
        names = names_in(scopes)
        return names[-2] if len(names) > 1 else ""
    name = node.name or ""
    return _joined(name.split("/")[1:-1]) if name.startswith("/") else ""


def leave_scope(node: ir.Node, outermost: str) -> None:
    """Take the outermost module out of what a node says of the modules that it is in; changes the node."""
    scopes = node.metadata_props.get(SCOPES_KEY)
    if scopes is not None:
        kept = [name.removeprefix(f"{outermost}.") for name in names_in(scopes) if name != outermost]
        node.metadata_props[SCOPES_KEY] = repr(kept)
    elif (node.name or "").startswith(f"/{outermost}/"):
        inner = (node.name or "").removeprefix(f"/{outermost}/")
        node.name = f"/{inner.removeprefix(f'{outermost}.')}"  # a child of a Sequential repeats its parent's name


def names_in(text: str) -> list[str]:
    """Return the names in a list that an exporter wrote; none where the text is no list."""
    try:
        names = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return []
    return [str(name) for name in names] if isinstance(names, list) else []


def is_call_of(scope: str, module: str) -> bool:
    """Return whether a scope is a call of a module: the legacy exporter counts further ones, as norm_1 after norm."""
    parts, wanted = scope.split("."), module.split(".")
    return len(parts) == len(wanted) and all(
        re.fullmatch(rf"{re.escape(own)}(?:_\d+)?", part) for part, own in zip(parts, wanted, strict=True)
    )


def _joined(scopes: Iterable[str]) -> str:
    """Return the name of a module: a child of a Sequential repeats its parent's name, as in /layer1/layer1.0/conv1."""
    parts: list[str] = []
    for scope in scopes:
        if parts and scope.startswith(f"{parts[-1]}."):
            parts[-1] = scope
        else:
            parts.append(scope)
    return ".".join(parts)
