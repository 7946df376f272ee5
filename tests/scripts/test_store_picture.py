"""The picture of RAM against model size has the figures that are committed, each trainer's least for a model."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from xml.etree import ElementTree

from folders import ROOT

SCRIPT = ROOT / "scripts" / "store_picture.py"
FIGURES = ROOT / "scripts" / "results" / "store_memory.csv"
ROWS = """# a command
model,parameters,trainer,peak_mib
bert-base,109482242,poet-onnx,1800
bert-base,109482242,poet-onnx,58.5
bert-base,109482242,torch,2252.5
resnet18,11173962,poet-onnx,45.6
resnet18,11173962,torch,517.7
"""


def drawn(figures: Path, picture: Path) -> str:
    """Return the picture that the script draws of some figures."""
    spec = importlib.util.spec_from_file_location("store_picture", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["store_picture"] = module
    spec.loader.exec_module(module)
    assert module.main([str(figures), "-o", str(picture)]) == 0
    return picture.read_text()


def test_each_trainer_has_a_dot_and_its_least_figure_for_each_model(tmp_path: Path) -> None:
    (tmp_path / "figures.csv").write_text(ROWS)
    root = ElementTree.fromstring(drawn(tmp_path / "figures.csv", tmp_path / "picture.svg"))
    groups = [each for each in root.iter() if each.tag.endswith("}g")]
    assert [group.get("class") for group in groups] == ["poet-onnx", "torch"]
    figures = [[each.text for each in group.iter() if each.get("class") == "small"] for group in groups]
    assert figures == [["46", "58"], ["518", "2,252"]]
    heights = [[float(each.get("cy", 0)) for each in group.iter() if each.get("cy")] for group in groups]
    assert min(heights[0]) > max(heights[1]), "less is lower"
    texts = [each.text for each in root.iter() if each.text]
    assert {"ResNet-18, 11 M", "BERT-base, 109 M"} <= set(texts)


def test_the_picture_is_that_of_the_committed_figures(tmp_path: Path) -> None:
    assert drawn(FIGURES, tmp_path / "picture.svg") == (ROOT / "docs" / "store_memory.svg").read_text()
