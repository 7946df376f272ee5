"""The environment with the stock onnxruntime, whose import package is that of onnxruntime-training, too.

The variable POET_STOCK_PYTHON names its interpreter, and that environment has `poet-onnx[stock]` and pytest installed;
scripts/test makes it. Without the variable, what is tested there is skipped.
"""

from __future__ import annotations

import os
import sys

import pytest

STOCK_PYTHON = os.environ.get("POET_STOCK_PYTHON", "")
"""Interpreter of the environment, or nothing."""

_REASON = "POET_STOCK_PYTHON names no interpreter with the stock onnxruntime; scripts/test sets it"

NEEDS_STOCK = pytest.mark.skipif(not STOCK_PYTHON, reason=_REASON)

EACH_PYTHON = [
    pytest.param(sys.executable, id="this"),
    pytest.param(STOCK_PYTHON, id="stock", marks=NEEDS_STOCK),
]
"""This interpreter and that one."""


def stock_python() -> str:
    """Return the interpreter of the environment, and skip the test where there is none."""
    if not STOCK_PYTHON:
        pytest.skip(_REASON)
    return STOCK_PYTHON
