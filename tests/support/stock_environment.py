"""The environment with the stock onnxruntime, whose import package is that of onnxruntime-training, too.

It is that of scripts/setup, or the one whose interpreter the variable POET_STOCK_PYTHON names, which has
`poet-onnx[stock]` and pytest installed. Where there is none, what is tested there is skipped.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from folders import ROOT

_MADE = ROOT / ".venv-stock" / "bin" / "python"
if _MADE.exists() and _MADE.parent != Path(sys.executable).parent:
    os.environ.setdefault("POET_STOCK_PYTHON", str(_MADE))

STOCK_PYTHON = os.environ.get("POET_STOCK_PYTHON", "")
"""Interpreter of the environment, or nothing."""

_REASON = "there is no environment with the stock onnxruntime; scripts/setup makes it"

NEEDS_STOCK = pytest.mark.skipif(not STOCK_PYTHON, reason=_REASON)

EACH_PYTHON = [
    pytest.param(sys.executable, id="this", marks=pytest.mark.deep),
    pytest.param(STOCK_PYTHON, id="stock", marks=NEEDS_STOCK),
]
"""This interpreter and that one, which users have and so runs every time."""


def stock_python() -> str:
    """Return the interpreter of the environment, and skip the test where there is none."""
    if not STOCK_PYTHON:
        pytest.skip(_REASON)
    return STOCK_PYTHON
