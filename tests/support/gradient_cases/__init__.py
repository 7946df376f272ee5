"""Operators whose gradients are compared with torch's: a module for each family, with a list CASES of its own."""

from __future__ import annotations

import importlib
import pkgutil

from gradient_case import Case

CASES: list[Case] = [
    case
    for module in pkgutil.iter_modules(__path__)
    for case in importlib.import_module(f"{__name__}.{module.name}").CASES
]
"""Those of all modules."""
