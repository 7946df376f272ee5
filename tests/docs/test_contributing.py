"""The worked examples of docs/contributing.md: each diff is applied to a copy of the sources, and its own tests run.

A section with a diff is an example. The tests that the diff touches are run, and those whose cases it adds. So are
the shell blocks of the section that are marked `run`, beside the artifacts of a small real model.
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


TESTS = {
    "poet_onnx/costing/devices/": ("tests/costing/test_device.py",),
    "tests/support/gradient_cases/": ("tests/gradients/test_operators.py", "-k", "QuickGelu"),
    "tests/support/workspace_cases/": ("tests/costing/test_workspace.py", "-k", "masked_pooling"),
}
"""What runs the cases and files of a folder."""


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


def apply(diff: str, folder: Path, environment: Mapping[str, str]) -> None:
    """Apply a diff to a copy of sources in which somebody may have followed the example."""
    for part in re.split(r"^(?=diff --git )", diff, flags=re.MULTILINE)[1:]:
        name = part.split("\n", maxsplit=1)[0].rpartition(" b/")[2]
        if "\nnew file mode" in part:
            (folder / name).unlink(missing_ok=True)
        given = ["git", "apply", "-C1", "--whitespace=nowarn", "-"]
        backward = [*given[:2], "--reverse", "--check", *given[2:]]
        if subprocess.run(backward, cwd=folder, env=environment, input=part.encode(), check=False).returncode != 0:
            run(given, folder, environment, part)


def calls_for(diff: str) -> Iterator[tuple[str, ...]]:
    """Yield what pytest is to be called with for each file of a diff that is a test, or is read by one."""
    for name in re.findall(r"^\+\+\+ b/(\S+)$", diff, re.MULTILINE):
        own = [(name,)] if Path(name).match("tests/*/test_*.py") else []
        yield from own or [tests for folder, tests in TESTS.items() if name.startswith(folder)]


def changed_files(diff: str) -> Iterator[str]:
    """Yield the files of a diff that are there before."""
    yield from re.findall(r"^--- a/(\S+)$", diff, re.MULTILINE)


def test_the_sources_are_as_the_examples_have_them(tmp_path: Path) -> None:
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
    for section, diff in EXAMPLES.items():
        folder = tmp_path / section
        for name in changed_files(diff):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
        folder.mkdir(exist_ok=True)
        apply(diff, folder, environment)


@pytest.mark.deep
@pytest.mark.parametrize("section", EXAMPLES)
def test_example_of_a_section(section: str, tmp_path: Path, model_path: Callable[..., Path]) -> None:
    folder = tmp_path / "sources"
    folder.mkdir()
    environment = copy_of_the_sources(folder)
    apart = {**environment, "GIT_CEILING_DIRECTORIES": str(tmp_path)}  # the copy belongs to no repository
    apply(EXAMPLES[section], folder, apart)
    pytest_command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    calls = list(calls_for(EXAMPLES[section]))
    assert calls, "the example has no test"
    for arguments in calls:
        run([*pytest_command, *arguments], folder, environment)
    work = tmp_path / "work"
    shutil.copytree(model_path("unet").parent, work)
    for text in commands(section):
        run(["bash", "-eu", "-c", text], work, environment)


def test_an_example_that_was_followed_is_applied_all_the_same(tmp_path: Path) -> None:
    old, new = "a\nb\n", "a\nx\nb\n"
    diff = "diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1,2 +1,3 @@\n a\n+x\n b\n"
    diff += "diff --git a/g b/g\nnew file mode 100644\n--- /dev/null\n+++ b/g\n@@ -0,0 +1,1 @@\n+y\n"
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
    for before, beside in ((old, None), (new, "y\n"), (new, "mine\n")):
        (tmp_path / "f").write_text(before)
        if beside is not None:
            (tmp_path / "g").write_text(beside)
        apply(diff, tmp_path, environment)
        assert ((tmp_path / "f").read_text(), (tmp_path / "g").read_text()) == (new, "y\n")


def test_there_is_an_example_of_everything_that_others_add() -> None:
    assert set(EXAMPLES) == {"A pass", "An operator", "A gradient", "A limit", "An option", "A device"}
