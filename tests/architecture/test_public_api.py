"""The names that users import, and what importing them costs."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import poet_onnx


def test_the_public_names_are_these() -> None:
    assert sorted(poet_onnx.__all__, key=lambda name: (not name.isupper(), name)) == poet_onnx.__all__
    wanted = {"rewrite", "pipeline", "verify", "library_path", "session_options", "RewriteResult", "VerificationReport"}
    wanted |= {"TrainingSession", "SGD", "Adam", "AdamW", "AdamWOrt"}
    assert wanted <= set(poet_onnx.__all__)
    for name in poet_onnx.__all__:
        assert inspect.getdoc(getattr(poet_onnx, name)), f"{name} has no documentation"


def test_a_public_name_is_listed_before_it_is_asked_for() -> None:
    assert set(poet_onnx.__all__) <= set(dir(poet_onnx))
    with pytest.raises(AttributeError, match="no attribute 'frobnicate'"):
        poet_onnx.frobnicate  # noqa: B018


def test_importing_the_package_imports_nothing_that_takes_a_while() -> None:
    program = "import sys, poet_onnx; print({'numpy', 'onnx', 'onnx_ir', 'pydantic', 'click'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "set()"


def test_a_name_can_be_given_another_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    before = poet_onnx.verify
    with monkeypatch.context() as patched:
        patched.setattr(poet_onnx, "verify", len)
        assert poet_onnx.verify([1, 2]) == 2  # type: ignore[arg-type, call-arg]
    assert poet_onnx.verify is before


def test_importing_needs_neither_runtime_nor_solver() -> None:
    program = (
        "import sys; sys.modules['onnxruntime'] = None; sys.modules['pyscipopt'] = None; sys.modules['torch'] = None\n"
        "import poet_onnx; from poet_onnx import *; print(library_path().name)"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "libpoet_ops.so"


def test_pipeline_takes_what_rewrite_takes() -> None:
    with pytest.raises(poet_onnx.InputError, match=r"pipeline takes no ram_budge: the nearest is ram_budget"):
        poet_onnx.pipeline(device="a72", ram_budge="1GiB")
    assert poet_onnx.pipeline(device="a72", ram_budget="1GiB", gap=0.1).in_place
