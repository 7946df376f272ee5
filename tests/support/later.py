"""Packages that take seconds to import: tests that use one import it, and collecting does not."""

from __future__ import annotations

import importlib
import warnings
from typing import Any


class Later:
    """A package that is imported when something of it is first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return getattr(importlib.import_module(self._name), attribute)
