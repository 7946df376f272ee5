"""What is said of a session by a process that trains and makes none of the calls beside the step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from poet_onnx.costing.device import load_device
from poet_onnx.costing.process import CALLS
from poet_onnx.costing.process_costs import ProcessCosts
from poet_onnx.profiler import process
from poet_onnx.rewriting.options import RewriteOptions
from poet_onnx.rewriting.process import versions_of

HOST = load_device("host")
OTHER_BYTES = 100_000
"""More than is known of sessions."""


def test_what_calls_leave_is_not_taken_off_a_session(
    model_path: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their lines come on top of what a process takes that only trains."""
    lines: dict[str, int] = {}
    rewrite = process.rewrite

    def kept(*arguments: Any, **options: Any) -> Any:
        result = rewrite(*arguments, **options)
        lines.update({line.name: line.size_bytes for line in result.process.lines})
        return result

    def trained(*_: object) -> SimpleNamespace:
        peak = OTHER_BYTES + sum(size for name, size in lines.items() if name not in CALLS)
        figures = {"imported_bytes": lines["runtime"], "import_peak_bytes": 0, "peak_bytes": peak}
        return SimpleNamespace(figures=figures, ending="")

    monkeypatch.setattr(process, "rewrite", kept)
    monkeypatch.setattr(process, "train", trained)
    measured = process.measure_process(
        model_path("mlp-mse"), HOST, target="stock", dims={}, frozen_batch_norm="auto", threads=1, page_dir=None
    )
    known = ProcessCosts.of(HOST, None, "stock", threads=1, versions=versions_of(HOST, RewriteOptions(device=HOST)))
    assert all(lines[name] > 0 for name in CALLS)
    assert measured is not None
    assert measured.session_bytes == known.session_bytes + OTHER_BYTES
