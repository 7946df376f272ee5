"""The examples: a reader follows each page, and the board has learned what it says."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import onnx
import pytest
from fenced_blocks import EXAMPLES
from folders import ROOT
from following import follow

LEARNED = {
    "detector": (r"average precision (?:before|after): ([\d.]+)", 0.1, 0.7),
    "image_classifier": (r"accuracy (?:before|after): ([\d.]+)", 0.4, 0.75),
    "keyword_spotting": (r"accuracy (?:before|after): ([\d.]+)", 0.4, 0.85),
    "small_decoder": (r"bits for each byte (?:before|after): ([\d.]+)", -7.5, -3.8),
    "text_lora": (r"accuracy (?:before|after): ([\d.]+)", 0.4, 0.7),
    "wake_word": (r"(?:before|after): hears (\d+) of 12 wake words, and \d of", 4, 9),
}
"""What each prints before and after training, at most before, and at least after; negative where less is better."""


def test_every_example_has_a_page_and_a_test() -> None:
    folders = {path.parent.name for path in (ROOT / "examples").glob("*/make.py")}
    assert folders == {path.parent.name for path in EXAMPLES} == set(LEARNED)
    listed = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    assert all(f"]({name}/README.md)" in listed for name in folders)


@pytest.mark.deep
@pytest.mark.parametrize("name", LEARNED)
def test_the_board_learns(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    shutil.copytree(ROOT / "examples" / name, folder, ignore=shutil.ignore_patterns("*.onnx", "*.np?", "words"))
    shutil.copy(ROOT / "examples" / "make_sounds.py", tmp_path)
    printed = follow(folder / "README.md", folder)
    form, most, least = LEARNED[name]
    before, after = (-float(each) if most < 0 else float(each) for each in re.findall(form, printed))
    assert before <= most
    assert after >= least
    assert "It fits." in printed
    assert (folder / "plan.html").stat().st_size < 5 << 20
    batch = onnx.load(folder / "trained.onnx").graph.input[0].type.tensor_type.shape.dim[0]
    assert batch.dim_param  # any number of samples
