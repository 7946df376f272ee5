"""README and docs: what a reader types works, every option exists, every link leads somewhere.

The word behind a fence's language says what is done with the block. `sh training` and `python training` run in this
environment, `sh stock` and `python stock` in that of the stock onnxruntime; `python NAME.py` is written into a file of
that name. All of a document's blocks run in one folder, one after the other. Other blocks must parse.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import click
import option_tables
import pytest
from deep import sampled
from fenced_blocks import DOCUMENTS, EXAMPLES, Fenced, fenced_blocks, without_blocks
from folders import ROOT
from following import ENVIRONMENTS, follow

import poet_onnx.torch
from poet_onnx.cli import command_line

README, DOCS = ROOT / "README.md", ROOT / "docs"
GUIDE, DECODER = DOCS / "guide.md", DOCS / "decoder.md"
DATA = """import numpy as np

random = np.random.default_rng(0)
batches = [(random.standard_normal({shape}, dtype=np.float32), random.integers(0, 10, {shape}[0])) for _ in range(2)]
"""
"""Random batches in place of data, as data.py."""

GUIDE_SHAPE, SMALL_SHAPE = (32, 3, 64, 64), (1, 3, 32, 32)


def names(paths: tuple[Path, ...]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def typed(block: Fenced) -> Iterator[list[str]]:
    """Yield the words of every command in a shell block."""
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words:
            ends = [place for place, word in enumerate(words) if word in ("|", "&&", ";")]
            end = ends[0] if ends else len(words)
            if words[:end]:
                yield words[:end]
            words = words[end + 1 :]


def parse(words: list[str]) -> None:
    """Let the command line read arguments, and do nothing else."""
    name, *rest = [word for word in words if word not in options(command_line)]
    command_line.commands[name].make_context(name, rest)


def options(command: click.Command) -> set[str]:
    return {
        option
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for option in (*parameter.opts, *parameter.secondary_opts)
    }


@pytest.mark.parametrize("path", DOCUMENTS, ids=names(DOCUMENTS))
def test_blocks_parse(path: Path) -> None:
    for block in fenced_blocks(path):
        where = f"{path.name}, line {block.line}"
        if block.language == "python":
            ast.parse(block.text, where)
        elif block.language == "sh":
            subprocess.run(["bash", "-n", "-c", block.text], check=True)
            for words in typed(block):
                if words[0] == "poet-onnx":
                    parse(words[1:])
                elif words[0].startswith("scripts/"):
                    assert os.access(ROOT / words[0], os.X_OK), where
        else:
            assert block.language in ("text", "diff", "json", "toml"), where


@pytest.mark.parametrize("path", DOCUMENTS, ids=names(DOCUMENTS))
def test_options_in_the_prose_exist(path: Path) -> None:
    known = set[str]().union(options(command_line), *map(options, command_line.commands.values()))
    for code in re.findall(r"`([^`\n]+)`", without_blocks(path.read_text(encoding="utf-8"))):
        first = code.split()[0] if code.split() else ""
        if first == "poet-onnx" or first in command_line.commands or first.startswith("--"):
            assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", code)) <= known | {"--help"}, code


def test_every_option_is_described_with_its_command() -> None:
    text = (DOCS / "command-line.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## `poet-onnx ([\w-]+)`.*?\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE))
    assert set(sections) == set(command_line.commands)
    for name, command in command_line.commands.items():
        described = set(re.findall(r"(?<![\w-])(--?[a-z][a-z-]*)", sections[name]))
        assert options(command) <= described, name


def test_the_rows_of_options_are_those_of_the_records() -> None:
    page = option_tables.PAGE.read_text(encoding="utf-8")
    assert page == option_tables.tables(page), "run scripts/option_tables.py"
    without = re.sub(r"^\| `--lifetime .*\n", "", page, flags=re.MULTILINE)
    assert option_tables.tables(without.replace("`--python`, ", "")) == page


def test_every_public_name_is_described() -> None:
    text = (DOCS / "python.md").read_text(encoding="utf-8")
    assert [name for name in poet_onnx.__all__ if not re.search(rf"\b{name}\b", text)] == []


def test_every_public_name_is_in_the_reference() -> None:
    listed = set(re.findall(r"^::: (.*)$", (DOCS / "api.md").read_text(encoding="utf-8"), re.MULTILINE))
    assert {f"poet_onnx.{name}" for name in poet_onnx.__all__} <= listed
    assert {f"poet_onnx.torch.{name}" for name in poet_onnx.torch.__all__} <= listed


def anchors(path: Path) -> set[str]:
    """Return the anchors that a forge makes of a document's headings."""
    headings = re.findall(r"^#+ (.*)$", without_blocks(path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=names(DOCUMENTS))
def test_links_lead_somewhere(path: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", without_blocks(path.read_text(encoding="utf-8"))):
        if "://" in link:
            continue
        target, _, anchor = link.partition("#")
        file = (path.parent / target).resolve() if target else path
        assert file.exists(), link
        assert not anchor or anchor in anchors(file), link


def test_the_readme_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150


def test_the_index_of_the_scripts_names_every_script_and_table() -> None:
    scripts = ROOT / "scripts"
    words = re.findall(r"[\w*-]+(?:\.\w+)?", (scripts / "README.md").read_text(encoding="utf-8"))
    files = [
        path
        for path in (*scripts.iterdir(), *scripts.glob("results/*"))
        if path.is_file() and path.suffix not in (".md", ".svg")
    ]
    unnamed = [
        path.name
        for path in files
        if not any(fnmatch(path.name, word) or fnmatch(path.stem, word) for word in words if word != "*")
    ]
    assert unnamed == []
    named = {word for word in words if word.endswith((".csv", ".py", ".sh"))} - {"NAME.py"}
    assert [word for word in named if not list(scripts.rglob(word))] == []


def test_the_python_page_shows_the_example_that_runs_on_the_board() -> None:
    own = (ROOT / "scripts/release/machines/example.py").read_text(encoding="utf-8").split('"""\n\n', 1)[1]
    assert own in [block.text for block in fenced_blocks(DOCS / "python.md")]


def has_runs(path: Path) -> bool:
    return any(block.mark in ENVIRONMENTS for block in fenced_blocks(path))


RUN = tuple(path for path in DOCUMENTS if path not in (GUIDE, DECODER, *EXAMPLES) and has_runs(path))


@pytest.mark.deep
def test_the_guide_leads_to_a_trained_model(tmp_path: Path) -> None:
    follow(GUIDE, tmp_path)
    assert (tmp_path / "trained.onnx").stat().st_size > 0


@pytest.mark.deep
def test_the_decoders_page_leads_to_an_adapter_that_peft_loads(tmp_path: Path) -> None:
    """What the trained model writes is what the task asks for, here and in PEFT."""
    *_, before, after, here, in_peft = follow(DECODER, tmp_path).strip().splitlines()
    assert float(before.removeprefix("loss before: ")) > 5
    assert float(after.removeprefix("loss after: ")) < 0.5
    assert here == in_peft == " ".join(map(str, range(20, 68, 3)))


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with what onnxruntime-training makes of a small network of images."""
    from export_models import export, quiet
    from models import Recipe, images
    from torch import nn

    def small() -> nn.Module:
        layers = [layer for _ in range(3) for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Tanh())]
        first = nn.Conv2d(3, 8, 3, padding=1)
        return nn.Sequential(first, *layers, nn.AvgPool2d(8), nn.Flatten(), nn.Linear(128, 10))

    folder = tmp_path_factory.mktemp("artifacts")
    with quiet():
        export(Recipe(small, functools.partial(images, SMALL_SHAPE[-1])), folder)
    return folder


@pytest.mark.parametrize("path", sampled(RUN, README), ids=names(RUN))
def test_blocks_run(path: Path, tmp_path: Path, artifacts: Path) -> None:
    """Run a document's blocks beside the network of the guide, or the artifacts of onnxruntime-training."""
    if path == README:
        follow(GUIDE, tmp_path, making=("network.py", "forward.onnx"))
        shape = GUIDE_SHAPE
    else:
        shutil.copytree(artifacts, tmp_path, dirs_exist_ok=True)
        shape = SMALL_SHAPE
    (tmp_path / "data.py").write_text(DATA.format(shape=shape), encoding="utf-8")
    follow(path, tmp_path)
