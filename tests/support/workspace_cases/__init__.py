"""Operators whose workspace is counted: a module for each family, with a list CASES of its own."""

from __future__ import annotations

import importlib
import pkgutil

from workspace_case import Case

GROUPS: dict[str, list[Case]] = {
    module.name: importlib.import_module(f"{__name__}.{module.name}").CASES for module in pkgutil.iter_modules(__path__)
}
"""The cases of each module."""
