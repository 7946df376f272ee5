"""The page holds all of the picture, loads nothing, and can be read without its drawings."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import onnx_ir as ir
import pytest

from poet_onnx import rewrite
from poet_onnx.reporting.depicting import picture_of
from poet_onnx.reporting.drawing import drawing_of
from poet_onnx.reporting.figures import bytes_text, scaled_text
from poet_onnx.reporting.page import page_of
from poet_onnx.reporting.picture import StepPicture

_VOID = {"meta", "input", "br"}
_FETCHES = {"src", "srcset", "href", "action", "poster", "background", "data"}


class Page(HTMLParser):
    """A page as it is read: text by element, ids, what is nested wrongly, and attributes that would fetch something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.fetched: list[str] = []
        self.ids: list[str] = []
        self.described: list[str] = []
        self.values: list[str] = []
        self.texts: dict[str, str] = {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what the element says."""
        values = dict(attrs)
        self.ids += [values["id"]] if values.get("id") else []
        self.described += [each for name in ("aria-labelledby", "aria-describedby") if (each := values.get(name))]
        self.fetched += [f"{tag} {name}" for name in values if name in _FETCHES]
        if tag == "data":
            self.values.append(values["value"] or "")
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Note an element that ends where another one is open."""
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        """Note text."""
        place = self.open[-1] if self.open else ""
        self.texts[place] = self.texts.get(place, "") + data


@pytest.fixture(scope="module")
def model(model_path: Callable[..., Path]) -> ir.Model:
    path = model_path("transformer")
    return rewrite(path, device="tx2", activation_budget="70%", recompute=False, split=False, gap=0.5).model


@pytest.fixture(scope="module")
def picture(model: ir.Model) -> StepPicture:
    return picture_of(model, name="a <b> & </script>.onnx")


def test_the_page_is_whole_and_loads_nothing(picture: StepPicture) -> None:
    text = page_of(picture)
    page = Page(text)
    assert page.wrong == [] == page.open
    assert page.fetched == []
    assert not re.search(
        r"https?:|//[a-z]|@import|url\(|fetch\(|XMLHttpRequest|import\(", text.replace("ui.perfetto", "")
    )
    assert len(page.ids) == len(set(page.ids))
    assert set(page.described) <= set(page.ids), "who reads the page by ear is told what is there"
    assert "default-src 'none'" in text


def test_figures_of_the_page_are_those_of_the_picture(picture: StepPicture) -> None:
    text = page_of(picture)
    page = Page(text)
    (data,) = re.findall(r'<script type="application/json" id="picture">(.*?)</script>', text, re.DOTALL)
    assert StepPicture.model_validate_json(data) == picture
    assert json.loads(data)["model"] == picture.model
    for size in (picture.original, picture.ordered, picture):
        assert bytes_text(size.transient_peak_bytes) in page.texts["td"]
        assert scaled_text(size.energy_joules, "J").replace(" u", " \N{MICRO SIGN}") in page.texts["td"]
    parts = [*picture.energy, *picture.process, *picture.residents]
    shown = [float(value) for value in page.values]
    assert sorted(shown) == sorted(
        [
            *(part.size for part in parts if part.size),
            *(picture.energy_joules, picture.process_peak_bytes, picture.resident_bytes),
        ]
    )
    words = " ".join(page.texts["p"].split())
    for sentence in (*picture.verdict[1:], *picture.proof_words):
        assert sentence.replace(" uJ", " \N{MICRO SIGN}J").replace(" us", " \N{MICRO SIGN}s") in words
    assert page.texts["h1"] == picture.model


def test_scripts_find_what_they_look_for(picture: StepPicture) -> None:
    text = page_of(picture)
    ids = set(Page(text).ids) | {"what-if", "what-if-words", "what-if-table"}  # there with a curve, and only used then
    wanted = set(re.findall(r'byId\("([a-z-]+)"\)', text)) | set(re.findall(r'legend\("([a-z-]+)"', text))
    assert wanted
    assert wanted <= ids
    for name, _ in picture.fates:
        assert f"--{name.replace(' ', '-')}:" in text, "every kind of buffer has a color"


def test_text_can_be_read_on_its_ground(picture: StepPicture) -> None:
    """Text has the contrast that WCAG 2.2 asks for at level AA, in light and dark."""
    roots = re.findall(r":root \{(.*?)\}", page_of(picture), re.DOTALL)
    for root in roots[:2]:
        inks = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", root))
        for ground in ("paper", "card", "faint"):
            for ink in ("ink", "soft", "accent", "budget", "measured"):
                assert contrast(inks[ink], inks[ground]) >= 4.5, (ink, ground)
        for ground in ("good-wash", "bad-wash"):
            assert contrast(inks["ink"], inks[ground]) >= 4.5
        assert contrast(inks["good"], inks["good-wash"]) >= 4.5
        assert contrast(inks["bad"], inks["bad-wash"]) >= 4.5


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colors, as WCAG 2.2 defines it."""

    def luminance(color: str) -> float:
        parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_the_drawing_is_well_formed_and_has_every_buffer(picture: StepPicture) -> None:
    root = ElementTree.fromstring(drawing_of(picture))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    paths = [path.get("d") or "" for path in root.iter("{http://www.w3.org/2000/svg}path")]
    drawn = sum(path.count("z") for path in paths)
    assert drawn == sum(offset >= 0 for offset in picture.layers[-1].blocks.offsets)
    words = " ".join("".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text"))
    assert picture.activation_budget_bytes is not None
    assert f"budget {bytes_text(picture.activation_budget_bytes)}" in words


@pytest.mark.deep
def test_a_browser_draws_the_page(picture: StepPicture, tmp_path: Path) -> None:
    """Needs Chromium; says so where there is none."""
    import shutil

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("there is no Chromium on this machine")
    path = tmp_path / "page.html"
    path.write_text(page_of(picture), encoding="utf-8")
    options = ("--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}")
    command = [chromium, *options, "--virtual-time-budget=5000", "--dump-dom", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "data-ready-milliseconds=" in done.stdout
    name = picture.tensors.names[0]
    assert name in done.stdout
