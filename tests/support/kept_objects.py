"""Keeps searches for cycles short in a process of pytest: they took a sixth of the time of all tests."""

from __future__ import annotations

import gc
import sys

MODULES_OF_A_LARGE_PACKAGE = 100


class KeptObjects:
    """A plugin that takes out of what is searched for cycles what collecting the tests and importing torch has made."""

    def __init__(self) -> None:
        self._modules = 0

    def pytest_collection_finish(self) -> None:
        """Keep what all tests share."""
        self._keep()

    def pytest_runtest_logfinish(self) -> None:
        """Keep what a large package has made, behind the test that has imported one."""
        if len(sys.modules) > self._modules + MODULES_OF_A_LARGE_PACKAGE:
            self._keep()

    def _keep(self) -> None:
        gc.collect()
        gc.freeze()
        self._modules = len(sys.modules)
