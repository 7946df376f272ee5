"""The page in a browser: it answers soon, asks for nothing, and shows the figures of its JSON."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from page_in_browser import MOST_BYTES, MOST_MILLISECONDS, browser, opened

from poet_onnx import rewrite
from poet_onnx.reporting.depicting import picture_of
from poet_onnx.reporting.figures import bytes_text
from poet_onnx.reporting.page import page_of

pytestmark = pytest.mark.skipif(browser() is None, reason="no Chromium is installed")


@pytest.mark.deep
def test_a_page_answers_soon_and_shows_its_figures(model_path: Callable[..., Path], tmp_path: Path) -> None:
    result = rewrite(model_path("transformer"), device="tx2", activation_budget="70%", split=False, gap=0.5)
    picture, page = picture_of(result.model, name="net.onnx"), tmp_path / "net.html"
    shown = f">{bytes_text(picture.transient_peak_bytes)}<"
    text = page_of(picture)
    assert text.count(f'"figure"{shown}') == 1
    page.write_text(text.replace(f'"figure"{shown}', '"figure">1 B<'), encoding="utf-8")
    row, wrong = opened(page)
    assert wrong == [f"a tile shows 1 B, not {shown[1:-1]}"], "the one that was changed, and no other"
    assert row.requests == 0
    assert row.page_bytes < MOST_BYTES
    assert row.ready_milliseconds < 5 * MOST_MILLISECONDS, "on a machine that does other things, too"
    assert (row.nodes, row.buffers) == (len(picture.nodes.names), len(picture.layers[-1].blocks.born))
