"""The picture of a step's memory: its curves are the simulator's, whose peaks `rewrite` reports."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from folders import ROOT

SCRIPT = ROOT / "scripts" / "memory_picture.py"


@pytest.fixture(scope="module")
def picture() -> ModuleType:
    """Return the script as a module."""
    spec = importlib.util.spec_from_file_location("memory_picture", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["memory_picture"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.deep
def test_curves_have_the_peaks_that_rewrite_reports(picture: ModuleType, model_path: Callable[..., Path]) -> None:
    from poet_onnx import rewrite

    path = model_path("unet")
    as_exported, ordered, rewritten = picture.curves(path, "a72", "90%")
    result = rewrite(path, device="a72", activation_budget="90%")
    peaks = [max(curve.transient_bytes) for curve in (as_exported, ordered, rewritten)]
    figures = (result.original, result.ordered, result.rewritten)
    assert peaks == [prediction.transient_peak_bytes for prediction in figures]
    for curve, prediction in zip((as_exported, ordered, rewritten), figures, strict=True):
        assert list(curve.ends_seconds) == sorted(curve.ends_seconds)
        assert curve.ends_seconds[-1] == pytest.approx(prediction.compute_seconds)


def test_a_picture_is_drawn(picture: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra [plots] is not installed")
    curves = [picture.Curve(name, (0.1, 0.3), (2**20, 2**21)) for name in ("a", "b", "c")]
    picture.draw(tmp_path / "picture.svg", "three steps", curves)
    assert "a: at most 2.0 MiB" in (tmp_path / "picture.svg").read_text(encoding="utf-8")
