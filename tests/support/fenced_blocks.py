"""The fenced blocks of the documents: what a reader would type, write into a file or apply."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from folders import ROOT

EXAMPLES = tuple(sorted((ROOT / "examples").glob("*/README.md")))
DOCUMENTS = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "examples/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *EXAMPLES,
)

_BLOCK = re.compile(r"^( *)```(\S*)([^\n]*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Fenced:
    """A fenced block.

    Attributes:
        language: the first word behind the fence.
        mark: the second: the environment in which a test runs the block, or the file that the reader makes of it.
        text: what is in it.
        section: the heading above it.
        line: of the file, where it begins.
    """

    language: str
    mark: str
    text: str
    section: str
    line: int


def fenced_blocks(path: Path) -> Iterator[Fenced]:
    """Yield the blocks of a document."""
    text = path.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        above = _HEADING.findall(without_blocks(text[: found.start()]))
        lines = [line.removeprefix(found[1]) for line in found[4].splitlines(keepends=True)]
        line = text.count("\n", 0, found.start()) + 1
        yield Fenced(found[2], found[3].strip(), "".join(lines), above[-1] if above else "", line)


def without_blocks(text: str) -> str:
    """Return a document's prose."""
    return _BLOCK.sub("", text)
