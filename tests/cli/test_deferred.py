"""Modules that a command hardly ever needs are loaded when something in them is asked for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SYMBOLS = "import onnx_ir; print(onnx_ir.SymbolicDim('N + 1') * 2, onnx_ir.SymbolicDim('N') // 2)"


def printed(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


def test_a_rewrite_loads_none_of_them(model_path: Callable[..., Path], tmp_path: Path) -> None:
    arguments = ["rewrite", str(model_path("mlp-mse")), str(tmp_path / "out.onnx"), "--device", "a72"]
    program = (
        "import atexit, sys\n"
        "from poet_onnx.cli import main\n"
        "atexit.register(lambda: print('onnx_ir' in sys.modules, 'sympy.core' in sys.modules))\n"
        f"main({arguments!r})"
    )
    assert printed(program).splitlines()[-1] == "True False"


@pytest.mark.parametrize(
    "uses", [SYMBOLS, "import sympy.core.expr; from sympy import Symbol; print(Symbol('N'), sympy.core.expr.Expr)"]
)
def test_whoever_needs_them_has_them(uses: str) -> None:
    deferred = "from poet_onnx.cli.deferred import HARDLY_NEEDED, defer; defer(*HARDLY_NEEDED, 'no_such_module')\n"
    assert printed(deferred + uses) == printed(uses) != ""


def test_what_is_loaded_stays() -> None:
    program = "import sympy\nfrom poet_onnx.cli.deferred import defer\ndefer('sympy')\nimport sys\n"
    assert printed(program + "print(sys.modules['sympy'] is sympy, type(sympy).__name__)") == "True module\n"
