"""The worked examples of docs/contributing.md: each diff is applied to a copy of the sources, and its own tests run.

A section with a diff is an example. The tests below `tests/` that the diff touches are run, and those whose cases it
touches. So are the shell blocks of the section that are marked `run`, beside the artifacts of a small real model.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from fenced_blocks import fenced_blocks
from folders import ROOT

import poet_onnx

OWN_SOURCES = """import sys

sys.meta_path[:] = [finder for finder in sys.meta_path if not type(finder).__module__.startswith("_editable_")]
"""
"""Lets a copy of the sources on PYTHONPATH come before those of an editable install."""


CASES = {
    "tests/workspace_cases.py": "tests/costing/test_workspace.py",
    "tests/support/gradient_cases/activations.py": "tests/gradients/test_operators.py",
}
"""The tests that run the cases of a file."""


def examples() -> Mapping[str, str]:
    """Return the diff of every example by its section."""
    diffs: defaultdict[str, str] = defaultdict(str)
    for block in fenced_blocks(ROOT / "docs" / "contributing.md"):
        if block.language == "diff":
            diffs[block.section] += block.text
    return diffs


EXAMPLES = examples()


def commands(section: str) -> Iterator[str]:
    """Yield what is to be typed in a section."""
    for block in fenced_blocks(ROOT / "docs" / "contributing.md"):
        if (block.language, block.mark, block.section) == ("sh", "run", section):
            yield block.text


def copy_of_the_sources(folder: Path) -> dict[str, str]:
    """Copy the sources into a folder, and return an environment in which Python imports them from there."""
    for name in ("poet_onnx", "passes", "ops", "tests"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(poet_onnx.library_path(), folder / "ops")
    shutil.copy(ROOT / "pyproject.toml", folder)
    for name in ("scripts", ".cache"):
        (ROOT / name).mkdir(exist_ok=True)
        (folder / name).symlink_to(ROOT / name)
    start = folder / "start"
    start.mkdir()
    (start / "sitecustomize.py").write_text(OWN_SOURCES, encoding="utf-8")
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PYTHONPATH": f"{start}{os.pathsep}{folder}", "PATH": programs}


def run(command: list[str], folder: Path, environment: Mapping[str, str], given: str = "") -> None:
    done = subprocess.run(
        command, cwd=folder, env=environment, input=given, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("section", EXAMPLES)
def test_example_of_a_section(section: str, tmp_path: Path, model_path: Callable[..., Path]) -> None:
    folder = tmp_path / "sources"
    folder.mkdir()
    environment = copy_of_the_sources(folder)
    apart = {**environment, "GIT_CEILING_DIRECTORIES": str(tmp_path)}  # the copy belongs to no repository
    run(["git", "apply", "-C1", "--whitespace=nowarn", "-"], folder, apart, EXAMPLES[section])
    touched = re.findall(r"^\+\+\+ b/(tests/\S+\.py)$", EXAMPLES[section], re.MULTILINE)
    tests = [CASES.get(path, path) for path in touched]
    assert tests, "the example has no test"
    pytest_command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    run([*pytest_command, *tests], folder, environment)
    work = tmp_path / "work"
    shutil.copytree(model_path("unet").parent, work)
    for text in commands(section):
        run(["bash", "-eu", "-c", text], work, environment)


def test_there_is_an_example_of_everything_that_others_add() -> None:
    assert set(EXAMPLES) == {"A pass", "An operator", "A gradient", "A limit", "A device"}
