"""A reader who follows a document: what its blocks do in the environments that they name."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from fenced_blocks import fenced_blocks
from stock_environment import stock_python

ENVIRONMENTS = ("training", "stock")

EACH_BLOCK = """import sys
for place, text in zip(sys.argv[1::2], sys.argv[2::2]):
    exec(compile(text, place, "exec"), {"__name__": "__main__"})
"""
"""Runs blocks of Python, each as a program of its own: it sees no name of another one."""


def program_of(environment: str) -> Path:
    """Return the Python of an environment."""
    if environment == "training":
        return Path(sys.executable)
    return Path(stock_python())


def follow(path: Path, folder: Path, *, making: Sequence[str] = ()) -> str:
    """Do what a reader does with the blocks of a document, and return what they print.

    Python blocks in a row share a process: it imports once.

    Args:
        path: of the document.
        folder: where the reader is.
        making: files of which alone the reader follows the blocks; default: all blocks.
    """
    printed = []
    done = [block for block in fenced_blocks(path) if block.mark in ENVIRONMENTS or block.mark.endswith(".py")]
    if making:
        done = [block for block in done if any(name == block.mark or f'"{name}"' in block.text for name in making)]
    for (mark, language), row in groupby(done, key=lambda block: (block.mark, block.language)):
        if mark.endswith(".py"):
            (folder / mark).write_text(next(row).text, encoding="utf-8")
        elif language == "sh":
            for block in row:
                printed.append(run(mark, folder, f"line {block.line}", "bash", "-eu", "-c", block.text))
        else:
            blocks = [part for block in row for part in (f"line {block.line}", block.text)]
            where = ", ".join(blocks[::2])
            printed.append(run(mark, folder, where, str(program_of(mark)), "-c", EACH_BLOCK, *blocks))
    return "".join(printed)


def run(environment: str, folder: Path, where: str, *command: str) -> str:
    """Run a command in an environment, which must end well, and return what it prints."""
    path = f"{program_of(environment).parent}{os.pathsep}{os.environ['PATH']}"
    alone = {"PATH": path, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # the other core has tests of its own
    done = subprocess.run(command, cwd=folder, env={**os.environ, **alone}, text=True, capture_output=True, check=False)
    assert done.returncode == 0, f"{where}: {done.stdout}{done.stderr}"
    return done.stdout
